# Every verb sets up what it needs. A machine with Python >= 3.11 and make is enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DEMO ?= demo-output
SCRATCH ?= bench-scratch
BENCH ?= $(BIN)/python
FFCV ?=
TURNS ?= 5
SECONDS ?= 30
ROUNDS ?= 100
CHECK ?=
SETUP := $(VENV)/.ready
# Each process gets a run of neighbouring tests, whose fixtures it then makes alone, and at the end tests of the others.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal
DEV := $(VENV)/.ready-dev
DOCS := $(VENV)/.ready-docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Tests start thousands of Python processes. Where none may keep what it compiled, each compiles all of Brand again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo quick test everywhere explore tables frameworks release-tests marks sizes coverage lint bench bench-more docs \
	docs-test release-check clean
help:
	@echo "make demo    convert, look at, verify and train from a small real data set"
	@echo "make quick   all tests but the slow ones: less than a minute"
	@echo "make test    all tests but those of the next lines: about ten minutes on two cores"
	@echo "make tables  the published figures that make test leaves out"
	@echo "make frameworks  trainings in Lightning, Accelerate, the Hugging Face Trainer and others; conversions on Ray"
	@echo "make release-tests  the wheel in a new environment, with packages from the registry"
	@echo "make everywhere  all of make test, each case with data sets in a folder and in each kind of object store"
	@echo "make explore ROUNDS of each test of chance (100), twenty times the Hypothesis examples that a test states, and all"
	@echo "             tables, with a fresh SEED that it prints, and all cells of the matrix of frameworks; hours. make"
	@echo "             explore SEED=N has the same again"
	@echo "make marks   measure which tests are marked slow and are not, and the other way round"
	@echo "make coverage  the lines of brand/node that its own tests do not run"
	@echo "make lint    ruff, mypy --strict, import-linter"
	@echo "make bench   measure the README's table, by TURNS (5) of each library that is installed; needs root"
	@echo "make bench-more  how long conversions take, exact reads, opening a large data set (bench/README.md)"
	@echo "make docs    build the documentation as HTML in docs/_build/html"
	@echo "make docs-test  run everything that README and the pages of the documentation show"
	@echo "make release-check  the wheel in new environments: Python 3.11 to 3.14, the oldest and the newest PyTorch. Takes some"
	@echo "             gigabytes of disk at a time; make release-check CHECK='--python 3.12 --torch 2.13.0' chooses"
	@echo "make clean   remove what these made"

$(SETUP): pyproject.toml
	@echo "Setting up $(VENV): the first time takes some minutes, PyTorch is large"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Brand needs Python 3.11 or newer; make PYTHON=... names one")'
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) torch==2.13.0
	@$(PIP) --editable '.[train,audio]'
	@touch $@

$(DEV): $(SETUP)
	@$(PIP) --editable '.[dev]'
	@touch $@

$(DOCS): $(DEV)
	@$(PIP) --editable '.[docs]'
	@touch $@

demo: $(SETUP)
	@rm -rf $(DEMO) && mkdir -p $(DEMO)
	@$(BIN)/python -m zipfile -e examples/data/fashion-mnist-small.zip $(DEMO)/fashion-mnist
	$(BIN)/brand convert images $(DEMO)/fashion-mnist/train $(DEMO)/train.brand --chunk-size 64
	$(BIN)/brand convert images $(DEMO)/fashion-mnist/test $(DEMO)/test.brand
	$(BIN)/brand info $(DEMO)/train.brand
	$(BIN)/brand verify $(DEMO)/train.brand
	$(BIN)/python examples/train_fashion_mnist.py $(DEMO)/train.brand $(DEMO)/test.brand --epochs 2
	$(BIN)/brand convert audio examples/data/clips $(DEMO)/clips.brand --transcripts examples/data/clips/transcripts.tsv
	$(BIN)/brand cat $(DEMO)/clips.brand 0

quick: $(DEV)
	$(PYTEST) -m "not slow and not realdata and not frameworks and not pages and not release and not tables"

test: $(DEV)
	$(PYTEST)

tables: $(DEV)
	$(PYTEST) -m tables

frameworks: $(DEV)  # a process for each file, so that each framework runs once; files with one long test are not the last
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m frameworks

release-tests: $(DEV)
	$(PYTEST) -m release

everywhere: $(DEV)
	$(PYTEST) --everywhere

# The kills, the walks and the Hypothesis tests of `make test`, many more of each, and others in each run.
explore: SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
explore: $(DEV)
	$(PYTEST) -m "(rounds or hypothesis or tables) and not realdata and not pages" --rounds $(ROUNDS) --seed $(SEED) \
		--everywhere --hypothesis-profile explore --hypothesis-seed $(SEED)
	$(BIN)/python -m tests.tools.integrity --trials $$((200 * $(ROUNDS))) --seed $(SEED)
	$(BIN)/python -m tests.matrix.run --all

sizes: $(DEV)
	$(BIN)/python -m tests.sizes

marks: $(DEV)
	$(BIN)/python -m tests.marks

coverage: $(DEV)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -n auto --dist worksteal tests/node tests/several_nodes
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --include "brand/node/*"

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(DEV)
	@test -d "$(DATA)" || { echo "make bench DATA=FOLDER: a folder with images/<class>/* and text/*.jsonl (bench/README.md)"; exit 2; }
	$(BENCH) -m bench.training_data --data $(DATA) --work $(SCRATCH)
	$(if $(FFCV),$(FFCV) -m bench.training_data --data $(DATA) --work $(SCRATCH) --only ffcv)
	for task in images records; do $(BENCH) -m bench.training_reads --work $(SCRATCH) $(if $(LAB),--lab '$(LAB)') $(if $(FFCV),--ffcv $(FFCV)) \
		--task $$task --regime nas-4 nvme-4 warm --repeat $(TURNS) --seconds $(SECONDS) --out bench/results/training-$$task.json || exit 1; done
	$(BENCH) -m bench.honest_table bench/results/training-images.json bench/results/training-records.json

bench-more: $(DEV)
	@test -d "$(DATA)" || { echo "make bench-more DATA=FOLDER: a folder with images/<class>/* and text/*.jsonl (bench/README.md)"; exit 2; }
	$(BENCH) -m bench.convert --data $(DATA) --work $(SCRATCH) --out bench/results/convert.json
	$(BENCH) -m bench.exact_reads --data $(DATA) --work $(SCRATCH) --out bench/results/exact_reads.json
	$(BENCH) -m bench.open_large --work $(SCRATCH) --out bench/results/open_large.json
	$(BENCH) -m bench.convert_memory --data $(DATA) --work $(SCRATCH) --out bench/results/convert_memory.json

docs: $(DOCS)
	$(BIN)/sphinx-build -W --keep-going -j auto -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

docs-test: $(DOCS)
	$(PYTEST) -m pages

release-check: $(DEV)
	$(BIN)/python -m tests.release $(CHECK)

clean:
	rm -rf $(VENV) $(DEMO) $(SCRATCH) build dist docs/_build *.egg-info .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
