# Two commands do everything: `make run` serves on the embedded default, `make test` runs the suite.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV ?= .venv
BIN := $(VENV)/bin
RUN_ARGS ?=
TEST_ARGS ?=
TEST_PROCESSES ?= 2
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/durable-cache
export VENV
export DURABLE_CACHE_CACHE_DIR ?= $(CACHE)
export DURABLE_CACHE_SPARK_JARS ?= $(CACHE)/spark-jars-delta-4.4.0

.PHONY: help run venv venv-run check test golden slow nightly soak hurried site lines bench jars \
  influxd postgres-versions compose-up compose-test compose-down lock clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

venv-run:
	@tools/venv.sh run

venv: ## the locked environment with all extras and tools
	@tools/venv.sh dev

run: venv-run ## serve on the embedded default, storing ** under ./durable-cache-data
	@exec $(BIN)/durable-cache serve $(RUN_ARGS)

check: venv ## format, lint, types, arrows, tidiness, quick tests, docs: about two minutes
	@BIN=$(BIN) tools/check.sh

test: venv ## the whole suite but the nightly tails, in two processes, with progress
	@$(BIN)/python -m pytest -m "not nightly" --numprocesses=$(TEST_PROCESSES) --durations=40 \
	  -o faulthandler_timeout=600 $(TEST_ARGS)

golden: venv ## write what the engines do now into their stories; read the difference
	@$(BIN)/python -m tests.golden
	@git --no-pager diff --stat -- tests/golden

slow: venv ## only the tests marked slow
	@$(BIN)/python -m pytest -m "slow and not nightly" --durations=15 $(TEST_ARGS)

nightly: venv ## the long tails: many seeds, many kills
	@DURABLE_CACHE_HYPOTHESIS=nightly $(BIN)/python -m pytest --durations=30 $(TEST_ARGS)

soak: venv ## the suites with real sessions ten times beside busy cores, within 90 minutes
	@$(BIN)/python tools/soak.py $(SOAK_ARGS)

hurried: venv ## the suites with real sessions once, threads changing every microsecond
	@$(BIN)/python tools/soak.py --hurried --runs 1 --cores 0 $(SOAK_ARGS)

site: venv ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet && echo build/site/index.html

lines: ## the product's lines of code by room
	@python3 tools/lines.py

bench: venv ## the benchmarks, as ratios to their brackets
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

jars: venv ## fetch the Delta jars for Spark once
	@$(BIN)/python -m durable_cache.spark.jars

influxd: ## build the InfluxDB server of the tests once
	@tools/build_influxd.sh

postgres-versions: venv ## the PostgreSQL suites on releases 15, 16 and 17, fetched once with mvn
	@$(BIN)/python tools/postgres_versions.py

compose-up: ## router, caches, databases in containers; PROFILES="core lake ..."
	@tools/compose.sh up

compose-test: venv ## the same, with containers killed on the way; takes all down again
	@$(BIN)/python tools/compose_test.py

compose-down: ## stop the containers; VOLUMES=forget deletes their data
	@tools/compose.sh down

lock: ## pin the dependencies anew
	@tools/lock.sh

clean: ## forget what was built and installed; keeps ./durable-cache-data
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
