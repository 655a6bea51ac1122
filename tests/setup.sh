#!/usr/bin/env bash
# Brings a Debian 12 machine with Rust to where Fairlead can be built, tested and shown. Does nothing, and says
# nothing, where all is there.
#
#   setup.sh PART…
#     build      C linker, musl target
#     runtimes   containerd, runc, static busybox, Go, the CRI client: what `make demo` needs
#     dpdk       DPDK's testpmd, which drives VFs in the lab, and tcpdump
#     guests     QEMU and a kernel for its guests, which are frontends of vhost-user
#     ovs        Open vSwitch with DPDK, which the tests of its driver start for themselves
#     reference  podman, Debian's plugins, cnitool and the reference plugins, built from the Go module proxy
#     cluster    etcd, Kubernetes and containerd 2, kubectl, helm: for `make e2e` and `make lab-kubelet` (about twenty minutes, once)
#     monitoring Prometheus with promtool, openssl: for tests/prometheus.sh
#     emulation  Rust's targets for arm64, and an emulator: for tests/arm64.sh
#     arm64      the rest of what `make image ARCH=arm64` needs: a C compiler and a C library for arm64
#     documents  what checks the links in the documents
#     deny       cargo-deny, built by cargo (about a minute)
#
# What it builds goes to .cache/bin; nothing outside this directory changes but Debian packages, the Rust target
# and Go's own module cache. The virtual machine brings its own (lab/up.sh --install).
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

BIN=$PWD/.cache/bin
CNITOOL=v1.3.1
PLUGINS=v1.9.1
DENY=0.20.2
MUSL=x86_64-unknown-linux-musl

APT_LOG=$PWD/.cache/apt.log
begun=$EPOCHSECONDS
spoke=
say() { spoke=1; printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# ---- Debian packages ----
. tests/packages.sh
missing=()
need() { command -v "$1" >/dev/null || missing+=("${2:-$1}"); }

install_missing() {
    [ ${#missing[@]} = 0 ] || { say "installing ${missing[*]}"; apt "${missing[@]}"; }
    missing=()
}

# ---- Rust ----
part_build() {
    command -v cargo >/dev/null || die "Rust is missing: install it with rustup, then run this again"
    need cc build-essential
    need systemd-analyze systemd # judges our units
    install_missing
    local lib
    lib=$(rustc --print target-libdir --target $MUSL)
    [ ! -d "$lib" ] || return 0
    if command -v rustup >/dev/null; then
        say "adding the Rust target $MUSL"
        rustup -q target add $MUSL && return 0
    fi
    say "NOTICE: the Rust target $MUSL cannot be had: the executable becomes a static gnu one," \
        "and its targets for size and start time are missed"
}

# ---- Go: 1.24.2, or any from 1.21 that can fetch a newer one ----
go_version() { GOTOOLCHAIN=local "$1" env GOVERSION 2>/dev/null; }
at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -1)" = "$1" ]; } # WANTED VERSION

find_go() {
    local candidate version
    for candidate in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        version=$(go_version "$candidate") || continue
        at_least go1.21 "$version" || continue
        command -v "$candidate"
        return
    done
    return 1
}

go_ready() {
    export GOTOOLCHAIN=auto CGO_ENABLED=0 GOBIN=$BIN GOFLAGS='-trimpath -buildvcs=false'
    if ! GO=$(find_go); then
        need update-ca-certificates ca-certificates
        install_missing
        say "installing Go"
        backports
        apt -t bookworm-backports golang-1.23-go
        GO=$(find_go) || die "Go 1.21 or newer is missing: install it, then run this again"
    fi
    # one newer toolchain for all that is built here, instead of one for each module's own wish
    at_least go1.24.2 "$(go_version "$GO")" || export GOTOOLCHAIN=go1.24.13+auto
}

. tests/go_thrice.sh

part_runtimes() {
    need ip iproute2; need containerd; need runc; need curl; need jq; need python3
    if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then missing+=(busybox-static); fi
    install_missing
    [ ! "$BIN/cri" -nt tests/cri/main.go ] || return 0
    go_ready
    say "building the CRI client"
    (cd tests/cri && go_thrice build -ldflags '-s -w' -o "$BIN/cri" .) || die "the CRI client cannot be built (see above)"
}

part_dpdk() {
    command -v dpdk-testpmd >/dev/null || missing+=(dpdk dpdk-dev)
    need tcpdump
    install_missing
}

# As the lab has them, and under its lock.
part_guests() {
    need ethtool; need ip iproute2; need jq; need curl
    if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then missing+=(busybox-static); fi
    install_missing
    local LAB_CACHE=$PWD/.cache/lab here=$PWD/lab
    mkdir -p "$LAB_CACHE"
    . lab/install.sh
    exec 7>"$LAB_CACHE/lock"
    flock 7
    install_qemu
    install_kernel
    accelerator >/dev/null
    exec 7>&-
}

# Only unpacked: its package would begin to run it, and the kernel's module with it.
part_ovs() {
    part_dpdk
    local to=$PWD/.cache/ovs library unpacked
    for library in libbpf.so.1:libbpf1 libcap-ng.so.0:libcap-ng0 libnuma.so.1:libnuma1 libunbound.so.8:libunbound8 libxdp.so.1:libxdp1; do
        [ -e "/usr/lib/$(uname -m)-linux-gnu/${library%:*}" ] || missing+=("${library#*:}")
    done
    install_missing
    [ ! -x "$to/usr/bin/ovs-vsctl" ] || return 0
    say "fetching Open vSwitch with DPDK"
    apt_update
    unpacked=$(mktemp -d -p .cache)
    chmod 755 "$unpacked" # apt's own user downloads into it
    (cd "$unpacked" && apt_get download -qq openvswitch-{common,switch,switch-dpdk} 2>/dev/null &&
        for package in ./*.deb; do dpkg-deb -x "$package" x; done) || die "Open vSwitch cannot be fetched"
    rm -rf "$to"
    mv "$unpacked/x" "$to"
    rm -rf "$unpacked"
}

part_reference() {
    need podman; need iptables
    [ -x /usr/lib/cni/macvlan ] || missing+=(containernetworking-plugins)
    install_missing
    if ! [ -x "$BIN/cnitool" ]; then
        go_ready
        say "building cnitool $CNITOOL"
        go_thrice install -ldflags '-s -w' "github.com/containernetworking/cni/cnitool@$CNITOOL" ||
            die "cnitool cannot be built: is the Go module proxy reachable?"
    fi
    [ ! -e "$BIN/plugins/.$PLUGINS" ] || return 0
    go_ready
    say "building the reference plugins $PLUGINS"
    local from=github.com/containernetworking/plugins
    mkdir -p "$BIN/plugins"
    GOBIN=$BIN/plugins go_thrice install -ldflags "-s -w -X $from/pkg/utils/buildversion.BuildVersion=$PLUGINS" \
        $from/plugins/main/{macvlan,ipvlan,vlan,host-device,loopback,bridge,dummy,ptp}@$PLUGINS \
        $from/plugins/ipam/{host-local,static}@$PLUGINS \
        $from/plugins/meta/{tuning,portmap,bandwidth,sbr}@$PLUGINS ||
        die "the reference plugins cannot be built: is the Go module proxy reachable?"
    touch "$BIN/plugins/.$PLUGINS"
}

# Debian's etcd is only unpacked: its package would begin to run it. The rest is built from the Go module proxy. Under a lock
# of its own: the build takes so long that the others must not wait for it.
part_cluster() {
    need openssl; need runc; need curl; need jq; need python3; need ip iproute2
    if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then missing+=(busybox-static); fi
    install_missing
    go_ready
    flock -u 9
    exec 8>.cache/cluster.lock
    flock 8
    local programs=$PWD/.cache/k8s unpacked
    mkdir -p "$programs"
    GO=$GO tests/cluster/build.sh "$programs" || die "the cluster's programs cannot be built (see above)"
    flock 9
    [ ! -x "$programs/now/etcd" ] || return 0
    say "fetching etcd"
    apt_update
    unpacked=$(mktemp -d -p "$programs")
    chmod 755 "$unpacked" # apt's own user downloads into it
    (cd "$unpacked" && apt_get download -qq etcd-server 2>/dev/null && dpkg-deb -x ./etcd-server_*.deb x) ||
        die "the package etcd-server cannot be fetched"
    mv "$unpacked/x/usr/bin/etcd" "$programs/now/etcd"
    rm -rf "$unpacked"
}

# Only unpacked, as etcd is: the package would begin to run it.
part_monitoring() {
    need openssl; need curl; need jq; need python3
    install_missing
    [ ! -x "$BIN/prometheus" ] || return 0
    say "fetching Prometheus"
    apt_update
    local unpacked
    unpacked=$(mktemp -d -p "$BIN")
    chmod 755 "$unpacked" # apt's own user downloads into it
    (cd "$unpacked" && apt_get download -qq prometheus 2>/dev/null && dpkg-deb -x ./prometheus_*.deb x) ||
        die "the package prometheus cannot be fetched"
    mv "$unpacked"/x/usr/bin/{promtool,prometheus} "$BIN"
    rm -rf "$unpacked"
}

# rust_target TARGET
rust_target() {
    [ ! -d "$(rustc --print target-libdir --target "$1")" ] || return 0
    say "adding the Rust target $1"
    rustup -q target add "$1" || die "the Rust target $1 cannot be had: is rustup there, and its server reachable?"
}

part_emulation() {
    need qemu-aarch64-static qemu-user-static
    install_missing
    rust_target aarch64-unknown-linux-musl
    rust_target aarch64-unknown-linux-gnu
}

part_arm64() {
    # The compiler's package only recommends the library.
    command -v aarch64-linux-gnu-gcc >/dev/null || missing+=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross)
    install_missing
    rust_target aarch64-unknown-linux-musl
    rust_target aarch64-unknown-linux-gnu
}

part_documents() { need python3; install_missing; }

part_deny() {
    [ -x "$BIN/cargo-deny" ] && return 0
    command -v cargo-deny >/dev/null && return 0
    say "building cargo-deny $DENY, once (unoptimised: that is fast enough, and three times as fast to build)"
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 CARGO_TARGET_DIR=$PWD/.cache/deny-build \
        cargo install -q cargo-deny --version $DENY --locked --debug --root .cache --force ||
        die "cargo-deny cannot be built (see above)"
    rm -rf .cache/deny-build
}

mkdir -p "$BIN"
exec 9>.cache/setup.lock
flock 9 # two of them at once would fetch everything twice
for part; do
    case $part in
    build | runtimes | dpdk | guests | ovs | reference | monitoring | emulation | arm64 | cluster | documents | deny) "part_$part" ;;
    *) die "there is no part '$part'" ;;
    esac
done
[ -z "$spoke" ] || say "ready after $((EPOCHSECONDS - begun)) s"
