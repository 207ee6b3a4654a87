# Everything runs in .venv, made on first need under the exact versions of constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-all bench docs clean

$(STAMP): pyproject.toml setup.py constraints.txt
	@echo "Setting up .venv (once) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	@$(BIN)/arboretum demo

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 -m "not heavy"

test-all: $(STAMP)
	@$(BIN)/python -m pytest -n 2

bench: $(STAMP)
	@$(BIN)/arboretum bench worlds

clean:
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
