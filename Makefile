# Two commands first: `make demo` (run it) and `make test` (test it). Both set up what they need.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
DEBIAN_PYTHON := $(lastword $(wildcard /usr/bin/python3.11 /usr/bin/python3.12 /usr/bin/python3.13))

.PHONY: help setup docs docs-serve links demo test e2e e2e-vllm e2e-packages fresh-clone lint types contracts units explore proto proto-check crds cli-page clean \
  vllm-env test-vllm-real test-vllm-serving e2e-plugin-image bench-vllm-real bench-vllm-plugin cluster-api chart \
  bench-router bench-planner bench-engine bench-routing bench-capacity bench-autoscaling bench-gpu bench-operator bench-mutants \
  bench-prefix bench-ablations bench-disturbances bench-containment bench-faults bench-kills bench-soak fuzz

help: ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: .venv/.ready ## .venv with every member and tool; .venv/bin/penstock works

.venv/.ready: uv.lock pyproject.toml $(wildcard */pyproject.toml)
	@command -v uv >/dev/null || $(PYTHON) -m uv --version >/dev/null 2>&1 || $(MAKE) --no-print-directory .uv/bin/uv
	@$(call uv) sync --frozen --quiet --all-packages
	@touch $@

.venv/optimized/.ready: .venv/.ready # the same with Debian's Python, built as that of the images; pyenv's lacks PGO and LTO
	@UV_PROJECT_ENVIRONMENT=.venv/optimized $(call uv) sync --frozen --quiet --all-packages $(DEBIAN_PYTHON:%=--python %)
	@touch $@

.uv/bin/uv: # uv of the project's own, where the machine has none
	@$(PYTHON) -m venv .uv && .uv/bin/pip install --quiet uv

define uv
$$(command -v uv || ($(PYTHON) -m uv --version >/dev/null 2>&1 && echo "$(PYTHON) -m uv") || echo .uv/bin/uv)
endef

demo: setup ## serve a real trace on this machine, beside vLLM's own policy
	@$(BIN)/penstock demo

test: setup lint types contracts proto-check links cluster-api units ## everything that must be green

fresh-clone: ## the demo in a fresh clone, with nothing of this environment
	@e2e/fresh_clone

e2e: setup ## a pool on a real cluster, installed, tested and removed: needs root, or KUBECONFIG
	@UV_COMMAND="$(call uv)" PYTHONPATH=e2e $(BIN)/python -m pool_on_cluster $(if $(KEEP),--keep) \
	  $(foreach step,$(ONLY),--only $(step))

e2e-vllm: setup ## a pool on real vLLM, on the CPU, beside vLLM's own scheduler; fetches 6.2 GB the first time
	@UV="$(call uv)" bench/vllm_environment serving
	@PYTHONPATH=e2e:bench $(BIN)/python -m pool_on_vllm

e2e-packages: # what `make e2e` needs of Debian
	@apt-get update -qq
	@DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$(e2e/cluster/cluster packages) >/dev/null

e2e-plugin-image: setup ## the plug-in's image beside real vLLM, on the CPU; needs root
	@UV="$(call uv)" bench/vllm_environment serving
	@PYTHONPATH=e2e:bench $(BIN)/python -m plugin_image

lint: setup
	@$(BIN)/ruff check --quiet . && $(BIN)/ruff format --quiet --check .

CONFTESTS := $(patsubst %,tests/%/conftest.py,kubernetes operator vllm_plugin vllm_serving)
types: setup # each conftest beside packages of its tests is the module `conftest`, so they are looked at one by one
	@$(BIN)/mypy --no-error-summary $(filter-out %.dist-info,$(wildcard */src/penstock_*)) \
	  $(filter-out $(CONFTESTS),$(wildcard tests/*/*.py bench/*.py bench/*/*.py e2e/*/*.py e2e/*/*/*.py))
	@for file in $(CONFTESTS); do $(BIN)/mypy --no-error-summary $$file || exit 1; done

contracts: setup
	@$(BIN)/lint-imports > .venv/contracts.log 2>&1 || (cat .venv/contracts.log; exit 1)

units: export GRPC_VERBOSITY := ERROR
units: setup # core apart, with its coverage: decisions are tested in full, by decisions' own tests
	@$(BIN)/pytest tests/core -n 2 --dist worksteal --cov=penstock_core --cov-branch \
	  --cov-fail-under=100 --cov-report=term-missing:skip-covered
	@$(BIN)/pytest tests/simulation -n 2 --dist worksteal
	@$(BIN)/pytest --ignore=tests/core --ignore=tests/simulation --ignore=tests/vllm_real --ignore=tests/vllm_plugin \
	  --ignore=tests/vllm_serving -n 2 --dist loadfile

explore: export GRPC_VERBOSITY := ERROR
explore: setup ## every property with other examples on each run, ten times as many; prints the seed of what fails
	@$(BIN)/pytest -m hypothesis --hypothesis-profile=explore --timeout 3600 -n 2 --dist worksteal $(or $(ONLY),tests)

fuzz: export PENSTOCK_FUZZ_SEED := $(or $(SEED),0)
fuzz: export PENSTOCK_FUZZ_CASES := $(or $(CASES),5000)
fuzz: export PENSTOCK_FUZZ_FIRST := $(or $(FIRST),0)
fuzz: setup ## hostile bodies, connections and gRPC frames beside live streams: SEED, CASES, FIRST
	@$(BIN)/pytest tests/processes/test_live_fuzz.py

cluster-api: # a real API server, helm and Prometheus for the tests: a quarter of an hour of building Go, once a machine
	@e2e/cluster/build control kwok helm kube-score >/dev/null
	@e2e/cluster/prometheus >/dev/null
	@e2e/cluster/definitions >/dev/null

vllm-env: setup ## vLLM's own scheduler, for the policy vllm-real and the plug-in: a minute and 5.5 GB, once
	@UV="$(call uv)" bench/vllm_environment

test-vllm-real: vllm-env ## the policy vllm beside vLLM itself, and the plug-in inside two releases of it
	@$(BIN)/pytest tests/vllm_real
	@PENSTOCK_VLLM=0.32 $(BIN)/pytest tests/vllm_plugin
	@PENSTOCK_VLLM=0.33 $(BIN)/pytest tests/vllm_plugin

test-vllm-serving: setup ## real vLLM servers on the CPU with the plug-in inside: what vLLM can do it still does
	@UV="$(call uv)" bench/vllm_environment serving
	@$(BIN)/pytest tests/vllm_serving

bench-vllm-real: vllm-env ## the policy vllm compared with vLLM's scheduler in every scenario, by rate and token budget
	@$(BIN)/python bench/vllm_real.py

bench-vllm-plugin: vllm-env ## CPU time of a policy's steps inside vLLM, compared with vLLM's own scheduler
	@$(BIN)/python bench/vllm_plugin.py

bench-router: .venv/optimized/.ready ## every data path compared with Envoy alone, vllm-router, smg and LiteLLM: latency, requests/s, CPU, memory
	@UV="$(call uv)" .venv/optimized/bin/python bench/router_overhead.py --out bench/results/router-overhead.txt

bench-planner: setup ## admission and one step: p50, p99, max
	@$(BIN)/python bench/planner.py

bench-engine: setup ## the simulated engine: largest load and its cost
	@$(BIN)/python bench/engine_load.py

bench-routing: setup ## routing orders in virtual time, and how capacity scales (an hour)
	@$(BIN)/python bench/routing_orders.py orders --hops 4 --seeds 5
	@$(BIN)/python bench/routing_orders.py orders --replicas 16
	@$(BIN)/python bench/routing_orders.py orders --replicas 16 --scenario coder --age-ms 0,20,100,500
	@$(BIN)/python bench/routing_orders.py scaling

bench-ablations: setup ## benefit of each part of slos-serve: one removed at a time, same requests
	@$(BIN)/python bench/ablations.py

bench-disturbances: setup ## admitted requests that meet their SLO on a machine that slows down or has slow steps, in every scenario
	@$(BIN)/python bench/disturbances.py

bench-capacity: setup ## capacity of every policy in every scenario, all tuned (hours; can be resumed)
	@$(BIN)/python bench/capacity.py && $(BIN)/python bench/capacity_docs.py

bench-prefix: setup ## capacity with prefix caches under each system's routing, all tuned (days; can be resumed): CELL=NAME:REPLICAS, JOBS
	@$(BIN)/python bench/prefix.py $(if $(CELL),--cell $(CELL)) $(if $(JOBS),--jobs $(JOBS))

bench-gpu: setup ## vLLM's own scheduler and Penstock's on a real GPU (two hours)
	@PYTHONPATH=bench $(BIN)/python -m gpu $(GPU)

bench-mutants: setup ## small changes of the sources that tests do not detect: SINCE=REV, SAMPLE=N SEED=S, PACKAGES, EXCLUDE, JOBS
	@PYTHONPATH=bench $(BIN)/python -m mutants $(PACKAGES) $(if $(SINCE),--since $(SINCE)) \
	  $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED)) $(if $(JOBS),--jobs $(JOBS)) $(if $(KEEP),--keep) \
	  $(if $(EXCLUDE),--exclude $(EXCLUDE))

bench-faults: setup ## the whole system in virtual time under seeded faults: SEEDS=10000 FIRST=0 JOBS; exits 1 if an invariant is broken
	@PYTHONPATH=tests/common:tests/faults $(BIN)/python bench/faults.py $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) \
	  $(if $(JOBS),--jobs $(JOBS))

bench-kills: setup ## kill -9 of engines and sidecars under load, each answer checked token for token; exits 1 if one is cut or wrong
	@PYTHONPATH=bench:tests/common:tests/processes $(BIN)/python bench/kills.py $(if $(REQUESTS),--requests $(REQUESTS)) \
	  $(if $(RATE),--rate $(RATE))

bench-soak: setup ## real processes under random faults, each answer checked token for token: MINUTES=30 RATE=1 SEED=0; exits 1 if any is wrong
	@PYTHONPATH=bench:tests/common:tests/processes $(BIN)/python -m soak $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(RATE),--rate $(RATE)) $(if $(SEED),--seed $(SEED))

bench-containment: setup ## hostile bodies, overload, revoked keys, limits; BASELINE=FOLDER: cost of containment; MINUTES, ONLY
	@PYTHONPATH=bench:tests/common:tests/processes $(BIN)/python -m containment $(if $(MINUTES),--minutes $(MINUTES)) \
	  $(if $(BASELINE),--baseline $(BASELINE)) $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench-operator: setup cluster-api ## a hundred pools in one operator: reconciliations, CPU, memory
	@$(BIN)/python bench/operator_load.py

bench-autoscaling: setup ## autoscaling on admission compared with queue lengths: attainment and GPU hours
	@$(BIN)/python bench/autoscaling.py

chart: crds ## what the chart has from elsewhere: the definition of ServingPool, its README's table of values
	@PYTHONPATH=tests/charts $(BIN)/python -m chart.tables

docs docs-serve links: export DISABLE_MKDOCS_2_WARNING := true
docs docs-serve links: export NO_MKDOCS_2_WARNING := 1
docs: setup ## the documentation as a site, in site/
	@$(BIN)/mkdocs build --strict

docs-serve: setup ## the same on http://127.0.0.1:8000, rebuilt while you write
	@$(BIN)/mkdocs serve --quiet

links: setup # every link in the documentation leads to a page and an anchor that exist
	@$(BIN)/mkdocs build --strict --site-dir .venv/site > .venv/links.log 2>&1 || (grep -E 'WARNING|ERROR' .venv/links.log; exit 1)

PROTOS := $(wildcard proto/src/penstock_proto/*.proto)
define stubs
$(BIN)/python -m grpc_tools.protoc -I proto/src --plugin=protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
  --plugin=protoc-gen-mypy_grpc=$(BIN)/protoc-gen-mypy_grpc --python_out=$(1) --grpc_python_out=$(1) \
  --mypy_out=quiet:$(1) --mypy_grpc_out=quiet,only_async:$(1) $(PROTOS) \
  && rm -f $(1)/penstock_proto/telemetry_pb2_grpc.py* \
  && $(BIN)/python -m grpc_tools.protoc -I proto/src --descriptor_set_out=$(1)/penstock_proto/telemetry.binpb \
  proto/src/penstock_proto/telemetry.proto
endef

proto: setup ## generate the gRPC stubs beside their .proto files
	@$(call stubs,proto/src)

crds: setup ## generate the CustomResourceDefinition, and the pool file's page, from the pool's schema
	@$(BIN)/python -m penstock_pool.crd > crds/servingpools.yaml
	@cp crds/servingpools.yaml charts/penstock/files/servingpools.yaml
	@$(BIN)/python -m penstock_pool.reference > docs/pool-file.md

cli-page: setup ## generate the command line's page from its help
	@$(BIN)/python -m penstock_cli.reference > docs/cli.md

proto-check: setup # the committed stubs are what the .proto files say
	@rm -rf .venv/stubs && mkdir -p .venv/stubs && $(call stubs,.venv/stubs)
	@for f in $$(cd .venv/stubs && find . -type f); do cmp --quiet .venv/stubs/$$f proto/src/$$f \
	  || { echo "$$f is stale: run make proto"; exit 1; }; done
