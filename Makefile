PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export OMP_WAIT_POLICY = PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test test-slow lint bench docs reference clean

demo: $(VENV)/.installed
	$(BIN)/personae demo

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q --numprocesses 2 --dist loadfile

test-slow: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -q -m slow

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/rounds.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/aggregation.py
	$(BIN)/python benchmarks/peak.py
	$(BIN)/python benchmarks/synthetic.py
	$(BIN)/python benchmarks/corrections.py
	$(BIN)/python benchmarks/meta.py
	$(BIN)/python benchmarks/embedding.py --images 64
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/personalized.py
	$(BIN)/python benchmarks/hard_negatives.py
	$(BIN)/python benchmarks/clustering.py
	$(BIN)/python benchmarks/readers.py
	$(BIN)/python benchmarks/network.py rounds --clients 3 10 --megabytes 1

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --nitpicky docs build/docs

reference: $(VENV)/.installed
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@ $(VENV)/.installed
