# Everything runs in .venv, which is made on first use. PYTHON chooses the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# Test processes side by side; each of them uses one thread.
JOBS ?= 2
STAMP := $(VENV)/.installed

# Threads that spin while they wait starve everything else on a small machine.
export GOMP_SPINCOUNT ?= 0
# The same hash seed makes generated test cases the same ones in every run.
export PYTHONHASHSEED ?= 0

.PHONY: install demo test check lint types equality bench docs format clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e '.[dev]' -c constraints.txt
	@touch $@

demo: $(STAMP)
	$(PY) -m paceline.bench.demo

test: $(STAMP)
	$(PY) -m pytest -m "not grid" -n $(JOBS)

lint: $(STAMP)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(STAMP)
	$(PY) -m mypy

check: lint types test

# The whole grid of drafters, sampling, batches, chunk sizes and depths against the plain loop. Takes long.
equality: $(STAMP)
	$(PY) -m pytest tests/equality -n $(JOBS)

bench: $(STAMP)
	$(PY) -m paceline bench decode

# The pages that are made from the code.
docs: $(STAMP)
	$(PY) -m paceline.cli.flags_page > docs/flags.md.new
	mv docs/flags.md.new docs/flags.md

format: $(STAMP)
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

clean:
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +
