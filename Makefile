# drumline. Prerequisites: git, make, Python 3.11 or newer with venv. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# KEEP=1: `make demo` leaves the stack and the web page up.
KEEP ?=
# Tests run in so many processes, each with a stack of its own (about 1 GB); they wait more than they compute.
JOBS ?= 4
# Time between two lines while pip is at work; s.
PROGRESS_S ?= 10

# Exact versions and hashes of Python packages, and for which extras: all tests; all programs; the image.
LOCKS := infra/requirements
EXTRAS_dev := dev
EXTRAS_all := all gpu archive build
EXTRAS_release := release
EXTRAS_image := streams sinks gpu archive report serve grafana otel nvsentinel build

# Generators of docs/generate, each of one page of docs/reference. Those of PAGES_OF_CODE restate code line by line: the
# repository does not have their pages.
PAGES_OF_CODE := bounds_page tables_page
PAGES_MADE := $(PAGES_OF_CODE) causes_page chart_files occupancy_query prometheus_files settings_page cli_page metrics_page alerts_page dashboards_page collector_status_page fleet_page cookbook dashboard_pictures

.DEFAULT_GOAL := help
.PHONY: help setup compiler jars test test-long test-kube test-cluster demo docs site lint lock release

##@ drumline

help: ## Print this list
	@awk -F ':.*## ' '/^##@ / { printf "%s%s:\n", gap, substr($$0, 5); gap = "\n" } \
		/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Run it

setup: compiler $(VENV)/ready jars ## Install everything: a C compiler (with apt as root), Python packages, Kafka's jars
	@echo "ready: $(BIN)/drumline"

jars: $(VENV)/ready
	@echo "Kafka's jars (fetched once)"; $(BIN)/python -m drumline.infra.localstack.kafka.jars > /dev/null

# It builds what CUPTI and NCCL call.
compiler:
	@if command -v cc > /dev/null; then exit 0; fi; \
	packages="gcc libc6-dev"; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then \
		echo "installing $$packages with apt-get: NCCL's plugin and the tests need them"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$packages; \
	else \
		echo "a C compiler is needed; on Debian or Ubuntu: sudo apt-get install $$packages" >&2; \
		exit 1; \
	fi

# Packages come with the hashes of infra/requirements, which name all there are; drumline itself is built with the locked
# setuptools. Bytecode is written when a module is first imported: most of their 12,000 never are. What `make test` keeps
# goes when packages change, so that none of modules that are gone stays for ever.
$(VENV)/ready: pyproject.toml $(LOCKS)/dev.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"{sys.executable} is older than Python 3.11; make PYTHON=...")'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV) || { \
		echo "no venv module: apt-get install python3-venv" >&2; rm -rf $(VENV); exit 1; }
	@echo "installing Python packages into $(VENV) (a few minutes the first time)"
	@PYTHONUNBUFFERED=1 $(BIN)/pip install --disable-pip-version-check --progress-bar off --require-hashes \
		--no-compile --no-deps --requirement $(LOCKS)/dev.txt > $(VENV)/pip.log & pip=$$!; \
	trap 'kill $$pip 2> /dev/null; wait $$pip; exit 130' INT TERM; seconds=0; \
	while sleep 1; kill -0 $$pip 2> /dev/null; do \
		seconds=$$((seconds + 1)); [ $$((seconds % $(PROGRESS_S))) -eq 0 ] || continue; \
		echo "  $$(grep -c '^Collecting ' $(VENV)/pip.log) of at most $$(grep -c '==' $(LOCKS)/dev.txt) packages fetched," \
			"$$(ls -d $(VENV)/lib/python*/site-packages/*.dist-info 2> /dev/null | wc -l) installed"; \
	done; wait $$pip
	@echo "  building drumline"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@rm -rf $(VENV)/bytecode
	@touch $@

demo: setup ## Run a recorded GPU job through the whole platform (KEEP=1 leaves it and its web page up)
	@$(BIN)/drumline demo $(if $(KEEP),--keep)

##@ Check it

lint: $(VENV)/ready ## Check style, types, imports, documentation
	@$(MAKE) --no-print-directory --jobs=2 $(LINTS)

# mypy, which takes longest, goes beside the rest.
LINTS := lint-types lint-rest
.PHONY: $(LINTS) collect

lint-types:
	@$(BIN)/mypy

lint-rest:
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check --quiet
	@PYTHONPATH=.typing $(BIN)/lint-imports > /dev/null || PYTHONPATH=.typing $(BIN)/lint-imports
	@$(BIN)/codespell
	@$(BIN)/python tests/style/check_docs.py
	@$(BIN)/python tests/style/check_names.py

# Once, so that the processes of `make test` find the bytecode instead of writing the same at the same time.
collect:
	@$(BIN)/pytest --collect-only -qq > $(VENV)/collected.log || { cat $(VENV)/collected.log; exit 1; }

# Each process would compile all that it imports anew where the shell forbids bytecode; here it is apart from the sources.
test: export PYTHONDONTWRITEBYTECODE :=
test: export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/bytecode

# mypy takes as long as all else before the tests, and they wait more than they compute: it runs beside them. In CI a
# failed test with a real stack is run once more at the end, and named.
test: compiler $(VENV)/ready ## Run lint and all tests, with a real Kafka and a real ClickHouse engine (JOBS=4 processes)
	@$(MAKE) --no-print-directory --jobs=3 jars lint-rest collect
	@nice $(BIN)/mypy > $(VENV)/types.log 2>&1 & types=$$!; trap 'kill $$types 2> /dev/null; exit 130' INT TERM; \
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder --cache-clear; code=$$?; \
	[ $$code -eq 0 ] || [ "$(CI)" != true ] || { $(BIN)/python .ci/again.py $$code; code=$$?; }; \
	wait $$types || { cat $(VENV)/types.log; code=1; }; exit $$code

test-long: setup $(VENV)/zig ## Run the long tests: chaos runs, outages, security, benchmarks (real stacks)
	@$(BIN)/pytest -m long

test-kube: setup ## Run the Helm chart on a real Kubernetes: control plane, kubelet and containers on this machine (as root)
	@PYTHONPATH=tests $(BIN)/python -m support.kube.tools
	@$(BIN)/pytest -m kube tests/kube

# Slurm's daemons come from Debian's packages; without root the test that needs them names what is missing.
SLURM := slurmctld slurmd slurm-client munge
test-cluster: setup ## Run real clusters on this machine: three brokers, two ClickHouse replicas, replicated tables, Slurm (as root)
	@if ! command -v slurmctld > /dev/null && [ "$$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then \
		echo "installing $(SLURM) with apt-get"; apt-get update -qq && \
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(SLURM); fi
	@$(BIN)/pytest -m cluster tests/cluster

##@ Generate

docs: setup ## Write the generated pages of docs/reference (recordings through a real stack, every named query)
	@for page in $(PAGES_MADE); do PYTHONPATH=tests $(BIN)/python docs/generate/$$page.py || exit 1; done

site: $(VENV)/ready ## Build the documentation as a site with a search: dist/site/index.html
	@for page in $(PAGES_OF_CODE); do PYTHONPATH=tests $(BIN)/python docs/generate/$$page.py || exit 1; done
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file infra/site/mkdocs.yml
	@echo "dist/site/index.html"

lock: $(VENV)/ready ## Renew infra/requirements: the newest packages that pyproject.toml allows, with their hashes
	@$(call lock_for,dev,--upgrade)
	@$(call lock_for,all,--constraint $(LOCKS)/dev.txt)
	@$(call lock_for,image,--constraint $(LOCKS)/dev.txt)
	@$(call lock_for,release,--constraint $(LOCKS)/dev.txt)

# One file for Python 3.11 and later, by markers. uv reads no setting of this machine: the files name no index.
lock_for = rm -f $(LOCKS)/$(1).txt.new && $(BIN)/uv --no-config pip compile --quiet --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-emit-index-url --custom-compile-command "make lock" $(2) \
	$(addprefix --extra ,$(EXTRAS_$(1))) pyproject.toml --output-file $(LOCKS)/$(1).txt.new \
	&& mv $(LOCKS)/$(1).txt.new $(LOCKS)/$(1).txt

# Maven resolves the pom; its places in a repository are the paths of the list.
KAFKA := infra/localstack/assets/kafka
.PHONY: lock-jars
lock-jars: ## Renew the list of Kafka's jars from its pom.xml (needs Maven)
	@folder=$$(mktemp -d) && mvn -B -C -q -f $(KAFKA)/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
		-Dmdep.useRepositoryLayout=true -DoutputDirectory=$$folder \
	&& (cd $$folder && find . -name '*.jar' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum) > $(KAFKA)/jars.sha256; \
	code=$$?; rm -rf $$folder; exit $$code

# Sums of what a release has made immutable. A released file that was changed or removed ends it.
FROZEN := infra/released.sha256
.PHONY: versions freeze
versions: $(VENV)/ready
	@$(BIN)/python -m drumline.schemas.release --freeze && $(BIN)/python tests/data/golden/write.py

freeze:
	@[ ! -f $(FROZEN) ] || sha256sum --check --quiet --strict $(FROZEN)
	@sha256sum infra/clickhouse/migrations/*.sql schemas/avro/released/*.avsc tests/data/golden/*.bin > $(FROZEN)

# Zig compiles for both processors; it is large, so that only releases and their test have it.
$(VENV)/zig: $(VENV)/ready $(LOCKS)/release.txt
	@echo "Zig's C compiler (fetched once)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement $(LOCKS)/release.txt
	@touch $@

release: versions freeze $(VENV)/zig ## Build dist/: wheels for x86_64 and aarch64, sdist, bill of materials, chart, Grafana's files, sums (RELEASE_KEY signs)
	@rm -rf dist && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(BIN)/python infra/release/wheels.py dist > $(VENV)/wheels.log \
		|| { cat $(VENV)/wheels.log; exit 1; }
	@$(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file dist/drumline.cdx.json $(LOCKS)/all.txt
	@$(BIN)/python -m drumline.infra.localstack.kafka.bom dist/drumline.cdx.json
	@$(BIN)/drumline grafana write --out dist/grafana > /dev/null
	@rm -rf infra/helm/drumline/files/grafana && cp -r dist/grafana infra/helm/drumline/files/grafana
	@tar --create --gzip --dereference --directory infra/helm --file dist/drumline-chart.tgz drumline
	@$(MAKE) --no-print-directory sums
	@ls dist; echo "commit $(FROZEN) with the release: its migrations and schemas never change from now on"

# RELEASE_KEY: file of the private SSH key that signs the sums; users check them with `ssh-keygen -Y verify`.
.PHONY: sums
sums:
	@cd dist && rm -f SHA256SUMS* && sums=$$(find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum) && echo "$$sums" > SHA256SUMS
	@if [ -n "$(RELEASE_KEY)" ]; then ssh-keygen -q -Y sign -f "$(RELEASE_KEY)" -n drumline dist/SHA256SUMS; \
		else echo "the sums are not signed: RELEASE_KEY names no key"; fi
