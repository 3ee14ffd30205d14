# make demo    real model, plain and speculative side by side
# make test    the whole suite
# make check   format, lint, types, import contracts, sanitizers, tests: what CI runs
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
NATIVE := $(wildcard native/*.cpp native/*.h native/CMakeLists.txt)
DEMO_MODEL := smollm2-135m-instruct

.PHONY: demo test check lint sanitize install model clean

install: $(INSTALLED)

# Build tools come from the pins too, so the package is built without an isolated environment.
$(INSTALLED): pyproject.toml constraints.txt $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch scikit-build-core nanobind cmake ninja
	$(BIN)/pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

model: $(INSTALLED)
	$(BIN)/pilotfish models pull $(DEMO_MODEL)

demo: model
	$(BIN)/pilotfish demo

# Two processes: most of the suite runs on one thread. A file stays in one of them, with what its tests share.
test: model
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

lint: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The native code's own tests, compiled with the address and undefined-behaviour sanitizers.
sanitize: $(INSTALLED)
	PATH="$(abspath $(BIN)):$$PATH" sh tests/native/run_sanitizers.sh

check: lint sanitize test

clean:
	rm -rf $(VENV) build dist src/pilotfish/*.so
