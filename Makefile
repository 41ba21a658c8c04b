# make demo    set up everything and watch a small model write
# make test    set up everything and run the checks of every change
# make wide    the tests that `make test` runs a sample of: every family, type and engine
# make quick   the tests that need no model, no kernels and no server: a few minutes
# make serve   set up everything and serve that model at http://127.0.0.1:8000
# make venv    only set up .venv (nothing to do when the requirements did not change)
# make gpu     the tests that need an NVIDIA GPU: eight processes at a time, then those that measure its memory, one by one
# make hostile 20,000 generated hostile requests against a server of its own (an hour or less)
# make soak    20 minutes of mixed traffic, aborts, attacks and deaths of the engine; figures in benchmarks/results
# make matrix-ranks every two features together on engines of two ranks (half an hour)
# make matrix-experts the matrix on a model with experts, too (half an hour)
# make mutants put known faults into a copy of the code, one at a time, and see which test catches each (half an hour)
# make clients install real clients from PyPI and npm and let each talk to a server; CLIENTS="'Codex CLI' LiteLLM" for some
# make browser install Chromium for the page's tests (Debian and Ubuntu, as root)

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q

# Hundreds of processes import the same modules: they are compiled once, also where the shell asks for no bytecode.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo serve browser test lint types kernels unit wide quick gpu hostile matrix-ranks matrix-experts soak mutants clients format bench clean

help:
	@sed -n 's/^# //p' Makefile

venv: $(STAMP)

$(STAMP): requirements/torch.txt requirements/run.txt requirements/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)"
	@$(PIP) install -r requirements/torch.txt
	@$(PIP) install -r requirements/run.txt -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: venv
	@$(BIN)/cadence generate --chat "Explain in three sentences why the sky is blue." --max-tokens 160 --temperature 0

serve: venv
	@$(BIN)/cadence serve smollm2

browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null \
	  || { apt-get -q update && apt-get -qy install chromium chromium-driver; }

# mypy computes on one core: the tests use the others meanwhile.
test: lint
	@$(MAKE) --no-print-directory -j2 types unit

lint: venv
	$(BIN)/ruff check cadence tests

types: venv
	$(BIN)/mypy

# Once, on all cores: processes of tests have one core each, and would all compile.
kernels: venv
	-@$(BIN)/python -c "from cadence.kernels.cpu.runtime.build import load_library; load_library()"

unit: kernels
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

wide: kernels
	$(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder --wide -m wide

quick: venv
	$(BIN)/python -m pytest -m "not (engine or device or gpu or slow)" $(addprefix --ignore=tests/,server hostile docs)

gpu: kernels
	$(BIN)/python -m pytest -m "gpu and not alone" -n 8 --dist loadfile --no-loadscope-reorder
	$(BIN)/python -m pytest -m "gpu and alone"

hostile: venv
	$(BIN)/python -m pytest tests/hostile -s --hostile-requests $(or $(REQUESTS),20000) --hostile-seed $(or $(SEED),1)

matrix-ranks: venv
	$(BIN)/python -m pytest tests/matrix/test_ranks.py --every-engine

matrix-experts: venv
	$(BIN)/python -m pytest tests/matrix/test_matrix.py tests/matrix/test_truly_on.py --every-engine

soak: venv
	$(BIN)/python -m benchmarks.soak --minutes $(or $(MINUTES),20)

mutants: kernels
	$(BIN)/python -m tests.mutants.run $(MUTANTS)

clients: venv
	$(BIN)/python -m tests.clients.run $(CLIENTS)

format: venv
	$(BIN)/ruff format cadence tests
	$(BIN)/ruff check --fix cadence tests

bench: venv
	$(BIN)/cadence bench latency --batch-size 1 --num-iters 5
	$(BIN)/cadence bench throughput

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
