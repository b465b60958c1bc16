# What people and CI run. `make help` lists the targets.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := train,hf,pettingzoo,openai-agents,langgraph,pydantic-ai

.DEFAULT_GOAL := help
.PHONY: help demo demo-all test test-peers check format bench clean

help:  ## Lists the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# pip compiles what it installs on one core, file by file; this does it on all.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

# The training example needs the product and torch alone; the tests need every framework and tool besides.
$(VENV)/.demo: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[train]'
	$(COMPILE)
	@touch $@

$(VENV)/.test: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS)]' --group dev
	$(COMPILE)
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo  ## Trains two served agents together, prints a table, writes a plot (about 6 minutes)
	$(BIN)/python examples/multiagent/signals/train.py $(DEMO)

# TRL and the small language model want packages that the product's own do not go with: a virtual environment each.
EXAMPLES := examples/multiagent

.venvs/%/.product: tests/peers/venvs.toml $(VENV)/.test
	$$($(BIN)/python tests/peers/venvs.py $*) -m pip install --quiet --no-deps -e .
	@touch $@

demo-all: $(VENV)/.test .venvs/trl/.product .venvs/smollm/.product  ## Runs every example in full, one after another
	$(BIN)/python $(EXAMPLES)/signals/train.py
	$(BIN)/python $(EXAMPLES)/delegation/train.py
	$(BIN)/python $(EXAMPLES)/duel/train.py
	.venvs/trl/bin/python $(EXAMPLES)/trl/train.py
	.venvs/smollm/bin/python $(EXAMPLES)/smollm/evaluate.py
	.venvs/smollm/bin/python $(EXAMPLES)/smollm/train.py

test: $(VENV)/.test  ## Runs all checks and tests (12 minutes at most)
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test

test-peers: $(VENV)/.test  ## Runs the tests with other projects' packages, each in a venv of its own, and the long ones
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/test-peers

check: $(VENV)/.test  ## Runs the checks alone: style, types, arrows
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/check

format: $(VENV)/.test  ## Formats the code
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

bench: $(VENV)/.test  ## Runs the benchmarks
	for bench in benchmarks/[a-z]*.py; do $(BIN)/python $$bench || exit 1; done

clean:  ## Removes the virtual environments and what the tools left
	rm -rf $(VENV) .venvs .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
