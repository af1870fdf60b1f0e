# make report   reproduce the study, audit the real keep masks, write the page: report/index.html
# make test     all tests
# make bench    benchmarks: bench/bench.md
# make lint     style and types
# Each makes the virtual environment that it needs, .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: report test bench lint

report: $(VENV)/report.stamp
	$(BIN)/kvreclaim reproduce --out report --jobs 2
	$(BIN)/kvreclaim audit examples/masks/*.npz --out report/real-masks
	$(BIN)/kvreclaim page report report/real-masks --out report/index.html

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks --out bench

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("kvreclaim needs Python 3.11 or newer, got " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/report.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[report]'
	touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) --editable '.[dev]'
	touch $@
