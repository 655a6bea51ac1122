#!/usr/bin/env bash
# The lab: a virtual machine with two NUMA nodes, three SR-IOV NICs (Intel 82576, 7 VFs each), an IOMMU, vfio, and a
# kernel with ipvlan, vlan, dummy and bonding. README.md beside this file says what is known about it.
#
#   up.sh 'command'     run the command (bash) inside; its output and its exit status are returned
#   up.sh               the same with the commands read from standard input
#   up.sh --shell       a machine that answers line after line, until the end of standard input
#   up.sh --install     only install what is missing
#
# The machine's own root file system is underneath, read-only: what was built here runs there. What the guest writes
# to /etc, /usr, /var, /tmp or /run vanishes with it. $LAB_SHARE is the one directory that both sides write to.
#
#   LAB_SHARE         directory shared with the guest, same path inside    (default: share/ in LAB_CACHE); a machine each
#   LAB_CACHE         virtual environment, lock, share                     (default: .cache/lab of the project)
#   LAB_ACCEL         auto | kvm | tcg            (default auto: KVM if a kernel really boots with it)
#   LAB_CPUS          CPUs, spread over both nodes                         (default 4)
#   LAB_MEM           MiB, half for each node     (default and limit 2688, see README.md)
#   LAB_TIMEOUT       seconds until the machine is ended, status 124       (default 1800)
#   LAB_BOOT_TIMEOUT  seconds for the guest to come up; three tries        (default 180)
#   LAB_MODULES       modules loaded before the command                    (default: igb igbvf vfio-pci vfio_iommu_type1)
#   LAB_NETDEVSIM     1: netdevsim is built for the guest's kernel, and $NETDEVSIM is the module
#   LAB_APPEND, LAB_QEMU   more kernel parameters, more QEMU options
#   LAB_VERBOSE       1: the guest's console on standard error
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")

LAB_CACHE=${LAB_CACHE:-$(dirname "$here")/.cache/lab}
LAB_SHARE=${LAB_SHARE:-$LAB_CACHE/share}
LAB_CPUS=${LAB_CPUS:-4} LAB_MEM=${LAB_MEM:-2688} LAB_ACCEL=${LAB_ACCEL:-auto}
LAB_TIMEOUT=${LAB_TIMEOUT:-1800} LAB_BOOT_TIMEOUT=${LAB_BOOT_TIMEOUT:-180}
LAB_MODULES=${LAB_MODULES-igb igbvf vfio-pci vfio_iommu_type1}
mkdir -p "$LAB_SHARE" "$LAB_CACHE"

begun=${LAB_BEGUN:-$EPOCHREALTIME} # one clock for both halves of this script
say() { printf '[lab %6.1f s] %s\n' "$(awk -v a="$begun" -v b="$EPOCHREALTIME" 'BEGIN{print b-a}')" "$*" >&2; }
die() { say "$*"; exit 125; }
[ "$(id -u)" = 0 ] || die "must be root: it installs packages and mounts in a mount namespace of its own"
. "$here/install.sh"
. "$here/netdevsim.sh"

# ---- outside: what is missing, one machine at a time on a share, how it is run ----
outside() {
    exec 8>"$LAB_CACHE/lock"
    flock 8
    install_qemu
    install_tools
    cached_root
    install_kernel
    [ -z "${LAB_NETDEVSIM:-}" ] || install_netdevsim
    [ "${1:-}" != --install ] || { say "ready: QEMU $(qemu_major), kernel $KVER"; exit 0; }
    [ "$LAB_ACCEL" != auto ] || LAB_ACCEL=$(accelerator)
    exec 9>"$LAB_SHARE/.lock" 8>&-
    flock 9
    case ${1:-} in
    --shell) LAB_LINES=1 ;;
    '') cat >"$LAB_SHARE/.command.sh" ;;
    *) printf '%s\n' "$*" >"$LAB_SHARE/.command.sh" ;;
    esac
    say "QEMU $(qemu_major), kernel $KVER, $LAB_ACCEL"
    export LAB_INSIDE=1 LAB_BEGUN=$begun LAB_LINES=${LAB_LINES:-} KVER LAB_SHARE LAB_CACHE LAB_CPUS LAB_MEM LAB_ACCEL \
        LAB_TIMEOUT LAB_BOOT_TIMEOUT LAB_MODULES
    exec unshare --mount -- "$0"
}

# ---- the machine ----
# Two root complexes (pxb-pcie), one for each node, with a root port and a NIC each; a third NIC on the root bus has
# no node. All NICs hang on one emulated wire.
qemu_options() {
    local o="-M q35,kernel-irqchip=split -device intel-iommu,intremap=on,caching-mode=on"
    o+=" -device pxb-pcie,id=pxb0,bus_nr=32,bus=pcie.0,numa_node=0 -device pxb-pcie,id=pxb1,bus_nr=64,bus=pcie.0,numa_node=1"
    o+=" -device pcie-root-port,id=rp0,bus=pxb0,chassis=1,slot=1,hotplug=off"
    o+=" -device pcie-root-port,id=rp1,bus=pxb1,chassis=2,slot=2,hotplug=off"
    o+=" -device pcie-root-port,id=rp2,bus=pcie.0,chassis=3,slot=3,hotplug=off"
    o+=" -netdev hubport,hubid=0,id=n0 -device igb,netdev=n0,bus=rp0,mac=52:54:00:00:00:10"
    o+=" -netdev hubport,hubid=0,id=n1 -device igb,netdev=n1,bus=rp1,mac=52:54:00:00:00:20"
    o+=" -netdev hubport,hubid=0,id=n2 -device igb,netdev=n2,bus=rp2,mac=52:54:00:00:00:30"
    # one emulation thread: with one for each CPU, a CPU now and then loses its timer for good and the guest hangs
    [ "$LAB_ACCEL" = kvm ] || o+=" -cpu max,la57=off -accel tcg,thread=single"
    # two sockets: else one package spans both nodes
    printf '%s -smp %d,sockets=2,cores=%d,threads=1 %s' "$o" "$LAB_CPUS" $((LAB_CPUS / 2)) "${LAB_QEMU:-}"
}

# The guest's init wants udev only to name its own serial ports; real udev costs 40 s under emulation. A stand-in is
# bound over it, in this script's mount namespace; NICs then keep their eth<n> names.
stand_in_for_udev() {
    cat >"$LAB_SHARE/.udevd" <<'U'
#!/bin/sh
# stands for systemd-udevd and for udevadm, which are one file in Debian 12 and two in others
PATH=/usr/sbin:/usr/bin:/sbin:/bin
case ${0##*/} in udevadm) exit 0 ;; esac
modprobe virtio_console
i=0
while [ $i -lt 50 ] && ! grep -qs virtme.ret /sys/class/virtio-ports/*/name; do i=$((i+1)); sleep 0.1; done
mkdir -p /dev/virtio-ports
for p in /sys/class/virtio-ports/*; do ln -sf "../${p##*/}" "/dev/virtio-ports/$(cat "$p/name")"; done
U
    printf '#!/bin/sh\nexit 0\n' >"$LAB_SHARE/.nothing"
    chmod 755 "$LAB_SHARE/.udevd" "$LAB_SHARE/.nothing"
    local tool
    # For the script that is about udev. One file is several programs, by its name.
    cp "$(readlink -f /lib/systemd/systemd-udevd)" "$LAB_SHARE/systemd-udevd"
    for tool in /lib/systemd/systemd-udevd "$(command -v udevadm || true)"; do
        [ -z "$tool" ] || mount --bind "$LAB_SHARE/.udevd" "$(readlink -f "$tool")"
    done
    tool=$(command -v systemd-tmpfiles) && mount --bind "$LAB_SHARE/.nothing" "$tool" || true
}

# A file, because the kernel's command line is short.
guest_script() {
    cat <<G
[ -z "$LAB_MODULES" ] || modprobe -a $LAB_MODULES || exit 125
export LAB_SHARE=$(printf %q "$LAB_SHARE") NETDEVSIM=$(printf %q "${NETDEVSIM:-}")
touch "\$LAB_SHARE/.started"
[ -z "$LAB_LINES" ] || exec bash $(printf %q "$here/lines.sh") inside
exec bash "\$LAB_SHARE/.command.sh"
G
}

# Returns 1 when the guest did not come up; else `status` is what its command returned.
boot() {
    local half=$((LAB_MEM / 2)) last=$((LAB_CPUS - 1)) mid=$((LAB_CPUS / 2)) pid i
    local options=(--run "/boot/vmlinuz-$KVER" --force-9p --cpus "$LAB_CPUS" --memory "${LAB_MEM}M"
        --numa "${half}M,cpus=0-$((mid - 1))" --numa "${half}M,cpus=$mid-$last" --numa-distance 0,1=21
        -a intel_iommu=on -a iommu=pt -a cryptomgr.notests -a audit=0 -a nowatchdog --rwdir "$LAB_SHARE")
    [ "$LAB_ACCEL" = kvm ] || options+=(--disable-kvm)
    [ -z "${LAB_APPEND:-}" ] || options+=(-a "$LAB_APPEND")
    if [ -n "${LAB_VERBOSE:-}" ]; then options+=(--verbose); else options+=(-a quiet); fi
    rm -f "$LAB_SHARE/.started"
    # QEMU opens the file behind standard output anew and truncates it: it gets pipes
    PATH="$LAB_CACHE/venv/bin:$PATH" timeout -k 10 "$LAB_TIMEOUT" \
        vng "${options[@]}" --qemu-opts="$(qemu_options)" -- "bash $LAB_SHARE/.guest.sh" \
        </dev/null > >(cat) 2> >(grep --line-buffered -v 'is not connected to host network' >&2) &
    pid=$!
    trap 'kill $pid 2>/dev/null; exit 143' INT TERM # the machine ends with the one who asked for it
    for ((i = 0; i < LAB_BOOT_TIMEOUT * 5; i++)); do
        [ -e "$LAB_SHARE/.started" ] || ! kill -0 $pid 2>/dev/null || { sleep 0.2; continue; }
        [ -z "$LAB_LINES" ] || LAB_PID=$pid "$here/lines.sh" outside <&3 || true
        wait $pid && status=0 || status=$?
        [ -e "$LAB_SHARE/.started" ] # else QEMU or the guest's kernel ended before
        return
    done
    kill $pid
    wait $pid 2>/dev/null || true
    return 1
}

[ -n "${LAB_INSIDE:-}" ] || outside "$@"
exec 3<&0
stand_in_for_udev
guest_script >"$LAB_SHARE/.guest.sh"
status=125
for try in 1 2 3; do
    boot && break
    say "the guest did not come up, or not within $LAB_BOOT_TIMEOUT s (try $try of 3; LAB_VERBOSE=1 shows its console)"
done
say "machine down, exit status $status"
exit "$status"
