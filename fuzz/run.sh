#!/usr/bin/env bash
# Guided fuzzing of every target, FUZZ_SECONDS each (60), or of those that are named. New inputs are kept in
# .cache/fuzz; one that breaks something is put into the corpus, where `make test` replays it.
# With a nightly toolchain AddressSanitizer watches too; without, the stable one is used, without it.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
export PATH=$PWD/.cache/bin:$PATH
export CARGO_PROFILE_RELEASE_LTO=off # linking is what takes longest, and nothing here is timed

if ! command -v cargo-fuzz >/dev/null; then
    echo "fuzz: building cargo-fuzz, once"
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=$PWD/.cache/fuzz-build cargo install -q cargo-fuzz --locked --debug --root .cache
    rm -rf .cache/fuzz-build
fi
toolchain=() options=()
if rustup toolchain list 2>/dev/null | grep -q ^nightly; then
    toolchain=(+nightly)
else
    echo "fuzz: NOTICE: no nightly toolchain (rustup toolchain install nightly): without AddressSanitizer"
    export RUSTC_BOOTSTRAP=1
    options=(--sanitizer none)
fi
[ $# -gt 0 ] || set -- config prev_result wire netlink spool journal device_plugin policy annotations \
    vhost_rings vhost_messages vhost_control ovsdb_replies
status=0
for target; do
    echo "fuzz: $target for ${FUZZ_SECONDS:-60} s"
    mkdir -p ".cache/fuzz/$target" "fuzz/artifacts/$target"
    cargo "${toolchain[@]}" fuzz run --features libfuzzer "${options[@]}" --target-dir .cache/fuzz/target "$target" ".cache/fuzz/$target" "fuzz/corpus/$target" \
        -- -max_total_time="${FUZZ_SECONDS:-60}" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        >".cache/fuzz/$target.log" 2>&1 || status=1
    for broken in "fuzz/artifacts/$target"/*; do
        [ -e "$broken" ] || continue
        mv "$broken" "fuzz/corpus/$target/"
        echo "fuzz: $target broke on fuzz/corpus/$target/${broken##*/}; the log is .cache/fuzz/$target.log"
        status=1
    done
    grep -E 'number_of_executed_units|new_units_added' ".cache/fuzz/$target.log" || grep -m 5 -E '^(error|==)|panicked' ".cache/fuzz/$target.log" || true
done
rm -rf fuzz/artifacts
exit $status
