# Everything a newcomer needs is one word after `make`. Only Python >= 3.11 and make are assumed.
# Each Python version has its own environment: `make test PYTHON=python3.13`, in .venv-python3.13.
# Unless one is named, .venv is made with python3, or with a quicker build of its version (scripts/optimized_python.py).
PYTHON ?= python3
VENV ?= $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
# pyenv runs only selected versions; select all that are installed, so that the one named here is found.
CHOSEN = $(if $(filter python3,$(PYTHON)),,PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | paste -sd: -)")
INTERPRETER = $(if $(filter file,$(origin PYTHON)),"$$(python3 scripts/optimized_python.py)",$(CHOSEN) $(PYTHON))

# The compiled modules are kept, whatever the environment: else each of hundreds of processes would compile them again.
unexport PYTHONDONTWRITEBYTECODE

NPM := $(shell command -v npm)
JAVASCRIPT := .venv/javascript
CONSOLE := src/paceline/server/console/static apps/*/src/*/service/console

.PHONY: run test quick-tests test-rest installed lint blocking javascript no-javascript types imports demo bench bench-quick simulate \
  sms-matrix torture joint-processes scale gameday mutation docs pictures sbom lock clean

# uv takes seconds where pip takes a minute, and is told of pip's settings in the environment. pip itself is asked where
# uv finds no packages: it may know of an index from a file of its own.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
UV = $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX="$(PIP_INDEX_URL)") $(if $(PIP_FIND_LINKS),UV_FIND_LINKS="$(PIP_FIND_LINKS)") \
  $(if $(PIP_CERT),SSL_CERT_FILE="$(PIP_CERT)") $(BIN)/uv pip install --quiet --python $(BIN)/python
PROJECTS := packages/queue apps/payments apps/sms
NEEDED := -e ".[all,testing]" $(addprefix -e ,$(PROJECTS)) --group dev
install = $(UV) -c constraints.txt $(1) || { $(PIP) "pip>=25.1" && $(PIP) -c constraints.txt $(1); }

$(STAMP): pyproject.toml $(PROJECTS:=/pyproject.toml) constraints.txt
	@test -x $(BIN)/python || $(INTERPRETER) -m venv $(VENV)
	@echo "installing paceline into $(VENV), $$($(BIN)/python --version) (once; up to a minute)"
	@$(PIP) -c constraints.txt uv
	@$(call install,$(NEEDED))
	@touch $@

run: $(STAMP)
	@$(BIN)/paceline serve

# `make test` is the quick tier; `make test-rest` runs the tests that it leaves out (marked `full`: tests/conftest.py).
# PROFILE=thorough tries all examples of the property tests, and every combination.
WORKERS ?= 4
PROFILE ?= quick
TESTS = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --durations 10 --hypothesis-profile $(PROFILE)

test:
	@$(MAKE) --no-print-directory --jobs installed
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory --jobs types imports quick-tests

quick-tests: $(STAMP)
	$(TESTS) -m "not full"

test-rest: $(STAMP)
	$(TESTS) -m full

# What the tests need, at the same time if there are --jobs.
installed: $(STAMP) $(if $(NPM),$(JAVASCRIPT)/installed)

lint: $(STAMP) $(if $(NPM),javascript,no-javascript)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/generate_blocking.py --check

# Limiter and the Redis client for threads are generated from the forms for event loops.
blocking: $(STAMP)
	@$(BIN)/python scripts/generate_blocking.py

# The console's JavaScript: undeclared names, unused ones, layout, types. The tools are pinned, and depend on next to
# nothing else, so there is no lock file.
$(JAVASCRIPT)/installed: tests/javascript/package.json
	@mkdir -p $(JAVASCRIPT)
	@cp tests/javascript/package.json $(JAVASCRIPT)/
	@npm install --prefix $(JAVASCRIPT) --no-package-lock --no-audit --no-fund --loglevel error
	@touch $@

javascript: $(JAVASCRIPT)/installed
	$(JAVASCRIPT)/node_modules/.bin/biome check --config-path=tests/javascript --error-on-warnings $(addsuffix /*.js,$(CONSOLE))
	$(JAVASCRIPT)/node_modules/.bin/tsc --project tests/javascript

no-javascript:
	@test "$(PACELINE_REQUIRE)" != all || { echo "PACELINE_REQUIRE=all needs npm, to check the console's JavaScript" >&2; exit 1; }
	@echo "npm is not installed: the console's JavaScript is not checked"

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

demo: $(STAMP)
	@$(BIN)/paceline demo --chaos

$(VENV)/peers: $(STAMP)
	@$(call install,--group peers)
	@touch $@

# Stores what it measured in benchmarks/results and fills README and docs with it. One table alone: BENCH=slots.
BENCH ?=

bench: $(VENV)/peers
	$(BIN)/python -m benchmarks --write $(BENCH)

bench-quick: $(VENV)/peers
	$(BIN)/python -m benchmarks --quick

$(VENV)/mutation: $(STAMP)
	@$(call install,--group mutation)
	@touch $@

# Mutants of the modules that decide (tests/mutation): a test must notice each. One module alone: MODULE=limits/chain.py.
MODULE ?=

mutation: $(VENV)/mutation
	@$(BIN)/python -m tests.mutation $(MODULE)

# A hundred million a day, simulated with the service times that `make bench` stored: tables and pictures of scale.md.
scale: $(STAMP)
	@$(BIN)/python -m benchmarks.scale

# Temporal's real server, two processes on PostgreSQL. The first run builds it with Go, which takes minutes, into
# ~/.cache/paceline; it needs a PostgreSQL with the extension btree_gin, such as Debian's package postgresql.
.PHONY: cluster-test cluster-bench

cluster-test: $(STAMP)
	$(BIN)/python -m pytest tests/cluster

cluster-bench: $(VENV)/peers
	$(BIN)/python -m benchmarks.temporal_cluster

# Seeds that the check does not run: for MINUTES, from FIRST on. It stops at the first that fails, and prints how to
# replay it.
MINUTES ?= 60
FIRST ?= $(shell date +%s)

simulate: $(STAMP)
	$(BIN)/python -m tests.simulation --minutes $(MINUTES) --first $(FIRST)

# Every alert of deploy/prometheus, fired by its real fault on real servers, and cleared; about two minutes. It needs
# Prometheus, which Debian packages under that name. SITE=workers runs one site: outages (PostgreSQL, Redis), workers
# (SQLite alone: the one that the check runs), callers, or brokers (PostgreSQL, Kafka, Temporal: the longest).
SITE ?=

gameday: $(STAMP)
	GRPC_VERBOSITY=ERROR $(BIN)/python -m tests.gameday $(addprefix --site ,$(SITE))

# Every message log with every fault of an SMS provider, and senders killed meanwhile: about half an hour at SCALE=1.
SCALE ?= 1

sms-matrix: $(STAMP)
	$(BIN)/python -m tests.faults.sms_matrix --scale $(SCALE)

# Everything at once on real servers, with faults that SEED plans: for MINUTES. Logs, report and picture go to build/torture.
SEED ?= $(shell date +%s)
# Where limits, permits and quotas are counted: redis, or database.
STORES ?= redis

torture: MINUTES = 5
torture: $(STAMP)
	$(BIN)/python -m tests.torture --minutes $(MINUTES) --seed $(SEED) --stores $(STORES)

# Eight processes that book, cancel, change and re-plan configs, for SECONDS; one of them is killed.
SECONDS ?= 60

joint-processes: $(STAMP)
	PACELINE_TEST_JOINT_SECONDS=$(SECONDS) $(BIN)/pytest -q tests/faults/test_joint_processes.py -o log_cli=true -o log_cli_level=INFO

docs: $(STAMP)
	@$(BIN)/python -m zensical build --clean --strict
	@echo "read site/index.html, or with search: $(BIN)/python -m http.server -d site 8000"

# The console's pictures in README and docs, from a service with made-up data; needs Chromium.
pictures: $(STAMP)
	@$(BIN)/python -m scripts.pictures

# What paceline[all] installs: as a bill of materials, and as versions with the hashes of their files.
sbom: $(STAMP)
	@$(BIN)/python scripts/sbom.py sbom.json
	@echo "wrote sbom.json (CycloneDX)"

lock: $(STAMP)
	@printf '%s\n' '.[all]' $(addprefix ./,$(PROJECTS)) | $(BIN)/uv --quiet pip compile - --no-emit-package paceline \
	  $(addprefix --no-emit-package paceline-,$(notdir $(PROJECTS))) --constraints constraints.txt --generate-hashes --universal \
	  --python-version 3.11 --no-header --no-annotate --output-file requirements.lock > /dev/null

clean:
	rm -rf .venv .venv-* build dist site .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
