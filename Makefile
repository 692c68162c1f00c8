# Every target does the set-up it needs; a machine with Python 3.11+ and make is enough.
# `make` alone lists the targets: the text after ## is their help.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-stamp
PYTHON ?= python3
UV ?= $(shell command -v uv 2>/dev/null)
PYTEST_ARGS ?=

# Debian packages that tests call. None so far: whoever adds a test with require_program() adds its package here.
DEBIAN_PACKAGES :=

.PHONY: help setup setup-system demo test test-full lint format protos bench bench-sessions reproduce lock dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with the locked tools and this project; does nothing when it is up to date

# Locked versions with hashes first; then the project itself, editable, with the locked setuptools as its builder.
$(STAMP): requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make setup PYTHON=python3.12" >&2; exit 1; }
ifneq ($(UV),)
	test -x $(BIN)/python || $(UV) venv --quiet --python $(PYTHON) $(VENV)
	$(UV) pip install --quiet --python $(BIN)/python --require-hashes -r requirements/dev.txt
	$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .
else
	@$(BIN)/python -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || { $(install-venv-module); }
	$(BIN)/python -m pip install -qq --disable-pip-version-check --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-deps --no-build-isolation -e .
endif
	@touch $@

# Debian ships Python without its venv module: fetch it where we may, say what is missing where we may not.
define install-venv-module
  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
    apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv --clear $(VENV); \
  else \
    echo "python3 -m venv does not work here; on Debian: apt-get install python3-venv" >&2; exit 1; \
  fi
endef

setup-system: ## install the Debian packages that tests call
ifeq ($(strip $(DEBIAN_PACKAGES)),)
	@echo "Nothing to install: no test calls a program from a Debian package yet."
else
	apt-get update -qq && apt-get install -y -qq $(DEBIAN_PACKAGES)
endif

demo: setup ## show the store at work: three real replicas, a message held and explained, a kill -9
	$(BIN)/kvstore demo

test: setup ## run everything quick, with a time budget for each folder; PYTEST_ARGS="-k word" selects
	$(BIN)/python -m pytest tests $(PYTEST_ARGS)

test-full: setup ## run everything, the tests marked `long` too
	$(BIN)/python -m pytest tests --long $(PYTEST_ARGS)

lint: setup ## check style, format and types; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code

protos: setup ## make the Python code of the protos again
	$(BIN)/python protos/generate.py

format: setup ## put the code into the format that lint asks for
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

bench: setup ## measure three replicas on this machine: puts a second, latency, CPU a put (`causal bench`: the protocols)
	$(BIN)/python -m loadtests.bench

bench-sessions: setup ## measure what sessions cost: bytes and microseconds of a token, gets with and without
	$(BIN)/python -m loadtests.session_bench

reproduce: setup ## draw the figures and tables of the docs again
	for example in docs/examples/*.jsonl; do \
	  $(BIN)/causal replay $$example --diagram docs/figures/$$(basename $$example .jsonl).svg >/dev/null || exit 1; \
	done
	$(BIN)/causal compare --out docs/figures/compare
	rm -f docs/figures/compare/*.png
	$(BIN)/causal bench

# Only the pins and their hashes go into the locks: no registry, no path of the machine that compiled them.
LOCK := CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras \
  --allow-unsafe --no-emit-index-url --no-emit-find-links --no-emit-trusted-host

lock: setup ## compile requirements/*.in into requirements/*.txt again, with the newest versions
	$(LOCK) --output-file requirements/base.txt requirements/base.in
	$(LOCK) --output-file requirements/dev.txt requirements/dev.in

dist: setup ## build the wheel and the source archive into dist/
	$(BIN)/python -m build --no-isolation --outdir dist

clean: ## remove the environment, caches and builds
	rm -rf $(VENV) build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
