# The switch of a test's node, as it is installed: as a user without rights, and killed as a crash kills. Sourced after dpdk_pods.sh.

SOCKET=/run/fairlead/vswitch.sock

# switch_start [OPTION…]
switch_start() {
    mkdir -p -m 700 /run/fairlead
    "$DIST/fairlead-vswitch" run --socket $SOCKET --user $NOBODY:$NOBODY "$@" >>"$LOG/fairlead-vswitch" 2>&1 &
    echo $! >"$NODE/vswitch.pid"
    disown $!
    eventually 10 test -S $SOCKET
}

switch_kill() {
    local pid
    pid=$(cat "$NODE/vswitch.pid")
    kill -KILL "$pid"
    eventually 10 gone "$pid"
}

ports() { "$DIST/fairleadd" vswitch ports -o json | jq 'if has("ports") then .ports else error("the switch does not answer") end'; }
