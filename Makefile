# `make` without a target lists the targets. Packages are installed into .venv only.
PYTHON  ?= python3
WORKERS ?= 3
PORT    ?= 8000
EXTRAS  := offline,onnx,report,serve,site,tensorboard,dev
BIN     := .venv/bin
STAMP   := .venv/.installed
ENGINES := ray,milvus

.DEFAULT_GOAL := help
.PHONY: help install engines demo serve test check format site docs dist pins clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

install: $(STAMP) ## create .venv and install mufin with all extras, pinned and checked by hash

$(STAMP): pyproject.toml constraints.txt scripts/install.sh
	PYTHON="$(PYTHON)" scripts/install.sh .venv -e ".[$(EXTRAS)]"
	@touch $@

engines: .venv/.engines ## also install Ray and Milvus, which tests need

.venv/.engines: $(STAMP)
	scripts/install.sh .venv -e ".[$(EXTRAS),$(ENGINES)]"
	@touch $@

demo: install ## train on the embedded catalogue, print metrics and predictions, save runs/demo
	$(BIN)/mufin demo

serve: runs/demo/mufin.json ## serve the demo model and its web page at http://127.0.0.1:8000 (PORT=8000)
	$(BIN)/mufin serve runs/demo --catalogue src/mufin/demo --port $(PORT)

runs/demo/mufin.json: | install
	$(BIN)/mufin demo

test: engines ## run all tests and doctests (WORKERS=3)
	scripts/browser.sh
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

check: engines ## check lint, formatting, types, versions and licences; must pass before a commit
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/python scripts/code_numbers.py --check
	$(BIN)/python scripts/pins.py --check
	$(BIN)/python scripts/licences.py --check

format: install ## fix lint and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: install ## build the documentation site into build/site, offline; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo "The site is in build/site. Its search needs a server: $(BIN)/python -m http.server -d build/site"

docs: install ## generate docs/cli.md, docs/settings.md and the numbers in docs/design.md
	$(BIN)/python scripts/cli_docs.py
	$(BIN)/python scripts/settings_docs.py
	$(BIN)/python scripts/code_numbers.py

dist: install ## build wheel and sdist into dist/, then test the wheel in a fresh environment
	rm -rf dist build/wheel
	$(BIN)/python -m build --no-isolation
	PYTHON=$(BIN)/python scripts/install.sh build/wheel dist/*.whl
	cd build && wheel/bin/mufin --version && wheel/bin/mufin --help
	rm -rf build/wheel

pins: engines ## write installed versions and hashes to constraints.txt, and the list of licences
	$(BIN)/python scripts/pins.py
	$(BIN)/python scripts/licences.py

clean: ## remove build output and caches; keep .venv and runs
	rm -rf dist build .mypy_cache .ruff_cache .pytest_cache
	find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
