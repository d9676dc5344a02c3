# Two commands do everything on a fresh machine: `make audit` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Each test or audit worker is one process with one torch thread: more threads than cores make small models slower, not faster.
export OMP_NUM_THREADS ?= 1
WORKERS ?= 2
# Tests often wait for processes that they started: one more than there are cores keeps the cores busy.
TESTERS ?= 3

.PHONY: setup audit test test-all test-docs test-nvflare lint format docs dist clean
.DEFAULT_GOAL := audit

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

setup: $(VENV)/.ready

# The default federation, and a small one for each kind of leak that it cannot have.
audit: setup
	$(BIN)/fedspill audit --out fedspill-audit --workers $(WORKERS)
	for plan in examples/plans/*.toml; do \
		$(BIN)/fedspill audit $$plan --out fedspill-audit-$$(basename $$plan .toml) --workers $(WORKERS) || exit; \
	done

test: setup
	$(BIN)/python -m pytest -n $(TESTERS)

test-all: $(VENV)/.ready-docs
	$(BIN)/python -m pytest -n $(TESTERS) -m ''

# Every command of the manual as it stands there, its notebooks, the built site and the release: what of their tests is too
# long for `make test`, which has the rest of them. The groups are those of tests that share a site or a wheel.
test-docs: $(VENV)/.ready-docs
	$(BIN)/python -m pytest -n $(TESTERS) --dist loadgroup --no-loadscope-reorder -m slow tests/docs tests/delivery

# NVFlare brings many packages, so it is installed here alone; its tests skip where it is not.
test-nvflare: setup
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[nvflare]'
	$(BIN)/python -m pytest -m '' tests/nvflare

lint: setup
	$(BIN)/ruff check src tests papers benchmarks scripts hatch_build.py
	$(BIN)/ruff format --check src tests papers benchmarks scripts hatch_build.py
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: setup
	$(BIN)/ruff check --fix src tests papers benchmarks scripts hatch_build.py
	$(BIN)/ruff format src tests papers benchmarks scripts hatch_build.py

# The site, into site/. Strict: a warning is an error. Nothing is loaded from elsewhere, now or when it is read.
$(VENV)/.ready-docs: $(VENV)/.ready
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Wheel and sdist, the same bytes from the same commit, with a bill of materials inside.
dist: setup
	$(BIN)/python scripts/sbom.py sbom.cdx.json
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python -m build --no-isolation --outdir dist

clean:
	rm -rf $(VENV) fedspill-audit* dist site sbom.cdx.json
