# Fairlead. `make` alone lists what can be done; every target does its own set-up.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup build test-programs fmt lint test bench bench-lab demo lab lab-test lab-peer lab-soak lab-kubelet fuzz clean

export PATH := $(CURDIR)/.cache/bin:$(PATH)

TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
MUSL := x86_64-unknown-linux-musl
GNU := x86_64-unknown-linux-gnu
# Where the musl target cannot be had, the executable is a static gnu one. Asked when a recipe runs, after `setup`.
HAVE_MUSL = $(wildcard $(shell rustc --print target-libdir --target $(MUSL) 2>/dev/null))
SHIM_TARGET = $(if $(HAVE_MUSL),$(MUSL),$(GNU))
SHIM_FLAGS = $(if $(HAVE_MUSL),,RUSTFLAGS='-C target-feature=+crt-static -C relocation-model=static')

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install and build all that the other targets need (Debian packages, musl target, reference plugins)
	@tests/setup.sh build runtimes reference dpdk deny

build: ## all programs, into dist/
	@tests/setup.sh build
	@$(MAKE) -s dist-programs

.PHONY: dist-programs
dist-programs:
	@echo "build: fairlead ($(SHIM_TARGET), optimised for size)"
	@$(SHIM_FLAGS) cargo build -q --profile shim --target $(SHIM_TARGET) -p fairlead --bin fairlead
	@$(SHIM_FLAGS) cargo build -q --profile shim --target $(SHIM_TARGET) -p fairlead-bench --no-default-features --bin fairlead-empty
	@echo "build: fairleadd and fairlead-bench (release; a minute or two the first time)"
	@cargo build -q --release -p fairlead-daemon -p fairlead-bench --bin fairleadd --bin fairlead-bench
	@mkdir -p dist
	@install -C -m 755 $(addprefix $(TARGET_DIR)/$(SHIM_TARGET)/shim/,fairlead fairlead-empty) dist
	@install -C -m 755 $(addprefix $(TARGET_DIR)/release/,fairleadd fairlead-bench) dist
	@stat -c '%s %n' dist/fairlead dist/fairlead-empty dist/fairleadd dist/fairlead-bench | awk '{printf "build: %7.0f KiB  %s\n", $$1 / 1024, $$2}'
	@[ "$$(stat -c %s dist/fairlead)" -le 524288 ] || echo "build: NOTICE: fairlead is larger than its target of 512 KiB"
	@[ -n "$(HAVE_MUSL)" ] || echo "build: NOTICE: no musl target: fairlead is a static gnu executable, its targets for size and start time are missed"

test-programs: ## what only tests need: dist/fairlead-contest, the daemon that can be killed at a named step, its suite, a kubelet
	@echo "build: fairlead-contest, fairleadd with failpoints, the suite that kills it, a kubelet, netdevsim's"
	@cargo build -q -p fairlead-contest --bin fairlead-contest
	@cargo build -q -p fairlead-daemon --features failpoints --bin fairleadd
	@cargo build -q -p fairlead-kubelet --features fake-kubelet --example kubelet
	@install -C -D -m 755 $(TARGET_DIR)/debug/fairlead-contest dist/fairlead-contest
	@mkdir -p dist/failpoints
	@strip -g -o dist/netdevsim.new "$$(cargo test -q -p fairlead-sriov --test netdevsim --no-run --message-format=json | \
		sed -n 's|.*"executable":"\([^"]*/netdevsim-[^"]*\)".*|\1|p')"
	@mv dist/netdevsim.new dist/netdevsim
	@suite=$$(cargo test -q -p fairlead-daemon --features failpoints --test crash --no-run --message-format=json | \
		sed -n 's|.*"executable":"\([^"]*/crash-[^"]*\)".*|\1|p'); \
	for program in $(TARGET_DIR)/debug/fairleadd $(TARGET_DIR)/debug/examples/kubelet "$$suite"; do \
		name=dist/failpoints/$$(basename "$${program%-????????????????}"); \
		strip -g -o "$$name.new" "$$program"; \
		mv "$$name.new" "$$name"; \
	done

fmt: ## format the Rust code
	@cargo fmt --all

lint: ## rustfmt, clippy and cargo-deny; any warning fails
	@tests/setup.sh build documents deny
	@tests/lint.sh

test: ## everything that proves it: lint, tests, real runtimes, equality, the lab (under 40 minutes from nothing)
	@tests/run.sh

bench: build ## the latency suite against the reference plugins; BENCH='--quick' or any other option of it
	@tests/setup.sh runtimes reference
	@dist/fairlead-bench --reference .cache/bin/plugins $(BENCH)

bench-lab: build ## the suite with real VFs in the virtual machine; BENCH='--quick' or any other option of it
	@tests/setup.sh runtimes reference
	@lab/bench.sh $(BENCH)

demo: build ## the main job on a real containerd, in a minute
	@tests/demo.sh

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

lab-kubelet: build ## a real kubelet and cluster with pods on real VFs, in the virtual machine (builds Kubernetes once: twenty minutes)
	@tests/setup.sh runtimes reference cluster
	@lab/test.sh lab/kubelet/test.sh

fuzz: ## guided fuzzing of every target; FUZZ_SECONDS=60 for each
	@tests/setup.sh build
	@fuzz/run.sh

clean: ## remove what was built, not what was fetched (.cache)
	@rm -rf dist $(TARGET_DIR)
