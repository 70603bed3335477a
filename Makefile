# Tasks. `make demo` and `make test` need Python 3.11+ and, for Spark, a JDK 17+; everything else they fetch.
# `make dashboard`, `make picture` and `make test-all` also need Prometheus and Chromium: as root they install Debian's packages.
# `make picture` needs npm; the tests of the picture are skipped without it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SITE := .venv-site
# Three tests at a time, because many of them wait; those that share a broker or a Spark run one after another; the fast ones
# come first (tests/tiers.py).
PYTEST = $(BIN)/python -m pytest --numprocesses $(JOBS) --durations 25
JOBS ?= 3
# Images set it for programs that start once. Tests start hundreds of processes, and each would compile kafkasafe again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-spark picture dashboard quick test test-all test-oldest smoke-spark site lint format bench bench-consume simulate chaos clean

help:  ## show the tasks
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)  ## a real 3-broker Kafka, kill -9 of everything, nothing lost
	$(BIN)/kafkasafe demo $(ARGS)

demo-spark: $(STAMP)  ## Kafka to Kafka with Spark, kill -9 of the driver, each total once
	$(BIN)/python examples/spark_exactly_once.py $(ARGS)

picture: $(STAMP)  ## docs/dashboard.png again: one outage on a real Kafka, drawn from the board by npm's ECharts
	$(BIN)/python examples/dashboard/picture.py $(ARGS)

dashboard: $(STAMP)  ## a real Kafka with faults, a real Prometheus, and the page that shows them
	$(BIN)/python examples/dashboard/run.py $(ARGS)

# Its tests do not wait, so a third process would only collect them once more.
quick: JOBS = 2
quick: $(STAMP)  ## below a minute: the pure core, golden transcripts, whole decision tapes, pages, types; no broker, no connection
	$(PYTEST) -m quick $$($(BIN)/python tests/tiers.py) $(ARGS)
	$(BIN)/mypy

test: $(STAMP)  ## the fast tests: all rules, crashes and mutants, and each promise once on real brokers
	$(PYTEST) -m 'not full' $(ARGS)

test-all: $(STAMP)  ## all tests: old brokers, 150 lives, every error code, Spark chaos, the dashboard, the examples
	$(PYTEST) $(ARGS)

test-oldest: $(STAMP)  ## the fast tests of clients and connections on the oldest kafka-python that kafkasafe accepts
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .cache/kafka-python-oldest kafka-python==3.0.9
	PYTHONPATH=$(CURDIR)/.cache/kafka-python-oldest $(PYTEST) -m 'not full' $(or $(ARGS),tests/test_kafkapython.py tests/aio tests/consumer tests/transport tests/contract)

smoke-spark:  ## the Spark source and sink on PySpark 4.0, 4.1, 4.2 and the newest, each in its own environment
	$(PYTHON) tests/smoke_spark.py $(ARGS)

site: $(SITE)/.installed  ## the documentation as a web site in site/, built by Zensical; a link that leads nowhere fails it
	$(SITE)/bin/zensical build --strict --clean $(ARGS)

# Apart from $(VENV), because no test needs it.
$(SITE)/.installed:
	@test -x $(SITE)/bin/python || $(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --disable-pip-version-check 'zensical>=0.0.73,<0.2'
	@touch $@

lint: $(STAMP)  ## ruff, mypy strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## throughput beside kafka-python and confluent-kafka
	$(BIN)/python benchmarks/produce.py $(ARGS)

bench-consume: $(STAMP)  ## consumers beside kafka-python and confluent-kafka
	$(BIN)/python benchmarks/consume.py $(ARGS)

simulate: $(STAMP)  ## seeded histories of the real engine, in virtual time: SEEDS=100000, SEED=123 to see and shrink one, KIND=consumer for those of a consumer (docs/simulation.md)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP)) $(if $(KIND),--kind "$(KIND)") $(ARGS)
SEEDS ?= 1000

chaos: $(STAMP)  ## ten minutes of kill -9, signals, lost answers, flapping rights, and a count of what is left
	$(BIN)/python benchmarks/chaos.py $(ARGS)

clean:  ## remove what the tasks made
	rm -rf $(VENV) $(SITE) site .cache .venv-pyspark-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
