# fedneighbors: `make` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
FEDNEIGHBORS_DATA ?= $(abspath ../shared/data)
export FEDNEIGHBORS_DATA
# Processes of tests start faster with compiled modules, also where this is set.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[report]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $@ $(VENV)/.demo

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@

$(VENV)/.servers: tests/service/install-servers.sh $(BIN)/python
	tests/service/install-servers.sh
	@touch $@

.PHONY: demo
demo: $(VENV)/.demo ## Install, train on real digits over 8 parties, write a report
	$(BIN)/fedneighbors demo

.PHONY: install
install: $(VENV)/.test $(VENV)/.servers ## Install everything that tests and benchmarks need

.PHONY: lint
lint: $(VENV)/.test ## Format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Three workers for two cores, as one mostly waits for nodes of Flower. tests/conftest.py says which
# tests share a worker, and which start first. One thread in each, as threads of several workers
# wait for each other.
.PHONY: test
test: lint $(VENV)/.servers ## Everything that must pass: lint, unit tests, doctests, end-to-end tests
	$(BIN)/fedneighbors warmup
	OMP_NUM_THREADS=1 $(BIN)/pytest -q --numprocesses 3 --dist loadscope --no-loadscope-reorder -m "not slow"

.PHONY: test-slow
test-slow: $(VENV)/.test ## The long campaigns, and every test of random cases with three times the cases
	FEDNEIGHBORS_ALL_CASES=1 $(BIN)/pytest -q -m "slow or hypothesis"

.PHONY: docs
docs: $(VENV)/.docs ## The documentation site, in docs/_build/html; a warning is an error
	MPLBACKEND=Agg $(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html

.PHONY: coverage
coverage: $(VENV)/.test ## Line coverage of the kernels, run as plain Python where they can be
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run --source=src/fedneighbors/kernels -m pytest -q \
	  tests/kernels/flyhash/test_bloom.py tests/kernels/test_exactsum.py
	$(BIN)/coverage report --show-missing

.PHONY: benchmark
benchmark: $(VENV)/.test ## Speed of the training kernels against their peers, in one run
	$(BIN)/python benchmarks/flyhash.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/noise.py
	$(BIN)/python benchmarks/secagg.py
	$(BIN)/python benchmarks/synthesis.py
	$(BIN)/python benchmarks/evolving.py
	$(BIN)/python benchmarks/pnn.py
	$(BIN)/python benchmarks/clients.py
	$(BIN)/python benchmarks/partitions.py

.PHONY: benchmark-search
benchmark-search: $(VENV)/.test ## Speed of nearest-neighbour search against its peers, in one run
	for name in vectors places sets edit ged bitonic counts; do \
	  $(BIN)/python benchmarks/$$name.py || exit 1; \
	done

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache fedneighbors-demo \
	  docs/_build docs/auto_examples docs/auto_tutorials docs/reference/generated docs/reference/command-line.md
