# Each target installs what it needs into .venv once, and again only when setup.py or
# constraints.txt changes. ARGS goes to the program: make test ARGS="-k storage"

PYTHON ?= python3
ARGS ?=
RUN := .venv/bin/python

# torch's own defaults make its threads spin against any other job on the machine: a small step
# becomes many times longer.
export OMP_NUM_THREADS ?= 1
export OMP_WAIT_POLICY ?= passive

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help train test lint bench docs clean
.SECONDARY:

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 8

train: .venv/.stamp-digits ## train on the digits into output/digits
	$(RUN) tools/train_net.py --config-file configs/digits/cnn.yaml OUTPUT_DIR output/digits $(ARGS)

test: lint ## lint, then all tests
	$(RUN) -m pytest $(ARGS)

lint: .venv/.stamp-dev ## ruff and mypy
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

bench: .venv/.stamp-digits ## measure the engine against the bare PyTorch loop
	$(RUN) tools/benchmark.py $(ARGS)

docs: .venv/.stamp-docs ## build the pages into docs/_build/html
	$(RUN) -m sphinx -q -W --keep-going -b html docs docs/_build/html

clean: ## remove caches and built files; .venv and output stay
	rm -rf build dist *.egg-info docs/_build .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find engine tests tools docs -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.stamp-venv:
	$(PYTHON) -m venv .venv
	@touch $@

# The constraints name the exact torch: a looser one brings gigabytes of CUDA packages.
.venv/.stamp-%: setup.py constraints.txt | .venv/.stamp-venv
	@echo "installing .[$*] into .venv"
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$*]"
	@touch $@
