# drumline: `make demo` shows it, `make test` checks it. Each does its own set-up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test lint format clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) java  ## .venv, Java and Maven (by apt, as root), Kafka's jars
	@$(BIN)/python -m drumline.infra.jars

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "drumline needs Python 3.11 or newer; set PYTHON=python3.12, say"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
		{ echo "no venv in this Python: apt-get install python3-venv"; exit 1; }
	@echo "installing drumline and what it needs into $(VENV)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: java
java:
	@if command -v mvn >/dev/null && { command -v java >/dev/null || [ -n "$$JAVA_HOME" ]; }; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Java and Maven with apt"; \
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y default-jre-headless maven >/dev/null; \
	else \
		echo "the local broker needs Java 17 or newer and Maven: apt-get install default-jre-headless maven"; exit 1; \
	fi

demo: setup  ## a recorded job through the whole platform (KEEP=1 leaves Kafka and ClickHouse up)
	@$(BIN)/drumline demo $(if $(KEEP),--keep)

test: setup lint  ## all checks and tests
	@$(BIN)/pytest

lint: $(STAMP)  ## style, types, import directions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports >.lint-imports.log || { cat .lint-imports.log; exit 1; }

format: $(STAMP)  ## rewrite to the house style
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

clean:  ## remove what make made here
	rm -rf $(VENV) *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .lint-imports.log
