# Everything a fresh machine needs: `make demo` and `make test` set up by themselves.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo bench test pytest soak soak-again lint docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "debgcd needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/debgcd demo

bench: setup
	$(BIN)/python benchmarks/performance.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

PYTEST_MORE ?=
PYTEST := $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder $(PYTEST_MORE)

# one case of each kind, and the linters beside them
test: setup
	@$(MAKE) --no-print-directory -j2 lint pytest

pytest: setup
	$(PYTEST)

# every case: kills and faults at every step, 10 000 damaged inputs per reader, others each time; what was tried goes into a page
SOAK := DEBGCD_SOAK=1 DEBGCD_FUZZ=10000 FAULTS=docs/reliability.md $(PYTEST)

soak: setup
	$(SOAK)

# only what failed, after it was mended; the page is that of both
soak-again: setup
	$(SOAK) --lf --lfnf none

# the site, from README.md and docs/, in build/site; nothing is downloaded but its tools
docs: .venv/.docs
	$(BIN)/python docs/site.py

.venv/.docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info demo-run .pytest_cache .mypy_cache .ruff_cache .hypothesis
