#!/usr/bin/env bash
# Checks the protos: style, compatibility with what was published before, and that stubs and client fit.
#   protos/check.sh PYTHON      PYTHON is that of a virtual environment with grpcio-tools, mypy-protobuf and
#                               buf-bin, and with the oldest supported grpcio and protobuf in its folder
#                               `oldest` (`make check` sets it up)
# Everything is checked on copies in a temporary folder; the working tree is only read.
set -euo pipefail
python=${1:?usage: check.sh PYTHON}
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
buf=$(dirname "$python")/buf
oldest=$(dirname "$(dirname "$python")")/oldest
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
# Containers often run as another user than the one who checked out.
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0="*"

fail() {
  echo "protos: $1" >&2
  failed=1
}

# The protos without what builds may have left beside them.
now=$work/now
mkdir "$now"
find frugalads -name '*.proto' -print0 | tar -c --null -T - buf.yaml | tar -x -C "$now"

(cd "$now" && "$buf" lint) || fail "the protos break the lint rules of protos/buf.yaml"

mkdir "$work/fresh" "$work/kept"
./generate.sh "$python" "$work/fresh"
find frugalads \( -name '*_pb2*.py' -o -name '*_pb2*.pyi' \) -print0 | tar -c --null -T - | tar -x -C "$work/kept"
(cd "$work" && diff -r --brief kept fresh) || fail "the stubs are stale: run 'make protos' and commit them"

# Compares with one commit; skips, and says why, only when there is nothing to compare with.
compare() {
  local what=$1 commit=$2 against
  against=$work/against-$commit
  [[ -e $against ]] && return
  if ! git cat-file -e "$commit:${prefix}buf.yaml" 2>/dev/null; then
    echo "protos: no comparison with $what: it has no protos"
    return
  fi
  mkdir "$against"
  git -C "$(git rev-parse --show-toplevel)" archive --format=tar "$commit:${prefix%/}" | tar -x -C "$against"
  (cd "$now" && "$buf" breaking --against "$against") || fail "breaking changes against $what ($commit)"
}

if prefix=$(git rev-parse --show-prefix) && head=$(git rev-parse --verify --quiet HEAD); then
  if [[ $(git rev-parse --is-shallow-repository) == true ]]; then
    GIT_TERMINAL_PROMPT=0 timeout 120 git fetch --quiet --unshallow --tags ||
      echo "protos: this clone is shallow and its history cannot be fetched"
  fi
  compare "the last commit" "$head"
  if previous=$(git rev-parse --verify --quiet HEAD^); then
    compare "the commit before" "$previous"
    if tag=$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null); then
      compare "tag $tag" "$(git rev-parse "$tag^{commit}")"
    else
      echo "protos: no comparison with the last tag: there is none before this commit"
    fi
  else
    echo "protos: no comparison with the commit before: this history starts here"
  fi
else
  echo "protos: no comparison with earlier versions: there are no commits"
fi

# mypy-protobuf itself needs a newer protobuf than the oldest that the client supports, hence the folder.
PYTHONPATH=.:$oldest PYTHONDONTWRITEBYTECODE=1 "$python" - <<'SMOKE' || fail "the client does not work on the oldest supported versions"
import re
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path

for requirement in tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]:
    name, oldest = re.match(r"([a-z]+)>=([0-9.]+)", requirement).groups()
    assert f"{version(name)}.".startswith(f"{oldest}."), f"{requirement} is checked with {version(name)}"

import grpc

from frugalads.client import Client, InvalidArgumentError
from frugalads.eviction.v1 import eviction_pb2_grpc
from frugalads.inference.v1 import inference_pb2_grpc
from frugalads.retrieval.v1 import retrieval_pb2_grpc
from frugalads.scoring.v1 import scoring_pb2, scoring_pb2_grpc


class Echo(scoring_pb2_grpc.ScoringServiceServicer):
    def RankAds(self, request, context):
        if request.slots < 1:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "slots")
        return scoring_pb2.RankAdsResponse(request_id=request.query)


server = grpc.server(ThreadPoolExecutor(1))
scoring_pb2_grpc.add_ScoringServiceServicer_to_server(Echo(), server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
with Client(f"127.0.0.1:{port}") as client:
    assert client.rank_ads("toner").request_id == "toner"
    try:
        client.rank_ads("toner", slots=0)
    except InvalidArgumentError as error:
        assert error.message == "slots"
    else:
        raise AssertionError("no error")
server.stop(None).wait()
SMOKE

((failed)) || echo "protos: lint, stubs, compatibility and client are in order"
exit "$failed"
