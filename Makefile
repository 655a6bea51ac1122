# Fairlead. `make` alone lists what can be done; every target does its own set-up.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build man test-programs fmt lint test bench bench-lab bench-switches bench-restarts demo lab lab-test lab-peer lab-soak lab-kubelet api-server e2e image generate deploy-render fuzz miri clean

export PATH := $(CURDIR)/.cache/bin:$(PATH)

TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
# amd64, or arm64 for `make image`.
ARCH ?= amd64
RUST_ARCH_amd64 := x86_64
RUST_ARCH_arm64 := aarch64
RUST_ARCH = $(or $(RUST_ARCH_$(ARCH)),$(error ARCH is amd64 or arm64, not $(ARCH)))
MUSL = $(RUST_ARCH)-unknown-linux-musl
GNU = $(RUST_ARCH)-unknown-linux-gnu
# An image for another architecture is beside the machine's own.
IMAGE_FILE = dist/fairlead-image$(if $(filter amd64,$(ARCH)),,-$(ARCH)).tar
IMAGE_PROGRAMS = dist$(if $(filter amd64,$(ARCH)),,/$(ARCH))
# Where the musl target cannot be had, the executable is a static gnu one. Asked when a recipe runs, after `setup`.
HAVE_MUSL = $(wildcard $(shell rustc --print target-libdir --target $(MUSL) 2>/dev/null))
SHIM_TARGET = $(if $(HAVE_MUSL),$(MUSL),$(GNU))
# The daemon too is one static file, for an image from scratch. With glibc, whose allocator is several times as fast under many
# threads as musl's.
# Its functions are told apart by their types, too (v0), for daemon/usual_path.txt.
STATIC := RUSTFLAGS='-C target-feature=+crt-static -C symbol-mangling-version=v0'
VERSION = $(shell sed -n '/^\[workspace.package\]/,/^$$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
IMAGE = ghcr.io/fairlead/fairlead:$(VERSION)
SHIM_FLAGS = $(if $(HAVE_MUSL),,RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static')

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install and build all that the other targets need (Debian packages, musl target, reference plugins)
	@tests/setup.sh build runtimes reference monitoring emulation dpdk guests ovs deny

build: ## all programs, into dist/
	@tests/setup.sh build
	@$(MAKE) -s dist-programs

.PHONY: dist-programs
dist-programs:
	@echo "build: fairlead ($(SHIM_TARGET), optimised for size)"
	@$(SHIM_FLAGS) cargo build -q --profile shim --target $(SHIM_TARGET) -p fairlead --bin fairlead
	@$(SHIM_FLAGS) cargo build -q --profile shim --target $(SHIM_TARGET) -p fairlead-bench --no-default-features --bin fairlead-empty
	@echo "build: fairleadd, fairlead-vswitch and fairlead-bench (release; a minute or two the first time)"
	@$(STATIC) cargo build -q --release --target $(GNU) -p fairlead-daemon -p fairlead-vhost -p fairlead-bench --bin fairleadd --bin fairlead-vswitch --bin fairlead-bench
	@mkdir -p dist
	@install -C -m 755 $(addprefix $(TARGET_DIR)/$(SHIM_TARGET)/shim/,fairlead fairlead-empty) dist
	@install -C -m 755 $(addprefix $(TARGET_DIR)/$(GNU)/release/,fairleadd fairlead-vswitch fairlead-bench) dist
	@stat -c '%s %n' dist/fairlead dist/fairlead-empty dist/fairleadd dist/fairlead-vswitch dist/fairlead-bench | awk '{printf "build: %7.0f KiB  %s\n", $$1 / 1024, $$2}'
	@[ "$$(stat -c %s dist/fairlead)" -le 524288 ] || echo "build: NOTICE: fairlead is larger than its target of 512 KiB"
	@[ -n "$(HAVE_MUSL)" ] || echo "build: NOTICE: no musl target: fairlead is a static gnu executable, its targets for size and start time are missed"

image: $(if $(filter amd64,$(ARCH)),build,cross-programs) ## the image of the DaemonSet, from scratch, as an OCI archive: dist/fairlead-image.tar; ARCH=arm64 is cross-built
	@$(MAKE) -s dist-image

.PHONY: dist-image cross-programs
dist-image:
	@tests/setup.sh documents # python3
	@tests/mkimage.py --fairlead $(IMAGE_PROGRAMS) --arch $(ARCH) $(IMAGE_FILE).new $(IMAGE)
	@mv $(IMAGE_FILE).new $(IMAGE_FILE)
	@stat -c '%s' $(IMAGE_FILE) | awk '{printf "image: %.1f MiB  $(IMAGE_FILE)  $(IMAGE)\n", $$1 / 1048576; exit $$1 > 25 * 1048576}'

cross-programs:
	@tests/setup.sh build $(ARCH)
	@echo "build: fairlead, fairleadd and fairlead-vswitch for $(ARCH) (release; some minutes)"
	@cargo build -q --profile shim --target $(MUSL) -p fairlead --bin fairlead
	@$(STATIC) cargo build -q --release --target $(GNU) -p fairlead-daemon -p fairlead-vhost --bin fairleadd --bin fairlead-vswitch
	@install -C -D -m 755 $(TARGET_DIR)/$(MUSL)/shim/fairlead $(IMAGE_PROGRAMS)/fairlead
	@install -C -m 755 $(addprefix $(TARGET_DIR)/$(GNU)/release/,fairleadd fairlead-vswitch) $(IMAGE_PROGRAMS)
	@stat -c '%s %n' $(addprefix $(IMAGE_PROGRAMS)/,fairlead fairleadd fairlead-vswitch) | awk '{printf "build: %7.0f KiB  %s\n", $$1 / 1024, $$2}'

generate: ## the gRPC code of proto/fairlead, which is kept in the repository; a test compares
	@FAIRLEAD_GENERATE=1 cargo test -q -p fairlead-proto --test generated

deploy-render: ## the Helm chart, from the manifests that kustomize takes
	@deploy/render.py

man: build ## the pages of the manual and the shells' completions, into dist/man and dist/completions
	@dist/fairleadd man-pages dist/man
	@mkdir -p dist/completions
	@for shell in bash zsh fish; do dist/fairleadd completions $$shell >dist/completions/fairleadd.$$shell; done

test-programs: ## what only tests need: dist/fairlead-contest, the daemon that can be killed at a named step, its suite, a kubelet
	@echo "build: fairlead-contest, fairleadd with failpoints, the suites that kill and cheat it, a kubelet, netdevsim's"
	@cargo build -q -p fairlead-contest --bin fairlead-contest
	@cargo build -q -p fairlead-daemon --features failpoints --bin fairleadd
	@cargo build -q -p fairlead-kubelet --features fake-kubelet --example kubelet
	@install -C -D -m 755 $(TARGET_DIR)/debug/fairlead-contest dist/fairlead-contest
	@mkdir -p dist/failpoints
	@strip -g -o dist/netdevsim.new "$$(cargo test -q -p fairlead-sriov --test netdevsim --no-run --message-format=json | \
		sed -n 's|.*"executable":"\([^"]*/netdevsim-[^"]*\)".*|\1|p')"
	@mv dist/netdevsim.new dist/netdevsim
	@suites=$$(cargo test -q -p fairlead-daemon --features failpoints --test crash --test hostile --no-run --message-format=json | \
		sed -n 's,.*"executable":"\([^"]*/\(crash\|hostile\)-[^"]*\)".*,\1,p'); \
	[ "$$(wc -w <<<"$$suites")" = 2 ] || { echo "build: the suites crash and hostile were not built" >&2; exit 1; }; \
	for program in $(TARGET_DIR)/debug/fairleadd $(TARGET_DIR)/debug/examples/kubelet $$suites; do \
		name=dist/failpoints/$$(basename "$${program%-????????????????}"); \
		strip -g -o "$$name.new" "$$program"; \
		mv "$$name.new" "$$name"; \
	done

fmt: ## format the Rust code
	@cargo fmt --all

lint: ## rustfmt, clippy and cargo-deny; any warning fails
	@tests/setup.sh build documents deny
	@tests/lint.sh

test: ## everything that proves it: lint, tests, real runtimes, equality, the lab, a cluster (some 40 minutes from nothing, on two cores)
	@tests/run.sh

bench: build ## the latency suite against the reference plugins; BENCH='--quick' or any other option of it
	@tests/setup.sh runtimes reference
	@dist/fairlead-bench --reference .cache/bin/plugins $(BENCH)

bench-lab: build ## the suite with real VFs in the virtual machine; BENCH='--quick' or any other option of it
	@tests/setup.sh runtimes reference
	@lab/bench.sh $(BENCH)

demo: build ## the main job on a real containerd beside the reference plugins, in two minutes
	@tests/demo.sh

bench-switches: build ## our switch beside OVS-DPDK and DPDK's vhost driver; BENCH='--quick' or any other option of it
	@tests/setup.sh runtimes dpdk ovs
	@dist/fairlead-bench switches $(BENCH)

bench-restarts: build ## what restarts of daemon, switch and application cost a vhost-user pod, and 100 pods at once
	@tests/setup.sh runtimes dpdk
	@TRAFFIC=3 tests/vhost_user_restarts.sh

lab: ## a shell in the virtual two-socket machine; LAB='command' runs that instead
	@lab/up.sh $(if $(LAB),'$(LAB)',--shell)

lab-test: build test-programs ## the tests that need the virtual machine: ipvlan, vlan, passthru, real NICs, systemd
	@tests/setup.sh runtimes reference
	@lab/test.sh

lab-peer: build test-programs ## VFs beside another plugin, as a table; PEER=sriov-cni=/opt/cni/bin/sriov
	@tests/setup.sh runtimes reference
	@lab/test.sh --peer $(or $(PEER),$(error PEER=NAME=PATH says which plugin))

lab-soak: build test-programs ## ten rounds of 21 pods at once, the daemon killed meanwhile; ROUNDS=10
	@tests/setup.sh runtimes reference
	@ROUNDS=$(or $(ROUNDS),10) lab/test.sh lab/tests/rounds.sh

lab-kubelet: build ## a real kubelet and cluster with pods on real VFs, in the virtual machine (builds Kubernetes once: ten minutes)
	@tests/setup.sh runtimes reference cluster
	@lab/test.sh lab/kubelet/test.sh

api-server: ## Fairlead's rights, watches and questions of tokens against a real API server (builds Kubernetes once)
	@tests/setup.sh cluster
	@FAIRLEAD_CLUSTER_PROGRAMS=$(CURDIR)/.cache/k8s/now cargo test -q -p fairlead-kube --test apiserver -- --ignored

e2e: image api-server ## Fairlead in a real cluster of one node, on this machine (builds Kubernetes once); PEER=multus=DIR: the same with that
	@PEER=$(PEER) tests/e2e.sh

fuzz: ## guided fuzzing of every target; FUZZ_SECONDS=60 for each
	@tests/setup.sh build
	@fuzz/run.sh

miri: ## tests of the unsafe code under Miri, which sees undefined behaviour and races (a nightly toolchain); MIRI_SEEDS=16 orders
	@tests/setup.sh build
	@tests/miri.sh

clean: ## remove what was built, not what was fetched (.cache)
	@rm -rf dist $(TARGET_DIR)
