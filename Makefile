# Everything that a reader runs. Each target sets up what it needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv stop

help: ## say what each target does
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

venv: $(READY) ## build the virtual environment

$(READY): requirements.txt requirements-dev.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

stop: ## stop the embedded servers
	@if [ -x $(RUN) ]; then $(RUN) -m config.embedded stop; fi
