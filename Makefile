# On a fresh clone, `make demo` and `make test` need nothing but Python 3.10+ and a package index.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Two test processes on two cores: one thread each.
test test-all: export OMP_NUM_THREADS = 1

.PHONY: demo test test-all lint browser clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(STAMP)
	$(BIN)/nearsight demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser:
	scripts/install_chromium.sh

test: lint browser
	$(BIN)/pytest -n 2 --dist loadfile

test-all: lint browser
	$(BIN)/pytest -n 2 --dist loadfile -m ""

clean:
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache
