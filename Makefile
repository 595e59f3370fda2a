# `make demo` and `make test` need nothing but Python 3.11 or newer.
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3; do \
	if command -v $$name >/dev/null && $$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo $$name; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PEERS := $(VENV)/.peers
BENCH ?=

.PHONY: help demo test lint long bench docs clean

help: ## what can be made
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Milepost needs Python 3.11 or newer, and none was found; set PYTHON=/path/to/python."; exit 1; }
	@echo "Setting up $(VENV) (a minute or two, once) …"
	@$(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY) ## train a tiny Llama, kill it twice, resume, compare bit for bit
	@$(BIN)/python examples/demo.py

lint: $(READY) ## style, types, import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: lint ## lint, then every test but the long ones
	@$(BIN)/python -m pytest

long: $(READY) ## the long tests too (MILEPOST_TEST_DATA names a folder with real data)
	@$(BIN)/python -m pytest -m "long or not long"

$(PEERS): $(READY)
	@echo "Installing what saving is compared with …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $@

bench: $(PEERS) ## what saving costs, beside other tools and the limits (BENCH=--quick: two minutes instead of hours)
	@$(BIN)/python -m benchmarks.saving $(BENCH)
	@$(BIN)/python benchmarks/step_cost.py
	@$(BIN)/python benchmarks/listing.py

docs: $(READY) ## check that links in the documents lead somewhere and their Python compiles
	@$(BIN)/python -m pytest -q tests/house/test_docs.py

clean: ## remove what was built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache demo-runs
