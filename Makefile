# Everything a newcomer needs is one word after `make`. Only Python >= 3.11 and make are assumed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed

.PHONY: run test pytest lint types imports demo bench bench-quick docs clean

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing headgate into .venv (once; about a minute)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,testing]" --group dev
	@touch $@

run: $(STAMP)
	@$(BIN)/headgate serve

# More workers than cores: half of what the tests do is wait for servers. PROFILE=thorough tries more examples.
WORKERS ?= 4
PROFILE ?= quick

test: lint
	@$(MAKE) --no-print-directory --jobs types imports pytest

pytest: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --durations 10 \
	  --hypothesis-profile $(PROFILE)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

demo: $(STAMP)
	@$(BIN)/headgate demo

.venv/peers: $(STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --group peers
	@touch $@

bench: .venv/peers
	$(BIN)/python -m benchmarks

bench-quick: .venv/peers
	$(BIN)/python -m benchmarks --quick

docs: $(STAMP)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "read site/index.html, or with search: $(BIN)/python -m http.server -d site 8000"

clean:
	rm -rf .venv build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
