# SigmaTrace. `make help` lists the targets. Everything is set up on first use.
SHELL := /bin/bash
.DEFAULT_GOAL := help
VENV := .venv
PYTHON := $(VENV)/bin/python
# One thread per library: tests start many processes.
export OMP_NUM_THREADS ?= 1

.PHONY: help setup native demo test gpu-demo gpu-test lint check bench notebook clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/\t/' | expand -t 12

setup:  ## system packages, .venv and the native libraries (a repeat takes a second)
	@scripts/setup.sh

native:  ## build the native libraries again after a change of C sources
	@scripts/setup.sh --rebuild

demo: setup  ## capture real programs over libfabric and UCX, and correlate them
	@scripts/demo.sh

test:  ## run all tests; ARGS='-k name' chooses
	@scripts/setup.sh --dev --rebuild
	$(PYTHON) -m pytest $(ARGS)

gpu-demo:  ## trace kernels that start RDMA, without a GPU, and correlate them
	@scripts/setup.sh --dev
	@tests/rigs/mlx5/demo.sh

gpu-test:  ## trace kernels of a real GPU over the emulated NIC (minutes); docs/gpu-results.md
	@scripts/setup.sh --dev --rebuild
	$(PYTHON) -m tests.rigs.mlx5.gpu --write docs/gpu-results.md $(ARGS)

lint:  ## style, types and the direction of imports
	@scripts/setup.sh --dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	@# Without site: by the editable install the whole checkout seems to lie inside the package.
	PYTHONPATH=.:$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))') \
	  $(PYTHON) -S -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

check: setup  ## say which layers can be traced on this machine
	@$(VENV)/bin/sigmatrace-capture --check

bench:  ## measure capture and pipeline, beside other tools (10 minutes); ARGS=NAME chooses
	@scripts/setup.sh --bench --rebuild
	$(PYTHON) -m benchmarks $(ARGS)

notebook:  ## run docs/notebook.ipynb again, and store its outputs
	@scripts/setup.sh --dev
	$(PYTHON) scripts/notebook.py docs/notebook.ipynb

clean:  ## remove what was built (not .venv)
	rm -rf build dist demo-out .pytest_cache .ruff_cache .mypy_cache
