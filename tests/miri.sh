#!/usr/bin/env bash
# The tests of what is unsafe and can have it, under Miri: it interprets the program and sees reads of what was never written, accesses outside
# their memory, pointers from nowhere, and races, in orders and with values of loads that this machine's processor never shows.
# The last line is "N passed, N failed"; without a nightly toolchain it fails.
#
#   MIRI_SEEDS=16   in how many orders each test with threads is run
#
# What has unsafe code and cannot run there, since Miri has no such kernel:
#   vhost: memory/{mapped_region,lost_pages,memory_bound,userfault}, uplink/queue   maps files, catches SIGBUS, asks for userfaultfd(2), AF_XDP
#          ring/caller, dataplane/connection, confinement                           signals to a thread, sockets, seccomp(2)
#   host:  all of it                                                                netlink, bpf(2), namespaces, execve(2): calls alone
#   shim:  main in bare_process.rs                                                  the entry that C calls
# All other crates and modules forbid unsafe code or have none.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

SEEDS=${MIRI_SEEDS:-16}
FLAGS=-Zmiri-disable-isolation # proptest asks for the directory, a capture for the time
STRICT=-Zmiri-strict-provenance
ALONE=(memory::guest_slice ring:: dataplane::thread_link dataplane::sleep uplink::xsk_ring capture::reader)
THREADS=(ring::call_tests dataplane::sleep dataplane::thread_link::tests::two_threads uplink::xsk_ring capture::reader)

die() { echo "miri: $*" >&2; exit 1; }
command -v rustup >/dev/null || die "rustup is missing: Miri comes with a nightly toolchain of it"
rustup toolchain list | grep -q ^nightly || die "no nightly toolchain: rustup toolchain install nightly"
cargo +nightly miri --version >/dev/null 2>&1 || rustup -q +nightly component add miri rust-src

log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0

# miri NAME FLAGS ARGUMENTS…: counts what it runs; a part that runs no test, or ends without saying so, has failed.
miri() {
    local name=$1 flags=$2 rc=0 p f
    shift 2
    echo "-- $name"
    MIRIFLAGS="$FLAGS $flags" cargo +nightly miri test -q "$@" 2>&1 | tee "$log" || rc=$?
    read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
    [ $((p + f)) != 0 ] || { echo "not ok  $name ran no test"; f=1; }
    [ $rc = 0 ] || [ "$f" != 0 ] || f=1
    passed=$((passed + p)) failed=$((failed + f))
}

miri "guest memory, rings, links, captures" $STRICT -p fairlead-vhost --lib -- "${ALONE[@]}"
miri "the same between threads, in $SEEDS orders" "$STRICT -Zmiri-many-seeds=0..$SEEDS" -p fairlead-vhost --lib -- "${THREADS[@]}"
# dlmalloc, which has what does not fit, makes pointers of numbers.
miri "the executable's allocator" -Zmiri-permissive-provenance -p fairlead --bin fairlead -- bare_process::
echo "$passed passed, $failed failed"
[ $failed = 0 ]
