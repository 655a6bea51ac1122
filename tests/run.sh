#!/usr/bin/env bash
# All the proof there is, in stages; the last line is "N passed, N failed".
#
#   STAGES="lint runtimes"   only these (setup always)
#
# Each stage's whole output is kept in .cache/test/<stage>.log.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

ALL="lint build crates runtimes equality bench lab e2e"
STAGES=${STAGES:-$ALL}
EQUALITY=${EQUALITY:-dist/fairlead-contest}
LOGS=.cache/test
LITTLE_ROOM=8 # GiB: below it what no later stage needs is removed

# What speeds up the second build after a change takes gigabytes, and slows down the first.
export CARGO_INCREMENTAL=0

stage_setup() { tests/setup.sh build runtimes reference monitoring emulation dpdk guests ovs deny; }
stage_lint() { tests/lint.sh; }
stage_build() { make -s build test-programs; }
stage_crates() {
    local rc=0 built=${CARGO_TARGET_DIR:-target}/debug before
    before=$(mounts_of_tests)
    # Most of a test's time is waiting: two for each processor end in two thirds of the time.
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
    cargo test -q --workspace --no-fail-fast || rc=1
    echo "-- the daemon killed at every step"
    cargo build -q -p fairlead
    cargo test -q -p fairlead-daemon --features failpoints --test crash || rc=1
    echo "-- the executable for arm64, under emulation"
    tests/arm64.sh || rc=1
    echo "-- upgrade, roll back, upgrade again, with two builds"
    cargo build -q -p fairlead-daemon --features next-format --bin fairleadd
    install "$built/fairleadd" "$built/fairleadd-next-format"
    cargo build -q -p fairlead-daemon --bin fairleadd
    tests/rollback.sh "$built/fairleadd" "$built/fairleadd-next-format" "$built/fairlead" || rc=1
    if [ "$(mounts_of_tests)" != "$before" ]; then
        echo "not ok  a test has left a mount, which outlives it:"
        mounts_of_tests
        rc=1
    fi
    return $rc
}
# Where something is mounted in a test's directory.
mounts_of_tests() { awk '$5 ~ "^/tmp/[.]tmp" {print $5}' /proc/self/mountinfo | sort; }
stage_runtimes() {
    local rc=0 runtime
    for runtime in cnitool containerd podman vhost_user vhost_user_paths vhost_user_qemu vhost_user_restarts ovs_dpdk prometheus; do
        echo "-- $runtime"
        tests/$runtime.sh || rc=1
    done
    demo || rc=1
    return $rc
}
# It ends with an error where something is not as it says.
demo() {
    local rc=0
    echo "-- demo"
    tests/demo.sh || rc=1
    echo "demo: $((1 - rc)) passed, $rc failed"
    return $rc
}
stage_equality() { $EQUALITY; }
# suite OPTIONS…: the latency suite counts calls and not tests: each case that measured something is one here.
suite() {
    local rc=0 report=$LOGS/bench.json
    rm -f "$report" # of an earlier suite
    dist/fairlead-bench "$@" --quick --json "$report" || rc=1
    jq -r '(.cases | map(.name)) as $all | ([.figures[], .readings[] | .case] | unique) as $measured
        | ($all - $measured) as $empty
        | ($empty[] | "not ok  the case \(.) measured nothing"),
          "bench: \(($all | length) - ($empty | length)) passed, \($empty | length) failed"' "$report"
    return $rc
}
stage_bench() {
    local rc=0
    tests/setup.sh documents # python3
    daemon/usual_path.py --check || rc=1
    suite --reference .cache/bin/plugins || rc=1
    suite switches || rc=1
    return $rc
}
stage_lab() { lab/test.sh; }
stage_e2e() {
    tests/setup.sh cluster
    make -s api-server
    make -s dist-image
    local rc=0
    suite pods --kubernetes .cache/k8s/now || rc=1
    requests_of_pods || rc=1
    tests/e2e.sh || rc=1
    return $rc
}
# What the suite has counted of our own pods' requests to the API server (K13, X11), whose annotations came with the call or by the watch:
# a count needs no quiet machine.
requests_of_pods() {
    echo "-- requests to the API server"
    jq -r '[.readings[] | select(.case == "pod-requests" and (.subject | startswith("ours")))] as $of_ours
        | def verdict($what; $most): ([$of_ours[] | select(.what == $what)] | map(.values[])) as $counts
            | if ($of_ours | map(select(.what == $what)) | length) == 2 and ($counts | length) >= 2 and ($counts | max) <= $most
              then "ok      \($what): at most \($most)" else "not ok  \($what): \($counts), not at most \($most)" end;
          verdict("requests per pod until ADD\u0027s answer"; 0), verdict("requests per pod in all"; 1)' $LOGS/bench.json |
        awk '{ print; if ($1 == "ok") p++; else f++ } END { printf "requests: %d passed, %d failed\n", p, f; exit f || p != 2 }'
}

# The seconds after which a stage is ended, because it hangs: more than twice what it takes from nothing on two processors.
limit() {
    case $1 in
    lint | equality | bench) echo 900 ;;
    setup | build | runtimes) echo 1500 ;;
    # The lab's machines end themselves before that; Kubernetes may still be built when e2e begins.
    crates | lab | e2e) echo 2700 ;;
    esac
}

title() {
    case $1 in
    setup) echo "what the tests need" ;;
    lint) echo "rustfmt, clippy, cargo deny" ;;
    build) echo "the programs" ;;
    crates) echo "the crates' own tests, on this machine's kernel" ;;
    runtimes) echo "real callers: cnitool, containerd, podman; DPDK pods and virtual machines, over OVS too; Prometheus" ;;
    equality) echo "side by side with the reference plugins" ;;
    bench) echo "the latency suite runs and verifies (small numbers, no timing is judged)" ;;
    e2e) echo "a real cluster of one node, Fairlead from its own image" ;;
    lab) echo "the virtual machine: ipvlan, vlan, passthru, NICs, systemd" ;;
    *) echo "tests/run.sh: there is no stage '$1'; there are: $ALL" >&2; exit 2 ;;
    esac
}

# Adds up every "12 passed; 0 failed" (cargo) and "12 passed, 0 failed" (ours) of a log.
count() {
    awk '{ while (match($0, /[0-9]+ passed[;,] [0-9]+ failed/)) {
               split(substr($0, RSTART, RLENGTH), n, / passed[;,] | failed/); p += n[1]; f += n[2]
               $0 = substr($0, RSTART + RLENGTH) } }
         END { print p + 0, f + 0 }' "$1"
}

# The parts of a stage's log in which no test was run: a part begins with "-- name" and goes on to the next, or to the line
# "-- name: 12 s". A filter that matches nothing, and a script that forgot its cases, end with success too.
empty_parts() {
    awk 'function close_part() { if (part != "" && !tests) print part; part = ""; tests = 0 }
         /^-- / { close_part(); if ($0 !~ /: [0-9]+ s$/) part = substr($0, 4); next }
         { line = $0
           while (match(line, /[0-9]+ passed[;,] [0-9]+ failed/)) {
               split(substr(line, RSTART, RLENGTH), n, / passed[;,] | failed/); tests += n[1] + n[2]
               line = substr(line, RSTART + RLENGTH) } }
         END { close_part() }' "$1"
}

room() { df --output=avail -BG . | tail -1 | tr -dc 0-9; } # GiB

# A full disk fails tests in ways that tell nothing. After the crates' own tests the later stages take programs from dist/
# alone, but for one suite that e2e builds.
make_room() { # STAGE
    local built=${CARGO_TARGET_DIR:-target}
    [ "$(room)" -lt $LITTLE_ROOM ] || return 0
    case $1 in
    crates) set -- "$built"/*/release/{deps,build} "$built"/*/shim/{deps,build} ;;
    runtimes | equality | bench | lab) set -- "$built" ;;
    *) set -- ;;
    esac
    echo "== $(room) GiB are left, which is little; removed: $*"
    rm -rf "$@"
}

# Says which parts of a stage, or whether all of it, ran no test, where it should have some.
without_tests() { # STAGE TESTS
    case $1 in setup | lint | build) return ;; esac
    local part
    [ "$2" != 0 ] || echo "not ok  the stage $1 ran no test"
    empty_parts "$LOGS/$1.log" | while read -r part; do echo "not ok  $part ran no test"; done
}

# What failed in a log, with the first lines of why: the end of a long output is all that some CI shows.
failures() {
    awk -v stage="$1" '
        function told(line) { print substr(line, 1, 240); n++ }
        /^-- / { script = " " $2; sub(/:$/, "", script) }
        /^(not ok |✗ )/ { told("-- " stage script ": " $0); more = 4; next }
        /^thread .* panicked at / { told("-- " stage ": " $0); more = 2; next }
        /^error/ { told("-- " stage ": " $0); more = 2; next }
        more > 0 && !/^(ok |✓ )|^[0-9]+ passed/ && NF { told($0); more--; next }
        { more = 0; last = $0 }
        END { if (!n) told("-- " stage script ": its last line was: " last) }' "$LOGS/$1.log"
}

passed=0 failed=0 number=0 begun=$EPOCHSECONDS failing=()
# What all stages should take at most, in seconds: with what an earlier run has built into .cache, or from nothing.
most=3300
[ ! -x .cache/k8s/now/kubelet ] || most=1800
read -ra stages <<<"setup $STAGES"
total=${#stages[@]}

# Ends what is left of a process group: it has ten seconds for what it ends itself, as the lab its machines.
end_group() { # PID
    kill -- "-$1" 2>/dev/null || return 0
    for _ in {1..100}; do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "-$1" 2>/dev/null || true
}

running='' background=''
nothing_outlives_this() {
    [ -z "$running" ] || end_group "$running"
    [ -z "$background" ] || kill -- "-$background" 2>/dev/null || true
}

# A stage is a process group of its own and is ended as one: a process that it has begun would hold the pipe, and be in the next one's way.
# Waited for in the background, so that a signal to this script is acted upon at once.
limited() { # STAGE SECONDS LOG
    local out tee rc=0
    exec {out}> >(exec tee -i "$3")
    tee=$!
    timeout -k 10 "$2" "$0" --stage "$1" </dev/null >&"$out" 2>&1 {out}>&- &
    running=$!
    exec {out}>&-
    wait "$running" || rc=$?
    end_group "$running"
    running=
    # One that left the group may hold the pipe for ever.
    timeout 10 tail -f -s 0.1 --pid="$tee" /dev/null || kill "$tee" 2>/dev/null || true
    return $rc
}

run_stage() {
    local name=$1 log=$LOGS/$1.log rc=0 start=$EPOCHSECONDS limit p f missing
    limit=$(limit "$name")
    number=$((number + 1))
    printf '\n== %d/%d %s: %s\n' $number $total "$name" "$(title "$name")"
    make_room "$name"
    limited "$name" "$limit" "$log" || rc=$?
    read -r p f < <(count "$log")
    missing=$(without_tests "$name" $((p + f)))
    [ -z "$missing" ] || { rc=1 f=$((f + $(wc -l <<<"$missing"))); tee -a "$log" <<<"$missing"; }
    [ $rc = 0 ] || [ "$f" != 0 ] || f=1
    [ "$f" = 0 ] || rc=1
    [ $rc = 0 ] || [ $((EPOCHSECONDS - start)) -lt "$limit" ] || echo "== $name was ended after $limit s" | tee -a "$log"
    [ $rc = 0 ] || failing+=("$name")
    passed=$((passed + p)) failed=$((failed + f))
    printf '== %d/%d %s: %d s, %d passed, %d failed; %d GiB free\n' $number $total "$name" $((EPOCHSECONDS - start)) "$p" "$f" "$(room)"
    return $rc
}

if [ "${1:-}" = --stage ]; then
    "stage_$2"
    exit
fi
for name in "${stages[@]}"; do title "$name" >/dev/null; done
[ "$(id -u)" = 0 ] || { echo "the tests make network namespaces: run this as root (sudo -E make test)" >&2; exit 1; }
mkdir -p $LOGS
trap nothing_outlives_this EXIT
trap 'exit 130' HUP INT TERM
# Kubernetes takes longest of all that is built, and is needed last: it is built with what the other stages leave of the
# processors. Stage e2e waits for it; where that is stopped, so is this.
cluster_in_the_background() {
    [[ " $STAGES " == *" e2e "* ]] || return 0
    # A session of its own is a group of its own to the scheduler, within which alone `nice` counts: the group yields too.
    nice -n 19 setsid sh -c 'echo 19 2>/dev/null >/proc/self/autogroup; exec tests/setup.sh cluster' >$LOGS/cluster.log 2>&1 &
    background=$!
}

for name in "${stages[@]}"; do
    [ "$name" != build ] || cluster_in_the_background
    run_stage "$name" || case $name in
    setup | build) break ;; # nothing after it can tell anything
    esac
done
for name in "${failing[@]}"; do
    [ "$name" != "${failing[0]}" ] || printf '\n== what failed\n'
    failures "$name"
done
took=$((EPOCHSECONDS - begun))
# Told and not failed: a machine may be busy with others.
if [ "$STAGES" = "$ALL" ] && [ $took -gt $most ]; then
    printf '\n== NOTICE: %d s are more than the %d s that all of it should take on two processors\n' $took $most
fi
printf '\n%d s in all\n%d passed, %d failed\n' $took $passed $failed
[ $failed = 0 ]
