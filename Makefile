# `make` prints help. Every target installs into .venv first when the requirement files changed.
PYTHON ?= python3.11
RUN := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export TORCH_EXTENSIONS_DIR ?= $(CURDIR)/.venv/torch_extensions
export PYTHONPATH := $(CURDIR)

.DEFAULT_GOAL := help
.PHONY: help install daily up down status fetch doctor test test-long golden lint bench

help:
	@echo 'make daily      run one day through the whole chain: DAY=2026-11-29 SIZE=smoke|small|base'
	@echo '                SOURCE=planted|openbandit|movielens|tafeng|mine.toml SURFACES=feed,reels'
	@echo '                SOURCE=taobaoad|aliccp|kuairand FILES=/their/folder (docs/sources.md)'
	@echo '                OVERRIDES=JSON WARM_START=no PROMOTE=auto|never|force RERUN=yes'
	@echo 'make up         start Airflow and MLflow and leave them running (SCHEDULE=yes: run each day)'
	@echo 'make down       stop them'
	@echo 'make status     what runs, and where'
	@echo 'make fetch      download a public data set: SOURCE=openbandit|movielens|tafeng'
	@echo 'make doctor     check the installation'
	@echo 'make test       all tests that take seconds; make test-long: those that take minutes'
	@echo 'make golden     renew the golden loss curve, after a change that is meant to move it'
	@echo 'make lint       ruff and mypy'
	@echo 'make bench      benchmarks'
	@echo 'make install    only install (GPU=yes: CUDA sparse kernels; PYTHON=/path/to/python3.11)'

install:
	@command -v $(PYTHON) >/dev/null || { echo 'Headwater needs Python 3.11 and finds no'\
	  '$(PYTHON); install it, or run: make PYTHON=/path/to/python3.11' >&2; exit 65; }
	@$(PYTHON) deploy/install.py $(if $(GPU),--gpu)

daily: install
	@$(RUN) -m pipeline daily $(if $(DAY),--day '$(DAY)') $(if $(SIZE),--size '$(SIZE)') \
	  $(if $(SOURCE),--source '$(SOURCE)') $(if $(SURFACES),--surfaces '$(SURFACES)') \
	  $(if $(FILES),--files '$(FILES)') \
	  $(if $(OVERRIDES),--overrides '$(OVERRIDES)') $(if $(PROMOTE),--promote '$(PROMOTE)') \
	  $(if $(filter no,$(WARM_START)),--no-warm-start) $(if $(filter yes,$(RERUN)),--rerun)

up: install
	@$(RUN) -m pipeline servers up $(if $(filter yes,$(SCHEDULE)),--schedule)

down status: install
	@$(RUN) -m pipeline servers $@

fetch: install
	@$(RUN) -m pipeline fetch $(if $(SOURCE),'$(SOURCE)')

doctor: install
	@$(RUN) -m pipeline doctor

test: install
	@$(RUN) -m pytest -m 'not long and not gpu' -n logical --dist loadfile --no-loadscope-reorder

test-long: install
	@$(RUN) -m pytest -m 'long and not gpu' --timeout=7200

golden: install
	@home=$$(mktemp -d) && OMP_NUM_THREADS=1 $(RUN) tests/pretraining/golden_worker.py "$$home" --write; \
	  code=$$?; rm -rf "$$home"; exit $$code

lint: install
	@ruff check .
	@ruff format --check .
	@mypy

bench: install
	@$(RUN) -m benchmarks $(ARGS)
