# On a fresh clone, `make demo` and `make test` need nothing but Python 3.10+ and a package index.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

# Two test processes on two cores: one thread each.
test test-all: export OMP_NUM_THREADS = 1

# Tests that reach every dependency; all of them would take as long again, to test what does not depend on versions.
OLDEST_TESTS := tests/test_start.py tests/test_floors.py tests/recipes tests/runs tests/weights tests/images/test_decode.py \
	tests/datasets/test_open_files.py tests/models/test_weights.py tests/classification/test_strangers_settings.py \
	tests/explorer/test_server.py tests/explorer/test_hostile.py

.PHONY: demo test test-all test-oldest fuzz lint browser clean

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

# In an environment of its own, with the oldest versions that pyproject.toml allows (Python 3.11 and 3.12). Old versions
# warn of what newer ones have changed since: here a warning is no error.
test-oldest:
	test -x .venv-oldest/bin/python || $(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check packaging
	.venv-oldest/bin/python scripts/oldest_versions.py parquet coco explorer > .venv-oldest/oldest.txt
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check -c .venv-oldest/oldest.txt \
		-e ".[parquet,coco,explorer]" pytest pytest-timeout pytest-xdist hypothesis httpx2
	OMP_NUM_THREADS=1 .venv-oldest/bin/pytest -n 2 --dist loadfile -o filterwarnings=default $(OLDEST_TESTS)

# Damaged files for every reader, CASES for each, with fresh random numbers; prints how many there were.
CASES ?= 10000
fuzz: $(STAMP)
	NEARSIGHT_FUZZ_CASES=$(CASES) $(BIN)/pytest -q -s --timeout 0 tests/untrusted/test_fuzz.py

clean:
	rm -rf .venv .venv-oldest build dist .pytest_cache .mypy_cache .ruff_cache
