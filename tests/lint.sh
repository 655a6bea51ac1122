#!/usr/bin/env bash
# rustfmt, clippy, the documents, the tests' scripts and cargo-deny. Advisories are checked where their database can be reached; it says so
# where not.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
export PATH=$PWD/.cache/bin:$PATH

step() { printf 'lint: %s\n' "$*"; }

step "rustfmt"
cargo fmt --all --check
step "clippy, warnings are errors"
cargo clippy -q --workspace --all-targets -- -D warnings
cargo clippy -q -p fairlead-daemon --all-targets --features failpoints -- -D warnings
cargo clippy -q -p fairlead-kubelet --all-targets --features fake-kubelet -- -D warnings
step "links and paths in the documents"
tests/documents.py
step "checks in the tests' scripts that decide nothing"
tests/unjoined_checks.py
step "cargo deny: licences, bans, sources"
cargo deny --log-level error check --hide-inclusion-graph bans licenses sources
if timeout 120 cargo deny --log-level off fetch db >/dev/null 2>&1; then
    step "cargo deny: advisories"
    cargo deny --log-level error check --disable-fetch advisories
else
    step "NOTICE: advisories were not checked: their database cannot be reached from here"
fi
