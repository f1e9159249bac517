# Two commands are the front door: `make run` and `make test`.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help run check test chaos tenant fuzz image-test node first-hour package manifests bench bench-scale soak crds contract fmt lint doc \
    docs order clean quick-lint prerequisites prerequisites-check prerequisites-run

target := $(or $(CARGO_TARGET_DIR),target)

chaos = --host $(target)/debug/operator-host --plugins plugins/target/plugins --keep $(target)/chaos \
    --crds manifests/crds --crds tests/fixtures/puppet/crds.yaml

# The samples whose tool-chains `make run` does without.
languages = echo-js reloader service-dns echo-python echo-zig echo-assemblyscript rabbitmq

# Cargo with the options of a release, in a folder of its own.
release = CARGO_TARGET_DIR=$(abspath $(target))/released host/release/cargo.sh
scale = --host $(target)/released/release/operator-host --plugin plugins/target/plugins/echo.wasm \
    --crd manifests/crds/echoes.my-operator.dev.yaml
# What tests measure, for the end of `make test`.
figures = $(target)/tmp/figures
build-scale = KUBEBUILDER_ASSETS="$$(tests/prepare.sh)"; export KUBEBUILDER_ASSETS; \
	$(release) build --release --package operator-host; cargo build --profile scale --package bench-scale

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  PLUGIN=folder make run         builds and runs that plugin, as \`operator-host new\` writes it, instead of the samples"
	@echo "  KUBEBUILDER_ASSETS=folder ...  uses the etcd and kube-apiserver in that folder"
	@echo "  CONTROL_PLANE_MIRROR=URL ...   downloads the control plane from that mirror"

run: prerequisites-run ## Start a local cluster with the host in it and show what happens
	@KUBEBUILDER_ASSETS="$$(tests/prepare.sh run $(PLUGIN))"; export KUBEBUILDER_ASSETS; \
	exec $(target)/debug/playground --host $(target)/debug/operator-host --data $(target)/playground \
	    --config $(if $(PLUGIN),$(PLUGIN)/config.yaml,manifests/playground.yaml) \
	    $(if $(PLUGIN),,--endpoints manifests/endpoints.yaml --outside plugins) --crds $(if $(PLUGIN),$(PLUGIN)/crd.json,manifests/crds) \
	    --samples $(if $(PLUGIN),$(PLUGIN)/sample.yaml,manifests/samples)

check: prerequisites-check ## Check format, spelling, links and lints, run the unit tests: in a minute or two once it is built
	@$(MAKE) --no-print-directory quick-lint
	cargo test --workspace --lib --bins

# A scenario waits more than it computes, so there is one more at a time than processors. API servers take a third of the
# processors' time, and less of it when they collect garbage less often. `make chaos` has more rounds.
test: prerequisites ## Run every check and every test, those of `make check` among them
	@tests/control-plane/install_test.py
	@KUBEBUILDER_ASSETS="$$(tests/prepare.sh)"; export KUBEBUILDER_ASSETS; \
	plugins/build.sh tests/fixtures/puppet tests/fixtures/cluster-puppet tests/fixtures/decorator $(languages) >&2; \
	$(MAKE) --no-print-directory lint doc; \
	export GOGC=300; rm -rf $(figures); RUST_TEST_THREADS=$$(($$(nproc) + 1)) cargo test --workspace; \
	$(target)/debug/chaos $(chaos) --rounds 10 --seed 100 --regressions tests/chaos/regressions; \
	cd plugins && cargo test --workspace
	@cd plugins/hello && GOTOOLCHAIN=local "$$(../go.sh)" vet . && GOTOOLCHAIN=local "$$(../go.sh)" test .
	@cat $(figures)/*

chaos: prerequisites ## Break everything around the host at random: ROUNDS=20, SEED=n, FAULTS=words of their names
	@KUBEBUILDER_ASSETS="$$(tests/prepare.sh)"; export KUBEBUILDER_ASSETS; \
	plugins/build.sh tests/fixtures/puppet tests/fixtures/decorator >&2; \
	exec $(target)/debug/chaos $(chaos) --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED)) $(if $(FAULTS),--faults $(FAULTS))

tenant: prerequisites ## Attack a host as a tenant while another team's Echo is measured: ATTACKS=words of their names
	@KUBEBUILDER_ASSETS="$$(tests/prepare.sh)"; export KUBEBUILDER_ASSETS; \
	exec $(target)/debug/tenant --host $(target)/debug/operator-host --plugin plugins/target/plugins/echo.wasm \
	    --crds manifests/crds/echoes.my-operator.dev.yaml --crds manifests/crds/controllers.operator-host.dev.yaml \
	    --keep $(target)/tenant $(if $(ATTACKS),--attacks $(ATTACKS))

fuzz: prerequisites ## Fuzz with libFuzzer, TIME=seconds (60) each target or TARGET=name alone (slow to build)
	tests/fuzz/run.sh $(or $(TIME),60) $(TARGET)
	$(if $(TARGET),,tests/fuzz/profiles.sh)

fmt: ## Format the sources
	cargo fmt --all
	cd plugins && cargo fmt --all

# What `make check` has of `make lint`: each takes seconds when nothing changed.
quick-lint:
	cargo fmt --all --check
	cd plugins && cargo fmt --all --check
	tests/msrv.sh
	tests/spelling.sh
	tests/links.py
	cargo clippy --workspace --all-targets -- -D warnings

lint: prerequisites quick-lint ## Check format, spelling and links, run Clippy, shellcheck, and the checks of dependencies and workflows
	tests/deny.sh
	tests/unused.sh
	tests/workflows.sh
	cd plugins && cargo clippy --workspace --all-targets -- -D warnings
	shellcheck -x .ci/run $$(git ls-files '*.sh')

doc: ## Build the documentation of the host's code; fails on a warning
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet

docs: ## Build the documentation as a site, target/book/index.html
	host/docs/book.sh $(target)/book

crds: ## Regenerate manifests/crds from the program and the sample plugins
	cargo build --workspace --quiet
	plugins/build.sh; plugins/build.sh rabbitmq
	mkdir -p manifests/helm/crds
	$(target)/debug/operator-host schema controller > manifests/crds/controllers.operator-host.dev.yaml
	$(target)/debug/operator-host schema external > manifests/crds/externals.operator-host.dev.yaml
	cp manifests/crds/{controllers,externals}.operator-host.dev.yaml manifests/helm/crds/
	$(target)/debug/operator-host crd plugins/target/plugins/dns.wasm > manifests/crds/dnsrecords.dns.example.com.yaml
	$(target)/debug/operator-host crd plugins/target/plugins/echo.wasm > manifests/crds/echoes.my-operator.dev.yaml
	$(target)/debug/operator-host crd plugins/target/plugins/hello.wasm > manifests/crds/helloes.fraim.co.jp.yaml
	$(target)/debug/operator-host crd plugins/target/plugins/myapp.wasm > manifests/crds/myapps.example.com.yaml
	$(target)/debug/operator-host crd plugins/target/plugins/mysql.wasm \
	    > manifests/crds/mysqlclusters.database.example.com.yaml
	$(target)/debug/operator-host crd plugins/target/plugins/rabbitmq.wasm > manifests/crds/rabbitusers.messaging.example.com.yaml
	$(target)/debug/operator-host crd plugins/target/plugins/webapp.wasm > manifests/crds/webapps.apps.example.com.yaml

contract: ## Regenerate what follows from the contract: JSON Schemas, records of SDKs, and the WIT and the bindings beside them
	cargo build --workspace --quiet
	$(target)/debug/operator-host schema request > wit/request.schema.json
	$(target)/debug/operator-host schema response > wit/response.schema.json
	plugins/wit.sh
	plugins/records.py
	plugins/echo-c/bindings.sh

image-test: prerequisites ## Build the Dockerfile's image without pulling any, and run it as a pod would (slow; PROFILE=dev is faster)
	plugins/build.sh >/dev/null
	tests/image.sh $(or $(PROFILE),release)

node: prerequisites ## Run the deployment on a real node, with containerd and a kubelet (root, slow): SCENARIOS="install_with_kustomize ..."
	plugins/build.sh >/dev/null
	tests/node/run.sh $(SCENARIOS)

package: prerequisites ## Package the crates as they would be published, and build each from its package alone (slow)
	tests/package.sh

manifests: ## Regenerate the roles and webhooks of manifests/deploy from its configuration
	cargo build --workspace --quiet
	plugins/build.sh
	manifests/deploy/generate.sh $(target)/debug/operator-host

bench: prerequisites ## Measure, and write the tables in README and the page of figures; PARTS="call reload" prints those only
	@KUBEBUILDER_ASSETS="$$(tests/prepare.sh)"; export KUBEBUILDER_ASSETS; \
	plugins/build.sh tests/fixtures/puppet >&2; \
	$(release) bench --workspace --bench figures -- $(PARTS)

bench-scale: prerequisites ## Measure how cost grows and print the tables of host/docs/reference/scale.md: ARGS="--only parents" (slow)
	@$(build-scale); \
	plugins/build.sh tests/fixtures/puppet tests/fixtures/decorator >&2; \
	exec $(target)/scale/bench-scale measure $(scale) $(ARGS)

soak: prerequisites ## Let users change objects for MINUTES=60, and fail if the host grows
	@$(build-scale); \
	exec $(target)/scale/bench-scale soak $(scale) --minutes $(or $(MINUTES),60)

first-hour: ## Measure how long a newcomer waits: empty clone, empty cache, until `make run` shows a sample (slow)
	@tests/first-hour.sh

order: prerequisites ## Record which functions of the host run, and write host/release/functions.ld for its linker (x86-64, slow)
	@export CARGO_PROFILE_RELEASE_STRIP=none; $(build-scale); \
	rm -rf $(target)/order; mkdir -p $(target)/order; \
	$(target)/scale/bench-scale measure $(scale) --record $(abspath $(target))/order/functions \
	    --repeat 1 --only controllers,parents --controllers 4 --parents 500; \
	$(target)/scale/bench-scale order $(target)/order/functions >$(target)/order/functions.ld; \
	mv $(target)/order/functions.ld host/release

clean: ## Remove what was built here; the control plane stays in the user's cache
	cargo clean
	cd plugins && cargo clean

prerequisites:
	@tests/prerequisites.sh

prerequisites-check:
	@tests/prerequisites.sh check

prerequisites-run:
	@tests/prerequisites.sh run
