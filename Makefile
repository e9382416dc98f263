# make setup, demo, test, test-floor, lint, bench, clean. Needs only Python 3.11+ and make; everything else goes into .venv.

PYTHON ?= python3
PYTEST_ARGS ?=
# The transformers release that `make test-floor` tests with, and a hub client that every release from there on accepts.
FLOOR ?= 5.16.1
FLOOR_HUB = 1.33.0

BIN = .venv/bin
READY = .venv/.loopcd-ready
FLOOR_READY = .venv-floor/.loopcd-ready-$(FLOOR)

define make_venv
test -x $(1)/bin/pip || { \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "loopcd needs Python 3.11 or newer, as in: make setup PYTHON=python3.11" >&2; exit 1; }; \
	$(PYTHON) -m venv $(1); }
endef

# The constraints reach the build backend too: pip hands it the environment, not the option (and newer pips read the second name).
pip_install = PIP_CONSTRAINT=$(2) PIP_BUILD_CONSTRAINT=$(2) PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(1)/bin/python -m pip install -qq -c $(2) -e ".[dev,eval,plots]" && \
	$(1)/bin/python -m pip install -qq --no-deps -c $(2) $(evalplus)
# EvalPlus without the clients of paid services that it also asks for: grading needs none of them.
evalplus = evalplus appdirs tempdir wget termcolor tree-sitter tree-sitter-python

# One thread for each of a few workers: torch's own threads would only fight over the cores.
pytest = OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-floor lint bench clean

help:
	@echo "make setup       create .venv and install loopcd with the versions of constraints.txt"
	@echo "make demo        greedy and LoopCD on the built-in model and task: a table, and texts side by side"
	@echo "make test        all tests (PYTEST_ARGS='-k cache' for some of them)"
	@echo "make test-floor  the fast tests on transformers $(FLOOR), in .venv-floor (FLOOR=5.19.0 for another release)"
	@echo "make lint        ruff and pyright"
	@echo "make bench       speed and memory, measured"
	@echo "make clean       remove both environments, caches and build output"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv with the versions of constraints.txt (some minutes the first time) ..."
	@$(call make_venv,.venv)
	@$(call pip_install,.venv,constraints.txt)
	@touch $@

$(FLOOR_READY): pyproject.toml constraints.txt
	@echo "Setting up .venv-floor with transformers $(FLOOR) ..."
	@$(call make_venv,.venv-floor)
	@rm -f .venv-floor/.loopcd-ready-*
	@sed -e 's/^transformers==.*/transformers==$(FLOOR)/' -e 's/^huggingface-hub==.*/huggingface-hub==$(FLOOR_HUB)/' \
		constraints.txt > .venv-floor/constraints.txt
	@$(call pip_install,.venv-floor,.venv-floor/constraints.txt)
	@.venv-floor/bin/python -c 'from importlib.metadata import version as v; assert v("transformers") == "$(FLOOR)", v("transformers")'
	@touch $@

demo: setup
	@test -f src/loopcd/assets/tiny-huginn/config.json || \
		{ echo "The demo runs the built-in model, but src/loopcd/assets/tiny-huginn is not in this tree: fetch the whole repository" >&2; exit 1; }
	@$(BIN)/loopcd eval

test: setup
	@$(call pytest,.venv) $(PYTEST_ARGS)

test-floor: $(FLOOR_READY)
	@$(call pytest,.venv-floor) -m "not slow" $(PYTEST_ARGS)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

bench: setup
	@$(BIN)/loopcd bench

clean:
	rm -rf .venv .venv-floor build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
