# make demo    set everything up, then release two models from end to end
# make test    set everything up, then check and test
# make test-all  the same with the tests that are marked as long (an hour more)
# make ready   set everything up in .venv, and nothing else
# make arm-ready  what packages for ARM64 are compiled and run with, in .venv/arm64: 430 MB
# make lint    ruff, mypy, import-linter and codespell alone
# make bench   all of the six below, hours
# make bench-served [MODELS="bert yolov8n"]  what Handoff registers, beside every alternative
# make bench-bfloat16 [MODELS=...]  the same in bfloat16, where a recipe allows it
# make bench-int8 [MODELS=...]  the same in int8, and what is lost by trained digits
# make bench-seeds [DEVICE=cuda] [PRECISION=fp16,bf16] [BATCH=64]  two models by the seeds' protocol
# make bench-road  the road's own cost, against a bare script with the same torch calls
# make bench-night [NIGHT=500] [WORKERS=1,4,16]  a simulated night: server, queue, memory, drain
# make bench-targets  two targets compiled at once, against one after the other
# make bench-transformers [MODELS=...] [DEVICE=...] ...  the corpus' transformers by the seeds' protocol
# make bench-night-curve [NIGHT=50,100,200,400] [WORKERS=1x16] [WRITE=FILE]  how a night grows
# make corpus  deliver, read and judge 24 models of published packages, and 16 careless deliveries
# make corpus-release [MODELS="bert demo"]  release those 24 with the default recipe, as far as the verdict
# make corpus-arm [MODELS="bert demo"]  release some for cpu and arm64-v8.2 together, pull, replay: hours
# make faults  what the numeric gate catches: seeded faults, how small, and how often it is wrong
# make outages  kills, failing stores, full disks, many at once: what a release survives (an hour)
# make fuzz    100 000 mutated deliveries: typed refusals, and nothing executed
# make s3      the stores' tests against a real S3 server: Ceph's, from Debian's packages, as root
# make stack-check  what can be checked of infra/containers without a container engine
# make stack-ready  the tools for that, in .venv-stack
# make ray-ready  Ray Serve, for its example's test (marked as long), in .venv-ray: 390 MB
# make stack-run [STACK_RUN_FOLDER=...] [STACK_RUN_ANEW=1] [WRITE=FILE]  the containers themselves, from
#              nothing, as root on Debian: images, compose, releases, profiles, drain, tear-down (an hour)
# make cluster-run  the same of the Kubernetes manifests, on a cluster of one node: Kubernetes is built
#              from Debian's source (a quarter of an hour, once), the images are those of stack-run
# make docs    README.md and docs/ as a site in site/, each warning an error
# make pictures [FOLDER=...]  the pages that people look at, by Chromium, at three widths, light and dark
# make reference  docs/recipe-reference.md, from the models that recipes are read into
# make lock    resolve the dependencies anew
# make clean   remove what was set up, the site and the demo's deliveries; releases stay
#
# HANDOFF_TORCH chooses another torch than the locked one:
#   HANDOFF_TORCH=cpu               PyTorch's own CPU build, where its index can be reached
#   HANDOFF_TORCH=torch==2.14.1     or a path to a wheel: whatever uv can install
#   HANDOFF_TORCH=installed         the torch that the system's Python already has

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
LOCKS := requirements.lock requirements-torch.lock
INSTALL := $(BIN)/uv pip install --quiet --python $(BIN)/python
HANDOFF_TORCH ?=

ifeq ($(HANDOFF_TORCH),)
TORCH := -r requirements-torch.lock --require-hashes --no-deps
else ifeq ($(HANDOFF_TORCH),cpu)
TORCH := 'torch>=2.13,<2.16' --torch-backend cpu
else
TORCH := $(HANDOFF_TORCH)
endif

CORPUS := .venv-corpus

STACK := .venv-stack

DOCS := .venv-docs

RAY := .venv-ray

# An environment in the folder $(1) over the product's own, with what the lock $(2) has.
define over_product
$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(1)
$(BIN)/python -c 'import pathlib, sysconfig as s; \
  name = f"python{s.get_python_version()}"; \
  pathlib.Path("$(1)/lib", name, "site-packages/product.pth").write_text(s.get_path("purelib"))'
$(BIN)/uv pip install --quiet --python $(1)/bin/python --require-hashes --no-deps -r $(2)
endef

MUTATIONS ?= 100000

# Two for each core, since a third of the time is waited, where there are some 3 GB of memory each.
TEST_PROCESSES ?= $(shell m=$$(awk '/MemAvailable/ {print int($$2 / 3e6)}' /proc/meminfo); n=$$((2 * $$(nproc))); \
  echo $$((m < 2 ? 0 : m < n ? m : n)))

PYTEST := $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

# A release starts some ten processes, which would compile the same source each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: pictures demo test test-all bench bench-served bench-bfloat16 bench-int8 bench-seeds bench-transformers bench-road bench-night bench-night-curve bench-targets corpus corpus-release corpus-arm faults outages fuzz s3 ray-ready stack-ready stack-check stack-run cluster-run docs reference lint lock wheel ready arm-ready clean

demo: ready
	$(BIN)/python -m examples.demo

test: ready lint
	$(PYTEST) -m "not long"

test-all: ready lint
	$(PYTEST)

bench: bench-served bench-bfloat16 bench-int8 bench-seeds bench-road bench-targets bench-night

bench-served: ready $(CORPUS)/.served
	$(CORPUS)/bin/python -m tests.studies.benchmarks.served $(MODELS) --folder $(CORPUS)/served

bench-bfloat16: ready $(CORPUS)/.served
	$(CORPUS)/bin/python -m tests.studies.benchmarks.served $(MODELS) --folder $(CORPUS)/bfloat16 \
	  --recipes bfloat16 --float32 $(CORPUS)/served

bench-int8: ready $(CORPUS)/.served
	$(if $(MODELS),,$(BIN)/python -m tests.studies.benchmarks.int8)
	$(CORPUS)/bin/python -m tests.studies.benchmarks.served $(MODELS) --folder $(CORPUS)/int8 \
	  --recipes int8 --float32 $(CORPUS)/served

SEEDS_OPTIONS = $(if $(DEVICE),--device $(DEVICE)) $(if $(PRECISION),--precision $(PRECISION)) \
  $(if $(BATCH),--batch $(BATCH)) $(if $(KEEP),--keep $(KEEP))

bench-seeds: ready
	$(BIN)/python -m tests.studies.benchmarks.seeds $(SEEDS_OPTIONS)

bench-transformers: ready $(CORPUS)/.served
	$(CORPUS)/bin/python -m tests.studies.benchmarks.seeds $(if $(MODELS),$(MODELS),transformers) $(SEEDS_OPTIONS)

bench-road: ready
	$(BIN)/python -m tests.studies.benchmarks.road
	$(BIN)/python -m tests.studies.benchmarks.loaded
	$(BIN)/python -m tests.studies.benchmarks.growth

bench-night: ready
	$(BIN)/python -m tests.studies.benchmarks.night --models $(if $(NIGHT),$(NIGHT),500) \
	  --workers $(if $(WORKERS),$(WORKERS),1,4,16)
	$(BIN)/python -m tests.studies.benchmarks.queues

bench-night-curve: ready
	$(BIN)/python -m tests.studies.benchmarks.night_curve $(if $(NIGHT),--models $(NIGHT)) \
	  $(if $(WORKERS),--workers $(WORKERS)) $(if $(WRITE),--write $(WRITE))

bench-targets: ready
	$(BIN)/python -m tests.studies.benchmarks.two_targets
	$(BIN)/python -m tests.studies.benchmarks.two_targets --whole --factory examples.user_model:build

# An environment of its own over the product's, since those packages pin what they please.
corpus: ready $(CORPUS)/.ready
	$(CORPUS)/bin/python -m tests.studies.corpus $(MODELS)

corpus-release: ready $(CORPUS)/.ready
	$(CORPUS)/bin/python -W ignore -m tests.studies.corpus.release --folder $(CORPUS)/release \
	  $(if $(MODELS),$(MODELS),--write tests/studies/corpus/README.md)

corpus-arm: arm-ready $(CORPUS)/.ready
	$(CORPUS)/bin/python -W ignore -m tests.studies.corpus.arm --folder $(CORPUS)/arm \
	  $(if $(MODELS),$(MODELS),--write docs/arm.md)

faults: ready
	$(BIN)/python -m tests.studies.faults $(PART)

outages: ready
	$(BIN)/python -m tests.studies.outages --write tests/studies/outages/README.md $(PART)

fuzz: ready
	$(BIN)/python -m tests.tasks.intake.fuzz $(MUTATIONS)

s3: ready
	tests/s3/run.sh $(BIN)/python -q

ray-ready: ready $(RAY)/.ready

# What the servers' image holds, from its own lock, and the tools that judge the stack's files.
stack-ready: ready $(STACK)/.ready

stack-check: stack-ready
	infra/containers/check.sh $(CURDIR)/$(STACK)/bin
	$(BIN)/python -m pytest -q tests/infra/stack/test_stack_files.py tests/infra/stack/test_stack_tools.py \
	  tests/infra/stack/test_stack_servers.py

STACK_RUN_FOLDER ?= /var/tmp/handoff-stack-run

stack-run: stack-ready
	$(BIN)/python -m tests.studies.containers --folder $(STACK_RUN_FOLDER) \
	  $(if $(STACK_RUN_ANEW),--anew) $(if $(WRITE),--write $(WRITE))

cluster-run: stack-ready
	$(BIN)/python -m tests.studies.containers.cluster --folder $(STACK_RUN_FOLDER) \
	  $(if $(STACK_RUN_ANEW),--anew) $(if $(WRITE),--write $(WRITE))

$(STACK)/.ready: infra/containers/images/server.lock infra/containers/tools.lock
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(STACK)
	$(BIN)/uv pip install --quiet --python $(STACK)/bin/python --require-hashes --no-deps \
	  -r infra/containers/images/server.lock -r infra/containers/tools.lock
	@touch $@

$(RAY)/.ready: examples/serving/requirements-ray.lock
	$(call over_product,$(RAY),$<)
	@touch $@

$(CORPUS)/.ready: tests/studies/corpus/requirements.lock
	$(call over_product,$(CORPUS),tests/studies/corpus/requirements.lock)
	@touch $@

$(CORPUS)/.served: $(CORPUS)/.ready tests/studies/benchmarks/served/requirements.lock
	$(BIN)/uv pip install --quiet --python $(CORPUS)/bin/python --require-hashes --no-deps \
	  -r tests/studies/benchmarks/served/requirements.lock
	@touch $@

# An environment of its own over the product, whose API the site shows.
docs: reference $(DOCS)/.ready
	$(DOCS)/bin/sphinx-build --fail-on-warning --keep-going --quiet -c docs -d $(DOCS)/doctrees . site

pictures: ready
	$(BIN)/python -m tests.docs.pictures $(FOLDER)

reference: ready
	$(BIN)/python -m handoff.infra.documenting.recipe_reference docs/recipe-reference.md
	$(BIN)/python -m handoff.infra.documenting.folders docs/how-it-works.md
	$(BIN)/python -m handoff.infra.documenting.findings docs/training.md
	$(BIN)/python -m handoff.infra.documenting.glossary docs/glossary.md

$(DOCS)/.ready: docs/requirements.lock
	$(call over_product,$(DOCS),docs/requirements.lock)
	@touch $@

lint: ready
	$(BIN)/ruff check --quiet .
	$(BIN)/ruff format --quiet --check .
	$(BIN)/mypy --no-error-summary --num-workers auto
	$(BIN)/lint-imports --no-cache > /dev/null || $(BIN)/lint-imports --no-cache
	git ls-files -z --cached --others --exclude-standard | xargs -0 $(BIN)/codespell

ready: $(READY)

$(READY): pyproject.toml $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "expected Python 3.11 or newer, got $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || \
	  $(PYTHON) -m venv $(if $(filter installed,$(HANDOFF_TORCH)),--system-site-packages) .venv || \
	  { echo "expected python3 -m venv to work. Install it (Debian: apt-get install python3-venv)"; exit 1; }
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(INSTALL) --require-hashes --no-deps -r requirements.lock
	$(if $(filter installed,$(HANDOFF_TORCH)),,$(INSTALL) $(TORCH))
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $(READY)
	@echo "Handoff is set up. Try it: make demo, or $(BIN)/handoff doctor; README.md goes on from here"

# ARM64's torch, with the two CUDA libraries that it links, beside the libraries of this .venv.
arm-ready: ready .venv/arm64/torch-version

.venv/arm64/torch-version: tasks/compile/arm/requirements.lock tasks/compile/arm/fill_sysroot.py
	rm -rf .venv/arm64.wheels
	$(BIN)/uv pip install --quiet --target .venv/arm64.wheels --python-version 3.11 --no-deps \
	  --python-platform aarch64-manylinux_2_28 --only-binary :all: --require-hashes \
	  -r tasks/compile/arm/requirements.lock
	$(BIN)/python -m handoff.tasks.compile.arm.fill_sysroot .venv/arm64.wheels
	rm -rf .venv/arm64.wheels

lock:
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --upgrade --all-extras --group dev pyproject.toml -o .venv/all.lock
	$(BIN)/python -m handoff.infra.documenting.split_lock .venv/all.lock requirements.lock requirements-torch.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-deps \
	  --no-header --no-annotate --no-emit-index-url --upgrade tests/studies/corpus/requirements.in \
	  -o tests/studies/corpus/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-deps \
	  --no-header --no-annotate --no-emit-index-url --upgrade \
	  tests/studies/benchmarks/served/requirements.in -o tests/studies/benchmarks/served/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --upgrade docs/requirements.in \
	  -o docs/requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --constraint requirements.lock --upgrade \
	  examples/serving/requirements-ray.in -o examples/serving/requirements-ray.lock
	$(BIN)/uv pip compile --quiet --python-platform aarch64-manylinux_2_28 --python-version 3.11 \
	  --only-binary :all: --generate-hashes --no-deps --no-header --no-annotate --no-emit-index-url \
	  --upgrade tasks/compile/arm/requirements.in -o tasks/compile/arm/requirements.lock
	for name in images/server images/build tools; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url --constraint requirements.lock \
	    --upgrade infra/containers/$$name.in -o infra/containers/$$name.lock || exit 1; \
	done

# The same wheel, byte for byte, from the same commit.
wheel: ready
	$(BIN)/python -m hatchling build --target wheel

clean:
	rm -rf .venv $(CORPUS) $(STACK) $(DOCS) $(RAY) site .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
