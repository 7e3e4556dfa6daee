# Each target is a verb on tools that can also be called alone from .venv/bin. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# The tests start hundreds of processes; none of them is to compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Tests export directories below TMPDIR. Debian 13 has /tmp in memory, and its NFS-Ganesha cannot export that.
ifeq ($(shell stat --file-system --format=%T "$${TMPDIR:-/tmp}" 2>/dev/null),tmpfs)
export TMPDIR := /var/tmp
endif

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What shares a cluster goes to one core (conftest.py), in this order.
PYTEST := $(BIN)/pytest --timeout=300 --no-loadscope-reorder
CORES := $(shell nproc)
# In `make test`, one worker more than cores, because in most seconds one of them waits.
WORKERS := $(shell echo $$(( $(CORES) + 1 )))
# What `make test` runs, the longest first. The scenarios of ordinary/ share a cluster and kill nothing, so they are quick.
QUICK := tests/scenarios/ordinary tests/simulation tests/unit tests/docs/test_manuals.py tests/docs/test_pages.py \
  tests/docs/test_weaknesses.py tests/docs/test_compatibility.py tests/docs/test_reliability.py tests/docs/test_how_to.py
# What `make scenarios` runs, without the above.
LARGE := tests/scenarios tests/docs tests/integration
# How many examples the tests with random input try; the profiles are in conftest.py.
EXAMPLES := quick
# On a real control plane, half of what a scenario takes is waiting; each worker has one of its own in memory.
PLANES := $(shell echo $$(( $(CORES) < 4 ? 2 * $(CORES) : 8 )))

# Writes the requirements of its argument with the hashes of their versions to a file.
LOCK := $(BIN)/uv pip compile --constraint constraints.txt --python-version 3.13 --generate-hashes --no-header \
  --no-annotate --quiet --output-file

# How many nodes `make kubelet` runs at a time. Each has one processor.
NODES := $(shell echo $$(( $(CORES) < 4 ? $(CORES) : 4 )))

# What `make kubelet` builds for its tests; without the storage suite, they do not need its programs.
PROGRAMS := control-plane storage-suite

# Which tests of `make kernel`, `make kubelet` and `make newcomer`, in pytest's words for -k; all by default.
SCENARIOS :=
# Runs of the simulation: how many, from which seed on, in how many processes; or one seed to show; or with a fault
# planted (PLANT is its name), or each of the faults in turn (PLANTED=1).
SEEDS := 1000
FIRST := 0
JOBS := $(CORES)
SEED :=
PLANT :=
PLANTED :=
# Which rows of the benchmarks, by their names; all by default. DEBIAN=1 measures in a fresh Debian 13, as in the image.
ROWS :=
DEBIAN :=
# Which versions of Python `make pythons` takes; all by default.
VERSIONS :=
# The version of a release, as in pyproject.toml.
VERSION :=
# Options of scripts/scan.py, such as --osv-url for a mirror.
SCAN_OPTIONS :=
# What the image stands on, its architecture (amd64 or arm64), and its name; scripts/build-image has the defaults.
BASE :=
ARCH :=
IMAGE :=

.PHONY: help setup programs demo up test newcomer pythons test-lab scenarios check conformance openshift kernel kubelet simulate soak chaos lint format settings monitoring forms krew lock release pictures proto image \
  image-check scan bench clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## Set up what is missing, then demonstrate the life of a claim (needs root)
	$(BIN)/kube-efs demo

test: setup ## Set up what is missing, then run what a change usually breaks
	@scripts/install-programs tests
	$(PYTEST) --numprocesses=$(WORKERS) --hypothesis-profile=$(EXAMPLES) $(QUICK)

pythons: setup ## Run the unit tests with the other supported versions of Python that this machine has
	@scripts/other-pythons $(VERSIONS)

newcomer: setup ## Run `make demo`, `make test` and their errors on fresh Debian and Ubuntu (needs root)
	@scripts/install-programs base
	$(PYTEST) --timeout=4000 tests/newcomer -k '$(SCENARIOS)'

test-lab: setup ## Run the tests of the embedded cluster and EFS (needs root)
	@scripts/install-programs tests
	$(PYTEST) --numprocesses=$(CORES) lab/tests

scenarios: setup ## Run the other tests: parts together, complete clusters, the commands of the pages (needs root)
	@scripts/install-programs tests
	$(PYTEST) --numprocesses=$(CORES) $(addprefix --deselect ,$(QUICK)) $(LARGE)

check: ## Run everything that CI runs (needs root; about an hour on two cores, the first time longer)
	$(MAKE) lint
	$(MAKE) demo
	$(MAKE) image BASE=local
	$(MAKE) image-check
	$(MAKE) scan SCAN_OPTIONS=--if-reachable
	$(MAKE) kernel SCENARIOS='not relay or crashes or network'
	$(MAKE) kubelet SCENARIOS='test_volumes or killed_at_once' PROGRAMS=control-plane
	$(MAKE) chaos CHAOS_SECONDS=60
	$(MAKE) simulate SEEDS=100
	$(MAKE) conformance
	@# The control plane of conformance has run the other scenarios.
	$(MAKE) scenarios LARGE='tests/scenarios/test_operator_pods.py tests/docs tests/integration'
	$(MAKE) test-lab
	$(MAKE) test EXAMPLES=thorough

conformance: setup ## Build a Kubernetes control plane (once, a quarter of an hour), then run the tests on it
	@scripts/install-programs tests
	tests/conformance/tools/build control-plane csi snapshots
	$(PYTEST) --numprocesses=$(PLANES) --cluster real tests/scenarios tests/conformance \
	  --ignore tests/scenarios/test_operator_pods.py

openshift: setup ## Build the tools of OLM and OpenShift (once, seven minutes), then check the bundle and the pods with them
	tests/conformance/tools/build operators openshift
	$(PYTEST) tests/openshift

kernel: setup ## Run the processes of a node on a separate kernel, with real NFS mounts and faults (needs root)
	@scripts/install-programs kernel
	$(BIN)/pytest --timeout=900 tests/kernel -k '$(SCENARIOS)'

kubelet: setup ## Run volumes of our image on a real kubelet with containerd, on a separate kernel (needs root)
	@scripts/install-programs kubelet
	tests/conformance/tools/build $(PROGRAMS)
	$(PYTEST) --numprocesses=$(NODES) --timeout=3000 tests/kubelet -k '$(SCENARIOS)'

up: setup ## Start an embedded cluster and EFS on this machine, until Ctrl-C (needs root)
	$(BIN)/kube-efs up

soak: setup ## Create and delete everything for SOAK_SECONDS (600); fail if memory has grown (needs root)
	$(BIN)/python -m tests.chaos soak

chaos: setup ## The same while processes are killed and sockets fuzzed, for CHAOS_SECONDS (120) (needs root)
	$(BIN)/python -m tests.chaos chaos

simulate: $(INSTALLED) ## Try to lose data: SEEDS runs in virtual time, the run of one SEED, or PLANTED=1 faults
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) --jobs $(JOBS) \
	  $(if $(SEED),--seed $(SEED)) $(if $(PLANT),--plant $(PLANT)) $(if $(PLANTED),--planted)

bench: setup ## Measure the figures of docs/performance.md, or the ROWS of them, and write them there (needs root)
	$(if $(DEBIAN),@scripts/install-programs base)
	$(BIN)/python -m bench$(if $(DEBIAN),.debian) $(ROWS)

lint: $(INSTALLED) ## Check style, types, the layers of the design and the words of the pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/plain_english.py

format: $(INSTALLED) ## Rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

settings: $(INSTALLED) ## Rewrite the tables of docs/settings.md from the code
	$(BIN)/python scripts/settings_table.py

monitoring: $(INSTALLED) ## Rewrite deploy/monitoring and the table of docs/metrics.md from the code
	$(BIN)/python -m scripts.monitoring

forms: $(INSTALLED) ## Rewrite deploy/helm, deploy/kustomize and deploy/openshift from the operator's assets
	$(BIN)/python scripts/forms.py

.PHONY: docs
docs: $(INSTALLED) ## Build the site of the pages into build/docs, and manual pages into build/man
	$(BIN)/mkdocs build --quiet
	$(BIN)/python scripts/man_pages.py build/man

krew: $(INSTALLED) ## Build the archives of kubectl efs for krew, and their manifest, in build/krew (needs PyPI)
	$(BIN)/python -m scripts.krew

lock: $(INSTALLED) ## Write the versions and hashes of the Python packages in the image, and of those that build it
	$(LOCK) deploy/image/requirements.lock pyproject.toml
	$(BIN)/python -c 'import tomllib as t; print(*t.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | \
	  $(LOCK) deploy/image/build.lock -

release: setup ## Build all files of the release VERSION into dist, without publishing them (needs root and PyPI)
	$(BIN)/python -m scripts.release $(VERSION) $(if $(BASE),--base $(BASE))

pictures: setup ## Draw the pictures of the pages in docs/pictures, from an embedded cluster (needs root)
	@scripts/install-programs tests
	$(BIN)/python -m scripts.pictures

proto: $(INSTALLED) ## Rewrite the Python modules of the .proto files
	scripts/generate-protocol

image: ## Build the image with buildah, on BASE, or on BASE=local without a registry, for ARCH (needs root)
	@BASE='$(BASE)' ARCH='$(ARCH)' IMAGE='$(IMAGE)' scripts/build-image

image-check: setup ## Run the image of `make image` for ARCH on an embedded cluster (needs root)
	@scripts/install-programs container
	@scripts/install-programs scan
	$(if $(ARCH),@scripts/emulate '$(ARCH)')
	ARCH='$(ARCH)' IMAGE='$(IMAGE)' $(BIN)/pytest --timeout=$(if $(ARCH),1500,300) tests/image

scan: setup ## Look for known vulnerabilities of the packages in the image of `make image` (needs root)
	@scripts/install-programs scan
	$(BIN)/python -m scripts.scan $(if $(IMAGE),--image $(IMAGE)) $(SCAN_OPTIONS)

setup: programs $(INSTALLED) ## Install what the other targets need: Debian packages, and Python packages into .venv

programs:
	@scripts/install-programs

$(INSTALLED): pyproject.toml lab/pyproject.toml constraints.txt scripts/install-python
	@scripts/install-python $(VENV)
	@touch $@

clean: ## Remove .venv and all other generated files
	rm -rf $(VENV) build .cache .kube-efs .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
