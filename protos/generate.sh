#!/usr/bin/env bash
# Generates the Python stubs beside the .proto files. Needs a Python with grpcio-tools and mypy-protobuf:
#   protos/generate.sh PYTHON [OUT]      OUT defaults to this folder
# grpcio-tools is held at the oldest release we support, because stubs may not be newer than the
# protobuf runtime that imports them.
set -euo pipefail
python=${1:?usage: generate.sh PYTHON [OUT]}
# Absolute, but not resolved: the python of a virtual environment is a link.
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
cd "$(dirname "$0")"
out=${2:-.}
bin=$(dirname "$python")
mapfile -t files < <(find frugalads -name '*.proto' | sort)
PATH="$bin:$PATH" "$python" -m grpc_tools.protoc -I. \
  --python_out="$out" --mypy_out="$out" \
  --grpc_python_out="$out" --mypy_grpc_out="$out" \
  "${files[@]}"
# errors.proto has no service; protoc still writes an empty stub for it.
rm -f "$out"/frugalads/errors/v1/errors_pb2_grpc.py "$out"/frugalads/errors/v1/errors_pb2_grpc.pyi
