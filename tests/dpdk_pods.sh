# DPDK pods for tests: pods with a volume, the executable as a runtime calls it, and testpmd as another user than root in a namespace that has
# only what a pod has of the node. Sourced after lib.sh.

NOBODY=65534
VOLUMES=/var/lib/kubelet/pods

volume() { echo "$VOLUMES/uid-$1/volumes/kubernetes.io~empty-dir/vhost-user"; }

fresh_pod() { # POD
    ip netns add "$1"
    mkdir -p "$(volume "$1")"
    chmod 777 "$(volume "$1")"
}

# cni COMMAND POD CONFIG: by the command STARTED_BY, if there is one.
cni() {
    CNI_COMMAND=$1 CNI_CONTAINERID=$2-sandbox CNI_NETNS=/run/netns/$2 CNI_IFNAME=net1 CNI_PATH=$CNIBIN \
        CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=$2;K8S_POD_UID=uid-$2" ${STARTED_BY:-} "$DIST/fairlead" <<<"$3"
}

mac_of() { jq -r '.interfaces[0].mac' "$NODE/$1.result"; }
ip_of() { jq -r '.ips[0].address | split("/")[0]' "$NODE/$1.result"; }

# add POD NETWORK MODE [KEYS]: with the configuration that the script's own `config` prints.
add() {
    fresh_pod "$1"
    config "$2" "$3" "${4:-}" >"$NODE/$1.config"
    cni ADD "$1" "$(cat "$NODE/$1.config")" >"$NODE/$1.result" || { cat "$NODE/$1.result"; return 1; }
}

check() { cni CHECK "$1" "$(jq -c --slurpfile r "$NODE/$1.result" '. + {prevResult: $r[0]}' "$NODE/$1.config")"; }

# What the application sees of the node: its volume.
OF_VOLUME='mount --bind "$1" /mnt && mount -t tmpfs tmpfs '$VOLUMES
# The same: one directory, where the container has it, read-only or not, and nothing else of /run and kubelet's.
OF_ALLOCATE='mount --bind "$1" /mnt && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /var/lib/kubelet && mkdir -p "$7" &&
    mount --bind /mnt "$7" && umount /mnt && mount -o "remount,bind,$8" "$7"'

# application POD SERVER PEER-MAC: testpmd, which sends back to its peer what it gets. It reads its commands from a FIFO.
application() { testpmd "$1" "$2" "$3" "$OF_VOLUME" /mnt/net1.sock "$(volume "$1")"; }

# The same with what kubelet gave the pod, its MAC address too, and nothing else.
application_of_port() {
    local mount=".mounts[0]" allocated=$NODE/$1.allocated
    equal "mounts" "$(jq '.mounts | length' "$allocated")" 1
    MAC=$(variable_of_allocate "$1" '(RED|BLUE)_MAC') \
        testpmd "$1" "$2" "$3" "$OF_ALLOCATE" "$(variable_of_allocate "$1" '(RED|BLUE)')" \
        "$(jq -r "$mount.host_path" "$allocated")" "$(jq -r "$mount.container_path" "$allocated")" \
        "$(jq -r "if $mount.read_only then \"ro\" else \"rw\" end" "$allocated")"
}

variable_of_allocate() { jq -r --arg suffix "$2" '.envs | to_entries[] | select(.key | test("^VHOSTUSER_[A-Z_]*\($suffix)$")).value' "$NODE/$1.allocated"; } # POD SUFFIX

# testpmd POD SERVER PEER-MAC MOUNTS SOCKET DIRECTORY [IN-CONTAINER ro|rw]
# FORWARD is its mode, VIRTIO its device's options, MAC an address that is not the port's, MEMORY where its memory is, DEVICES are more
# devices, OPTIONS testpmd's own, RIGHTS setpriv's. What comes before it was told to start is forwarded too: a start may take its time.
testpmd() {
    local pod=$1 server=$2 peer=$3 mounts=$4 socket=$5 directory=$6
    rm -f "$NODE/$pod.commands" "$LOG/testpmd-$pod"
    mkfifo "$NODE/$pod.commands"
    mkdir -p "$NODE/$pod.run"
    chmod 777 "$NODE/$pod.run"
    ip netns exec "$pod" unshare --mount bash -c "$mounts"' &&
        RUNTIME_DIRECTORY=$2 exec setpriv --reuid '$NOBODY' --regid '$NOBODY' --clear-groups '"${RIGHTS:-}"' stdbuf -oL dpdk-testpmd \
            --no-pci '"${MEMORY:---no-huge -m 128}"' --no-telemetry --no-shconf --lcores "0@($3),1@($3)" \
            --vdev "net_virtio_user0,path='"$socket"','"${VIRTIO:-queues=1,queue_size=256}"',server=$4,mac=$5" '"${DEVICES:-}"' \
            -- -i --forward-mode='"${FORWARD:-mac}"' --total-num-mbufs=4096 --no-flush-rx '"${OPTIONS:---txd=256 --rxd=256}"' --eth-peer="0,$6"' \
        application "$directory" "$NODE/$pod.run" "$(cpus)" "$server" "${MAC:-$(mac_of "$pod")}" "$peer" "${@:7}" \
        <>"$NODE/$pod.commands" >"$LOG/testpmd-$pod" 2>&1 &
    echo $! >"$NODE/$pod.pid"
    disown $!
    eventually 60 grep -q 'testpmd>' "$LOG/testpmd-$pod"
}

# Of `received POD`, which a script has of its switch: the frames that the pod's application got.
more_than() { [ "$(received "$1")" -gt "$2" ]; } # POD FRAMES
at_rest() { # POD POD
    local before
    before="$(received "$1") $(received "$2")"
    sleep 0.3
    [ "$(received "$1") $(received "$2")" = "$before" ]
}

# all_answered COUNT SECONDS BYTES ADDRESS: a line for busybox's shell that succeeds if each of so many pings is answered, however late. Its ping
# itself waits for two round trips after the last one, whatever -W says, and on a busy machine an answer may take longer.
all_answered() {
    local replies="busybox awk '/^Icmp:/ { if (n++) print \$c; else for (c = NF; \$c != \"InEchoReps\";) c-- }' /proc/net/snmp"
    echo "wanted=\$((\$($replies) + $1)); busybox ping -q -c $1 -i $2 -s $3 $4; for n in \$(busybox seq 300); do" \
        "[ \$($replies) -lt \$wanted ] || break; busybox sleep 0.1; done; [ \$($replies) -ge \$wanted ]"
}
# answered NETNS COUNT SECONDS BYTES ADDRESS: the same at once, in a namespace.
answered() { ip netns exec "$1" busybox sh -c "$(all_answered "${@:2}")"; }

cpus() { taskset -cp $$ | sed 's/.*: //'; }
say() { echo "$2" >"$NODE/$1.commands"; }

application_end() {
    local pid
    pid=$(cat "$NODE/$1.pid")
    pkill -KILL -P "$pid" || true
    kill -KILL "$pid" 2>/dev/null || true
    eventually 10 gone "$pid"
}

# pods_end POD…: DEL, and the end of what was in them.
pods_end() {
    local pod
    for pod in "$@"; do
        cni DEL "$pod" "$(cat "$NODE/$pod.config")"
        application_end "$pod"
        ip netns del "$pod"
    done
}

# allocate POD PORT: kubelet is started again, and gives the pod's container this port.
allocate() {
    kubelet_end
    "$DIST/failpoints/kubelet" "default/$1" "example.com/${2%-*}" "$2" >"$NODE/$1.allocated" 2>>"$LOG/kubelet" &
    echo $! >"$NODE/kubelet.pid"
    disown $!
    eventually 20 test -s "$NODE/$1.allocated"
}

kubelet_end() {
    [ -e "$NODE/kubelet.pid" ] || return 0
    kill -KILL "$(cat "$NODE/kubelet.pid")"
    eventually 10 gone "$(cat "$NODE/kubelet.pid")"
    rm "$NODE/kubelet.pid"
}
