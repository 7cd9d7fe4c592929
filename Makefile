# Two commands do everything on a fresh Debian or Ubuntu machine: `make run` and `make test`.
# `sudo make install` makes a service of it: see docs/operations.md.

VENV ?= .venv
PYTHON ?= python3
RUN ?= run
PIP_FLAGS ?=
# How long `make soak` takes.
MINUTES ?= 60
# Where a machine lets nobody mount, not even root, ANDREAD_NO_MOUNT=1 leaves the real disks untested.

# Where `make install` puts things: the package into PREFIX, what the system is to find below ROOT.
PREFIX ?= /opt/andread
ROOT ?= /usr/local
DESTDIR ?=
PAGES_WITH ?= $(DESTDIR)$(PREFIX)/bin/python

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
AS_ROOT := $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)
APT := $(AS_ROOT) env DEBIAN_FRONTEND=noninteractive apt-get -qq

UNITS := andread@.service andread.service
PLACE := $(DESTDIR)$(ROOT)
LIVE := $(if $(DESTDIR),,$(wildcard /run/systemd/system))

.PHONY: help venv install install-package install-files uninstall run test test-durability soak \
  quick bench bench-gpu lint types format clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

venv: $(STAMP)  ## a virtual environment with andread in it

$(STAMP): pyproject.toml constraints.txt
	@echo "== installing into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "andread needs Python 3.11 or newer; say which one with PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "== apt-get install python3-venv"; $(APT) update && $(APT) install -y python3-venv; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@pkg-config --exists libsystemd 2>/dev/null && command -v cc >/dev/null \
	  || { echo "== apt-get install libsystemd-dev pkg-config gcc python3-dev (for systemd-python)"; \
	       $(APT) update && $(APT) install -y libsystemd-dev pkg-config gcc python3-dev; } \
	  || echo "== could not: going on without systemd-python"
	@echo "== pip install (torch is large: this takes minutes the first time)"
	@if pkg-config --exists libsystemd 2>/dev/null && $(BIN)/python -m pip install -q \
	    --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt -e '.[test]'; then :; else \
	  echo "== without systemd-python: no readiness, status or watchdog under systemd;"; \
	  echo "   training, checkpoints and andrectl work alike"; \
	  $(BIN)/python -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
	    print(*(d for d in p["dependencies"] + p["optional-dependencies"]["test"] \
	    if "systemd" not in d), sep="\n")' > $(VENV)/requirements.txt && \
	  $(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
	    -r $(VENV)/requirements.txt && \
	  $(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) --no-deps -e .; fi
	@touch $@

install: install-package install-files  ## as root: package, units, completions, man pages
ifneq ($(LIVE),)
	systemd-sysusers $(ROOT)/lib/sysusers.d/andread.conf
	systemd-tmpfiles --create $(ROOT)/lib/tmpfiles.d/andread.conf
	systemctl daemon-reload
endif
	@echo "Try next: andrectl init /var/lib/andread/default --help"

install-package:
	test -x $(DESTDIR)$(PREFIX)/bin/python || $(PYTHON) -m venv $(DESTDIR)$(PREFIX)
	$(DESTDIR)$(PREFIX)/bin/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) \
	  -c constraints.txt . click-man
	$(DESTDIR)$(PREFIX)/bin/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) \
	  --no-deps --force-reinstall .
ifneq ($(DESTDIR),)
	sed -i '1s|^#!$(DESTDIR)|#!|' $$(grep -lI '^#!$(DESTDIR)' $(DESTDIR)$(PREFIX)/bin/*)
endif

install-files:
	install -d $(PLACE)/bin $(PLACE)/lib/systemd/system $(PLACE)/lib/systemd/user \
	  $(PLACE)/lib/sysusers.d $(PLACE)/lib/tmpfiles.d $(PLACE)/share/man/man1
	for unit in $(UNITS); do \
	  sed 's|/opt/andread/|$(PREFIX)/|' units/$$unit > $(PLACE)/lib/systemd/system/$$unit && \
	  sed 's|/opt/andread/|$(PREFIX)/|' units/user/$$unit > $(PLACE)/lib/systemd/user/$$unit || exit; \
	done
	install -m 644 units/sysusers.conf $(PLACE)/lib/sysusers.d/andread.conf
	install -m 644 units/tmpfiles.conf $(PLACE)/lib/tmpfiles.d/andread.conf
	install -m 644 docs/man/andread.1 $(PLACE)/share/man/man1/
	ln -sfn $(PREFIX)/bin/andread $(PREFIX)/bin/andrectl $(PLACE)/bin/
	$(PAGES_WITH) -m andrectl.manual $(PLACE)/share

uninstall:  ## as root: take out what `make install` put in; runs stay where they are
	for unit in $(UNITS); do \
	  rm -f $(PLACE)/lib/systemd/system/$$unit $(PLACE)/lib/systemd/user/$$unit; \
	done
	rm -f $(PLACE)/lib/sysusers.d/andread.conf $(PLACE)/lib/tmpfiles.d/andread.conf \
	  $(PLACE)/bin/andread $(PLACE)/bin/andrectl \
	  $(PLACE)/share/man/man1/andread.1 $(PLACE)/share/man/man1/andrectl.1 \
	  $(PLACE)/share/man/man1/andrectl-*.1 \
	  $(PLACE)/share/bash-completion/completions/andrectl \
	  $(PLACE)/share/zsh/site-functions/_andrectl \
	  $(PLACE)/share/fish/vendor_completions.d/andrectl.fish
	rm -rf $(DESTDIR)$(PREFIX)
ifneq ($(LIVE),)
	systemctl daemon-reload
endif

run: $(STAMP)  ## train andrea-nano on real text in $(RUN): minutes on a CPU
	@test -f $(RUN)/run.toml || $(BIN)/andrectl init $(RUN) --example --preset andrea-nano --steps 300
	@$(BIN)/andrectl --run $(RUN) prepare
	@$(BIN)/andread --run $(RUN)
	@$(BIN)/andrectl --run $(RUN) status || [ $$? = 3 ]
	@echo
	@echo "Try next (. $(abspath $(BIN))/activate; export ANDREAD_RUN=$(abspath $(RUN))):"
	@echo "  andrectl samples --last 3     what the model wrote at the last audits"
	@echo "  andrectl policy               how the sources are mixed, and where each stands"
	@echo "  andrectl checkpoints          what can be resumed from"
	@echo "  andrectl verify               that it can be, proven"
	@echo "  raise steps in $(RUN)/run.toml, then"
	@echo "  andrectl start                go on in the background; past decay_steps the rate stays at"
	@echo "                                its minimum: andrectl pivot --set optimizer.decay_steps=N"
	@echo "  andrectl status --watch       watch it"
	@echo "  andrectl snapshot             a checkpoint now, acknowledged once durable"
	@echo "  andrectl pivot --caps code=0.5 --dry-run"
	@echo "                                what new bounds in mid-run would take; without --dry-run, do it"
	@echo "  andrectl pivots               those that were made, with their proof"
	@echo "  andrectl stop                 checkpoint and stop; start resumes bit for bit"

test: lint types  ## everything: lint, types, all tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-durability: $(STAMP)  ## failing calls, crash states, power cuts, broken disks: docs/durability.md
	$(BIN)/python -m pytest -q -n auto --dist worksteal tests/durability

soak: $(STAMP)  ## as root: MINUTES of trouble for one run and of the same one undisturbed
	nice $(BIN)/python -m tests.durability.soak --minutes $(MINUTES)

quick: lint types  ## lint, types, and the tests that take no real processes
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not slow"

bench: $(STAMP)  ## measure speed, in ten minutes on an idle machine; peers come from PyPI
	$(BIN)/python -m pip install -q --disable-pip-version-check $(PIP_FLAGS) -c constraints.txt \
	  accelerate safetensors transformers || echo "== could not: measuring without those peers"
	$(BIN)/python -m tests.bench

bench-gpu: $(STAMP)  ## the same on one GPU, in five minutes, into bench-gpu.md
	$(BIN)/python -m tests.bench.gpu bench-gpu.md

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

format: $(STAMP)  ## let ruff format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
