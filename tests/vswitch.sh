# The switch of a test's node, as it is installed: as a user without rights, and killed as a crash kills. Sourced after dpdk_pods.sh.

SOCKET=/run/fairlead/vswitch.sock

# switch_start [OPTION…]: returns when it is ready, which the socket does not tell: one that was killed has left its own.
switch_start() {
    local before
    mkdir -p -m 700 /run/fairlead
    before=$(times_ready)
    "$DIST/fairlead-vswitch" run --socket $SOCKET --user $NOBODY:$NOBODY "$@" >>"$LOG/fairlead-vswitch" 2>&1 &
    echo $! >"$NODE/vswitch.pid"
    disown $!
    eventually 10 ready_again "${before:-0}"
}
times_ready() { grep -cs 'fairlead-vswitch is ready for ports' "$LOG/fairlead-vswitch" || true; }
ready_again() { [ "$(times_ready)" -gt "$1" ]; } # TIMES-BEFORE

switch_kill() {
    local pid
    pid=$(cat "$NODE/vswitch.pid")
    kill -KILL "$pid"
    eventually 10 gone "$pid"
}

ports() { "$DIST/fairleadd" vswitch ports -o json | jq 'if has("ports") then .ports else error("the switch does not answer") end'; }
