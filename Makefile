# `make` alone lists the targets. Everything lives in .venv; nothing is installed elsewhere.
PYTHON  ?= python3
WORKERS ?= 2
PORT    ?= 8000
EXTRAS  := offline,report,serve,tensorboard,dev
BIN     := .venv/bin
STAMP   := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo serve test check format docs dist pins clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

install: $(STAMP) ## create .venv and install mufin with all extras, at the pinned versions

$(STAMP): pyproject.toml constraints.txt scripts/install.sh
	PYTHON="$(PYTHON)" scripts/install.sh .venv -e ".[$(EXTRAS)]"
	@touch $@

demo: install ## train on the embedded catalogue into runs/demo, print metrics and predictions
	$(BIN)/mufin demo

serve: runs/demo/mufin.json ## serve the demo model with its page on http://127.0.0.1:8000 (PORT=8000)
	$(BIN)/mufin serve runs/demo --catalogue src/mufin/demo --port $(PORT)

runs/demo/mufin.json: | install
	$(BIN)/mufin demo

test: install ## run all tests and doctests (WORKERS=2)
	scripts/browser.sh
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

check: install ## lint, formatting and types: what must be clean before a commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: install ## write docs/cli.md from the commands' own help
	$(BIN)/python scripts/cli_docs.py

dist: install ## build wheel and sdist into dist/, then try the wheel in an environment of its own
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation
	PYTHON=$(BIN)/python scripts/install.sh build/wheel dist/*.whl
	cd build && wheel/bin/mufin --version && wheel/bin/mufin --help
	rm -rf build/wheel

pins: install ## write constraints.txt from what is installed in .venv
	$(BIN)/python scripts/pins.py

clean: ## remove what was built, except .venv and runs
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
