# Virtual machines for tests: QEMU as the frontend of a pod's vhost-user socket, as another user than root and in a namespace that has only
# the pod's volume, and a guest with a kernel and busybox. Sourced after dpdk_pods.sh.
#
# A guest takes its commands from its second serial port, QEMU its own from a monitor: both are pairs of FIFOs.

GUESTS=/run/guests
GUEST_MEMORY=160 # MiB
ANSWER=120       # seconds that a guest or QEMU may take for an answer,
BOOT=600         # and a guest to boot

# What all guests boot: made once for a node. Nobody's own files.
guests_ready() {
    local LAB_CACHE=$ROOT/.cache/lab root=$NODE/initramfs kernel module
    local here=$ROOT/lab
    . "$ROOT/lab/install.sh"
    kernel=$(guest_kernel)
    mkdir -p $GUESTS "$root/bin"
    accelerator >$GUESTS/accelerator
    cp "/boot/vmlinuz-$kernel" $GUESTS/kernel
    cp "$(command -v busybox)" "$root/bin/busybox"
    for module in net/core/failover drivers/net/net_failover drivers/net/virtio_net; do
        unpacked_module "/lib/modules/$kernel/kernel/$module.ko" >"$root/${module##*/}.ko"
    done
    guest_init >"$root/init"
    chmod 755 "$root/init"
    (cd "$root" && find . | busybox cpio -o -H newc) >$GUESTS/initramfs
}

unpacked_module() { if [ -e "$1.xz" ]; then busybox xz -dc "$1.xz"; else cat "$1"; fi; }

# The guest's first and only process.
guest_init() {
    cat <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in failover net_failover virtio_net; do insmod /$module.ko; done
ip link set lo up
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo ready
while read -r number command; do
    eval "$command"
    echo "status $number $?"
done
INIT
}

# A socket is made by QEMU, or connected to again and again.
chardev_options() { # SERVER
    local major
    major=$(qemu-system-x86_64 --version | sed -n '1s/.*version \([0-9]*\).*/\1/p')
    if [ "$1" = 1 ]; then echo server=on; elif [ "$major" -ge 10 ]; then echo reconnect-ms=50; else echo reconnect=1; fi
}

# guest_start POD SERVER QUEUES
guest_start() {
    local pod=$1 directory=$GUESTS/$1 fifo accelerate='-cpu max,la57=off -accel tcg,thread=single'
    [ "$(cat $GUESTS/accelerator)" != kvm ] || accelerate='-cpu host -accel kvm'
    mkdir -p "$directory"
    for fifo in commands monitor; do
        rm -f "$directory/$fifo".{in,out}
        mkfifo -m 666 "$directory/$fifo".{in,out}
    done
    chmod 777 "$directory"
    ip netns exec "$pod" unshare --mount bash -c "$OF_VOLUME"' && cd "$2" &&
        exec setpriv --reuid '$NOBODY' --regid '$NOBODY' --clear-groups --no-new-privs qemu-system-x86_64 '"$accelerate"' \
            -M pc,memory-backend=ram -smp $4 -m '$GUEST_MEMORY'M,slots=4,maxmem=1G -nodefaults -no-user-config -display none \
            -object memory-backend-memfd,id=ram,size='$GUEST_MEMORY'M,share=on -kernel ../kernel -initrd ../initramfs \
            -append "console=ttyS0 quiet panic=-1 cryptomgr.notests audit=0 nowatchdog" -serial file:console \
            -chardev pipe,id=commands,path=commands -serial chardev:commands -chardev pipe,id=monitor,path=monitor -mon monitor,mode=control \
            -chardev socket,id=socket,path=/mnt/net1.sock,$3 -netdev vhost-user,id=net,chardev=socket,queues=$4 \
            -device "virtio-net-pci,id=nic,netdev=net,mac=$5,mq=on,vectors=$((2 * $4 + 2))"' \
        guest "$(volume "$pod")" "$directory" "$(chardev_options "$2")" "$3" "$(mac_of "$pod")" >"$LOG/qemu-$pod" 2>&1 &
    echo $! >"$NODE/$pod.pid"
    disown $!
    monitor "$pod" '{"execute":"qmp_capabilities"}'
}

# line_of POD FIFO PATTERN SECONDS: lines until one matches, which is left in `line`; the others are printed.
line_of() {
    local fifo=$GUESTS/$1/$2.out rc=1
    exec 7<>"$fifo"
    while IFS= read -r -u 7 -t "$4" line; do
        # shellcheck disable=SC2053 # it is a pattern
        [[ $line != $3 ]] || { rc=0; break; }
        printf '%s\n' "$line"
    done
    exec 7>&-
    [ $rc = 0 ] || echo "nothing like \"$3\" came from $1's $2 in time"
    return $rc
}

# guest POD COMMAND: its output, its status.
guest() {
    local number=${EPOCHREALTIME/./} line
    echo "$number $2" >"$GUESTS/$1/commands.in"
    line_of "$1" commands "status $number *" $ANSWER || return 1
    return "${line##* }"
}

# monitor POD COMMAND: what QEMU answers. Events go to the log.
monitor() {
    local number=${EPOCHREALTIME/./} line
    echo "${2%\}},\"id\":$number}" >"$GUESTS/$1/monitor.in"
    line_of "$1" monitor "*\"id\": $number*" $ANSWER >>"$LOG/monitor-$1" || { echo "QEMU of $1 does not answer: $2"; return 1; }
    jq -e '.return' <<<"$line" || { echo "$line"; return 1; }
}

# Waits for the guest's kernel, and gives its interface the address that ADD answered.
guest_up() {
    local pod=$1 line
    line_of "$pod" commands ready $BOOT || { tail -20 "$GUESTS/$pod/console"; return 1; }
    guest_address "$pod"
}

guest_address() {
    guest "$1" "ip address add $(jq -r '.ips[0].address' "$NODE/$1.result") dev eth0 && ip link set eth0 up"
}

guest_end() {
    local pid
    pid=$(cat "$NODE/$1.pid")
    kill -KILL "$pid"
    eventually 10 gone "$pid"
}
