#!/usr/bin/env bash
# The executable for arm64: cross-built, and its own tests run under emulation (qemu). The kernel hands every program for arm64 to
# the emulator, those that a test starts too; it does so in a user namespace of this script's own (Linux 6.7), so nothing of the
# machine is changed. Of the daemon, what touches the operating system is checked by the compiler: C's types differ.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
TARGET=aarch64-unknown-linux-musl
# The head of a program for arm64, and which of its bits count (proc(5), binfmt_misc).
MAGIC='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
MASK='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# What an emulator cannot show: qemu does not know SO_NETNS_COOKIE, and its own work counts as the executable's.
SKIPPED=(--skip x02_the_entry_has_the_namespace_s_cookie --skip waiting_is_asleep_and_not_polling)

die() { printf 'arm64.sh: %s\n' "$*" >&2; exit 1; }

if [ "${1:-}" = --inside ]; then
    shift
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc ||
        die "this kernel has no binfmt_misc for user namespaces (CONFIG_BINFMT_MISC, Linux 6.7)"
    printf '%s' ":aarch64:M::$MAGIC:$MASK:$(command -v qemu-aarch64-static):F" >/proc/sys/fs/binfmt_misc/register
    rc=0
    export PATIENCE=10
    cd shim
    for program; do "$program" --quiet "${SKIPPED[@]}" || rc=1; done
    exit $rc
fi

tests/setup.sh build emulation
cargo check -q --target aarch64-unknown-linux-gnu -p fairlead-host -p fairlead-ipam -p fairlead-sriov
# Somewhat optimised, because all of it is emulated. The time limits of hung_daemon are for a real processor.
export CARGO_PROFILE_DEV_OPT_LEVEL=1
mapfile -t programs < <(cargo test -q -p fairlead --target $TARGET --no-run --message-format=json |
    sed -n 's,.*"executable":"\([^"]*/deps/[^"]*\)".*,\1,p' | grep -v '/hung_daemon-')
[ ${#programs[@]} = 5 ] || die "there are ${#programs[@]} suites of the executable's, not 5: ${programs[*]}"
for program in "${programs[@]}"; do
    [ "$(od -An -t u2 -j 18 -N 2 "$program")" -eq 183 ] || die "$program is not for arm64"
done
unshare --user --map-root-user --mount --pid --fork --kill-child --mount-proc -- "$PWD/tests/arm64.sh" --inside "${programs[@]}"
