# The front door. Every target sets up .venv by itself when that is needed.

PYTHON ?= python3
# Tests of servers and processes wait for a third of their time, so two cores take three at once.
JOBS ?= 3
ARGS ?=
TRACES ?= ../shared/traces

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
LOCKS := requirements/build.txt requirements/dev.txt

# What `make lock` uses: the resolver, and what an editable install without build isolation needs.
UV_VERSION := 0.13.7
BUILD_REQUIRES := 'hatchling>=1.27' editables
# What `make test-floors` and `make test-newest` run: something of every dependency, in about a minute.
# Warnings of other versions are theirs, and so are the flags of XLA that they know.
FLOORS := .venv-floors
NEWEST := .venv-newest
FLOOR_TOOLS := 'pytest>=8.3' 'pytest-timeout>=2.3' 'hypothesis>=6.100' 'beartype>=0.22' 'jaxtyping>=0.3.6'
QUIETLY := -q -o filterwarnings=ignore -p no:cacheprovider
QUICK_TESTS := tests/test_public.py tests/test_floors.py tests/cli/test_run.py tests/cli/test_fit.py \
	tests/cli/test_backtest.py::test_a_table_and_what_is_written \
	tests/engine/test_montecarlo.py::test_progress_counts_every_trial \
	tests/engine/test_cluster.py::test_an_error_in_a_worker_is_passed_on \
	tests/report/test_plots.py tests/envs/test_environments.py tests/privacy/test_noise.py \
	tests/service/server/test_routes.py tests/service/store/test_database.py \
	tests/service/helper/test_processes.py

COMPILE := pip compile --no-config --quiet --universal --python-version 3.11 \
	--fork-strategy fewest --generate-hashes --no-header --no-annotate

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup arena reproduce docs-numbers check test test-slow test-floors test-newest bench bench-gpu shape changelog format lock clean crash load liar traces year

help:  ## Show this list
	@echo "usage: make TARGET [ARGS='options for the command'] [PYTHON=python3.11]"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP)  ## Create or refresh .venv with the locked dependencies and this package

$(STAMP): pyproject.toml $(LOCKS)
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
		echo "error: '$(PYTHON)' not found; name a Python >= 3.11 with make PYTHON=/path/to/python3" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "error: Python >= 3.11 is needed, but '$(PYTHON)' is $$($(PYTHON) -V 2>&1);" \
			"name another with make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "error: '$(PYTHON)' lacks venv or ensurepip (on Debian: apt install python3-venv)" >&2; \
		exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/build.txt -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

reproduce: setup  ## Run the paper's studies and write the report to results/paper
	$(BIN)/rmab reproduce --out results/paper $(ARGS)

arena: setup  ## Run every policy on every problem and write the page to results/arena
	$(BIN)/rmab arena --out results/arena $(ARGS)

docs-numbers: setup  ## Measure what the documents say and write it into them (ARGS=--list, --render)
	$(BIN)/python -m benchmarks.documents $(ARGS)

check: setup  ## Check formatting, lint, types and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## Run the checks, then the default test suite
	@tests/install-tools
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -q $(ARGS)

test-slow: setup  ## Run the tests that the default suite leaves out for their length
	$(BIN)/python -m pytest -m slow $(ARGS)

test-floors: $(FLOORS)/.stamp  ## Run quick tests with the lowest version of each dependency that is allowed
	XLA_FLAGS= OPENBLAS_NUM_THREADS=1 $(FLOORS)/bin/python -m pytest $(QUIETLY) $(QUICK_TESTS) $(ARGS)

$(FLOORS)/.stamp: pyproject.toml requirements/build.txt requirements/floors.txt
	$(PYTHON) -m venv --clear $(FLOORS)
	$(FLOORS)/bin/python -m pip install --quiet --require-hashes -r requirements/build.txt
	$(FLOORS)/bin/python -m pip install --quiet --require-hashes -r requirements/floors.txt
	$(FLOORS)/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@touch $@

test-newest:  ## Run them with the newest versions of today (PYTHON=python3.13 for another Python)
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet -c requirements/constraints.txt $(FLOOR_TOOLS) -e '.[all]'
	XLA_FLAGS= OPENBLAS_NUM_THREADS=1 $(NEWEST)/bin/python -m pytest $(QUIETLY) $(QUICK_TESTS) $(ARGS)

bench: setup  ## Measure what things cost and write docs/benchmarks.md
	$(BIN)/python -m benchmarks.bench $(ARGS)

bench-gpu: setup  ## Measure the GPU's part of that page, where there is a GPU
	$(BIN)/python -m benchmarks.bench gpu $(ARGS)

shape: setup  ## Print the shape of the source: walks, closures, parameters, names, words
	$(BIN)/python -m benchmarks.shape $(ARGS)

changelog: setup  ## Show the next section of CHANGELOG.md, made of the fragments in changes/
	$(BIN)/towncrier build $(or $(ARGS),--draft --version next)

format: setup  ## Format the code and apply the safe lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## Re-compile the lock files (ARGS=--upgrade for newer versions)
	@set -eu; \
	tmp=$$(mktemp -d); trap 'rm -rf "$$tmp"' EXIT; \
	$(PYTHON) -m venv "$$tmp"; \
	"$$tmp/bin/python" -m pip install --quiet uv==$(UV_VERSION); \
	"$$tmp/bin/uv" $(COMPILE) $(ARGS) -c requirements/constraints.txt --extra all --extra dev pyproject.toml -o requirements/dev.txt; \
	printf '%s\n' $(BUILD_REQUIRES) \
		| "$$tmp/bin/uv" $(COMPILE) $(ARGS) -c requirements/dev.txt - -o requirements/build.txt; \
	printf '%s\n' $(FLOOR_TOOLS) | "$$tmp/bin/uv" $(COMPILE) --resolution lowest-direct \
		-c requirements/constraints.txt --extra all pyproject.toml - -o requirements/floors.txt
	@echo "wrote $(LOCKS) requirements/floors.txt"

clean:  ## Remove .venv, caches and built packages; results/ stays
	rm -rf $(VENV) $(FLOORS) $(NEWEST) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

crash: setup  ## Kill a server 1,000 times under load and look for what was lost
	$(BIN)/python -m tests.slow.crash $(ARGS)

liar: setup  ## Measure what one agent that lies costs, with and without the server's remedies
	$(BIN)/python -m benchmarks.liar $(ARGS)

load: setup  ## Measure uploads a second, overload and a thousand agents at once
	$(BIN)/python -m benchmarks.load $(ARGS)

traces: setup  ## Run policies on measured traces (TRACES=DIR) and write the tables of docs/traces.md
	$(BIN)/python -m benchmarks.documents --from $(TRACES) $(or $(ARGS),traces.md)

year: setup  ## Measure how large the database of 1,000 agents is over a year
	$(BIN)/python -m benchmarks.year $(ARGS)
