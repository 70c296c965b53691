# Two commands do everything: `make demo` and `make test`. Each builds the environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all check docs audit airflow nightly papers papers-nightly bench clean

demo: $(VENV)/.demo
	$(BIN)/dpscale demo

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not (slow or airflow or rest)"

test-all: $(VENV)/.test
	$(BIN)/python -m pytest -n 4 --dist loadfile

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/lint-imports
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -W --keep-going --quiet -b html docs build/docs

audit: $(VENV)/.test
	$(BIN)/python -m pytest tests/audit -m "slow or not slow"

airflow: $(VENV)/.test
	$(BIN)/python -m pytest tests/pipelines -m "airflow and not slow"

nightly: $(VENV)/.test
	$(BIN)/python -m pytest -n 3 --dist loadfile --hypothesis-profile fresh -m "slow or airflow or not slow"

papers: $(VENV)/.test
	$(BIN)/python benchmarks/papers.py all

papers-nightly: $(VENV)/.test
	$(BIN)/python benchmarks/papers.py aim-grem --nightly

bench: $(VENV)/.test
	$(BIN)/python -m pip install --quiet ".[bench]"
	$(BIN)/python benchmarks/main_job.py
	$(BIN)/python benchmarks/noise.py

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	touch $@

$(VENV)/.test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e ".[test]"
	touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.test
	$(BIN)/python -m pip install --quiet -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) dpscale-demo build/docs
