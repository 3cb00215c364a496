# Everything that a reader runs. Each target sets up what it needs and may be run again; `make help` lists them.
#   make PYTHON=python3.12 test     another Python       make PORT=8080 serve     another port
PYTHON ?= python3
PORT ?= 8000
LOAD ?= --json build/loadtest.json --html build/loadtest.html
RACE ?= --strategy all --buyers 40 --stock 10 --gap 20ms --processes 4
PYTEST ?=
# Tests wait for servers and leases more than they compute: twice as many as a small machine has cores. Each worker
# begins in another folder, so that folders that compute run beside folders that wait; who is done takes from others.
WORKERS ?= 4
# What only test-all runs waits longer: for servers that start, processes that end, browsers.
test-all test-rest: WORKERS = 6
SPREAD = -n $(WORKERS) --dist worksteal

VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv migrate demo serve test test-all test-rest check style docs static-lab recordings screenshots bench loadtest histories matrix wheels release stop clean lock

help: ## say what each target does
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

demo: migrate ## show the oversell, broken and fixed, on real servers (about a minute)
	@$(RUN) manage.py seed_demo
	@$(RUN) manage.py oversell $(RACE)

serve: migrate ## run the shop and its relay of events at http://127.0.0.1:8000/
	@$(RUN) manage.py seed_demo
	@$(RUN) manage.py relay_events --every 2 >/dev/null & relay=$$!; \
		trap 'kill $$relay 2>/dev/null' EXIT INT TERM; $(RUN) -m config.serve $(PORT)

# With this variable set, every process of the tests would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

# The types are checked beside the tests, for they take a core half a minute after a change of many files.
TYPES := $(RUN) -m mypy . >build/types.txt 2>&1 & types=$$!
VERDICT := tests=$$?; wait $$stock; stock=$$?; cat build/stock.txt; \
	wait $$types; types=$$?; cat build/types.txt; exit $$((tests | stock | types))

# The inventory's tests need no shop: they run beside it, with servers and settings of their own.
STOCK = $(RUN) -m pytest -c tests/stock/pytest.ini tests/stock -n 2 --dist worksteal
BESIDE = >build/stock.txt 2>&1 & stock=$$!

test: style ## check, and test whatever is public, in three minutes (PYTEST="-k name" narrows it)
	@mkdir -p build; $(TYPES); $(STOCK) --selection quick $(BESIDE); \
	$(RUN) -m pytest $(SPREAD) --selection quick $(PYTEST); $(VERDICT)

test-all: style ## check, and run every test: each engine, mutants, explorers, killed processes, browsers
	@mkdir -p build; $(TYPES); $(STOCK) $(BESIDE); $(RUN) -m pytest $(SPREAD) $(PYTEST); $(VERDICT)

test-rest: $(READY) ## run what test-all runs and test does not
	@mkdir -p build; $(STOCK) --selection rest $(BESIDE); \
	$(RUN) -m pytest $(SPREAD) --selection rest $(PYTEST); \
	tests=$$?; wait $$stock; stock=$$?; cat build/stock.txt; exit $$((tests | stock))

check: style ## style, types, import rules, migrations, Django's own checks
	@$(RUN) -m mypy .

style: $(READY)
	@$(RUN) -m ruff check .
	@$(RUN) -m ruff format --check .
	@$(RUN) -c 'from importlinter.cli import lint_imports_command as lint; lint()' --no-logo
	@$(RUN) -m tests.locking.test_size >/dev/null
	@$(RUN) manage.py makemigrations --check --dry-run
	@$(RUN) manage.py check --fail-level WARNING

bench: migrate ## measure the locks side by side, briefly
	@$(RUN) -m benchmarks.locks --quick

loadtest: $(READY) ## load, kill and flush the served shop under each sound strategy, then audit it (UI=1: locust's page)
	@mkdir -p build
	@$(RUN) -m tests.load $(if $(UI),--ui,$(LOAD))

SHORT := --seconds 1 --nemeses mix
histories: $(READY) ## run locks on hosts whose network splits, judge what clients saw (root; LONG=1: an hour; WRONG=1: wrong locks)
	@$(RUN) -m histories.run --json build/histories.json $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP)) \
		$(if $(WRONG),--seconds 60 --wrong all,$(if $(LONG),--minutes 54,$(SHORT)))

docs: $(READY) ## build the documentation into build/docs, and its Chinese pages into build/docs-zh, a lab beside each
	@$(RUN) -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	@$(RUN) -m sphinx -q -W -b html -D language=zh_CN docs build/docs-zh & chinese=$$!; \
	$(RUN) -m sphinx -q -W -b html docs build/docs && wait $$chinese || { wait $$chinese; exit 1; }
	@for pages in docs docs-zh; do $(RUN) manage.py build_static_lab build/$$pages/lab >/dev/null || exit 1; done
	@echo "build/docs/index.html build/docs-zh/index.html build/docs/lab/index.html"

static-lab: $(READY) ## build the lab for plain web hosting into build/lab: recorded races, puzzles, your own strategy
	@$(RUN) manage.py build_static_lab build/lab

recordings: migrate ## record again the races and steps that the lab shows without a server (a quarter of an hour)
	@$(RUN) manage.py record_races
	@$(RUN) manage.py record_steps

screenshots: $(READY) ## take the screenshots of the documentation from the running shop, in light and dark
	@HOLDFAST_SCREENSHOTS=docs/images $(RUN) -m pytest tests/browser -m screenshots

matrix: $(READY) ## try the wheel on every version of Django, Redis' client, Celery that is supported
	@$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements-release.txt
	@$(RUN) -m nox

wheels: $(READY) ## build both distributions into dist/: django-holdfast and django-holdfast-inventory
	@$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements-release.txt
	@$(RUN) -m config.release --wheels

release: $(READY) ## build, check and describe what would be published, in dist/ (uploads nothing)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements-release.txt
	@$(RUN) -m config.release

stop: ## stop the embedded servers
	@if [ -e $(READY) ]; then $(RUN) -m config.embedded stop; fi

clean: ## stop the embedded servers, delete their data, the virtual environment and every cache
	@if [ -e $(READY) ]; then $(RUN) -m config.embedded remove; fi
	@rm -rf $(VENV) .run staticfiles .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

migrate: $(READY)
	@$(RUN) manage.py migrate --verbosity 0

venv: $(READY) ## build the virtual environment

# The stamp comes last: an environment whose creation was interrupted has none, and is built again.
$(READY): requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "holdfast: $(PYTHON) is not Python 3.11 or newer; install one, or name it: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "holdfast: $(PYTHON) can't make virtual environments; apt-get install python3-venv, or name another: make PYTHON=... ..." >&2; exit 1; }
	@echo "Making the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock || { \
	  echo "holdfast: the packages above could not be installed; check the network, then run make again." >&2; exit 1; }
	@touch $@

# Exact versions for Python 3.11 to 3.13. Not run by the other targets: a fresh clone's time stamps say nothing.
lock: ## resolve the requirements into requirements.lock (needs uv)
	uv pip compile --quiet --universal --upgrade --python-version 3.11 --no-annotate requirements-dev.txt -o requirements.lock
