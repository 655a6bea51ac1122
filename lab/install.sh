# What the lab needs on a Debian 12 machine: QEMU 8 or newer (igb came with it), kernel 6.12, virtme-ng. Sourced by
# up.sh. Nothing of this machine's own boot is touched: the kernel package is only unpacked.

VIRTME_NG=1.42
APT_LOG=$LAB_CACHE/apt.log
. "$here/../tests/packages.sh"

qemu_major() { { qemu-system-x86_64 --version 2>/dev/null || true; } | sed -n '1s/.*version \([0-9]*\).*/\1/p'; }

install_qemu() {
    local major
    major=$(qemu_major)
    [ "${major:-0}" -lt 8 ] || return 0
    say "installing QEMU"
    backports
    if [ "${VERSION_CODENAME:-}" = bookworm ]; then
        apt -t bookworm-backports qemu-system-x86
    else
        apt qemu-system-x86
    fi
}

install_tools() {
    local want=()
    command -v ip >/dev/null || want+=(iproute2)
    command -v modprobe >/dev/null || want+=(kmod)
    command -v python3 >/dev/null || want+=(python3)
    if ! [ -x /bin/busybox ] || ldd /bin/busybox >/dev/null 2>&1; then want+=(busybox-static); fi
    # virtme-ng's init calls udevd by its path; up.sh puts a stand-in over it
    [ -e /lib/systemd/systemd-udevd ] || want+=(udev)
    [ -x /lib/systemd/systemd ] || want+=(systemd) # the first process of a node in tests/systemd.sh
    /usr/bin/python3 -c 'import venv, ensurepip' 2>/dev/null || want+=(python3-venv)
    [ ${#want[@]} = 0 ] || { say "installing ${want[*]}"; apt "${want[@]}"; }
    # run, not only looked at: its first line has the checkout's path, and a checkout may have been moved
    [ "$("$LAB_CACHE/venv/bin/vng" --version 2>/dev/null)" != "virtme-ng $VIRTME_NG" ] || return 0
    say "installing virtme-ng"
    /usr/bin/python3 -m venv --clear "$LAB_CACHE/venv"
    "$LAB_CACHE/venv/bin/pip" install -q "virtme-ng==$VIRTME_NG" || die "pip cannot install virtme-ng: is PyPI reachable?"
}

# virtme-ng mounts the guest's root without any cache, so that every start of a program reads all of it again: a second for
# one of some MB. The root is read-only, and nobody changes what is under it meanwhile.
cached_root() {
    local mounts=("$LAB_CACHE"/venv/lib/python3*/site-packages/virtme/mkinitramfs.py)
    sed -i 's|trans=virtio,access=any|trans=virtio,cache=loose,access=any|' "${mounts[@]}"
    grep -q 'trans=virtio,cache=loose,access=any' "${mounts[@]}" || die "virtme-ng mounts the guest's root in another way: ${mounts[*]}"
}

guest_kernel() {
    find /lib/modules/ -maxdepth 1 -name '6.12.*-amd64' ! -name '*cloud*' ! -name '*-rt-*' -printf '%f\n' 2>/dev/null |
        sort -V | tail -1
}

# The archive keeps the headers of the kernel of the day alone: one of yesterday has the module that was built then, or none.
netdevsim_can_be_had() {
    [ ! -s "$LAB_CACHE/netdevsim-$KVER.ko" ] || return 0
    backports
    apt_update
    [ -n "$(apt-cache show "linux-headers-$KVER" 2>/dev/null)" ]
}

install_kernel() {
    KVER=$(guest_kernel || true)
    if [ -n "$KVER" ] && [ -s "/boot/vmlinuz-$KVER" ] && [ -s "/lib/modules/$KVER/modules.dep" ]; then
        [ -n "${LAB_NETDEVSIM:-}" ] && ! netdevsim_can_be_had || return 0
    fi
    say "installing the guest's kernel (107 MB)"
    command -v depmod >/dev/null || apt kmod
    backports
    apt_update
    local package unpacked
    # the meta package names the version of the day, in the backports or the security suite
    package=$(apt-cache show linux-image-6.12-amd64 | sed -n 's/^Depends: \(linux-image-[^ ,]*\).*/\1/p' | sort -V | tail -1)
    [ -n "$package" ] || die "apt knows no linux-image-6.12-amd64: is the bookworm-backports suite reachable?"
    KVER=${package#linux-image-}
    unpacked=$(mktemp -d -p "$LAB_CACHE")
    chmod 755 "$unpacked" # apt's own user downloads into it
    (cd "$unpacked" && apt_get download -qq "$package" 2>/dev/null && dpkg-deb -x ./linux-image-*.deb x) ||
        die "the package $package cannot be fetched"
    mkdir -p /boot /lib/modules
    # never unpack straight onto /: the package's ./lib would replace a merged /lib link
    cp -a "$unpacked/x/lib/modules/$KVER" /lib/modules/ 2>/dev/null || cp -a "$unpacked/x/usr/lib/modules/$KVER" /lib/modules/
    cp -a "$unpacked/x/boot/vmlinuz-$KVER" /boot/
    depmod "$KVER"
    rm -rf "$unpacked"
}

# /dev/kvm says little: a nested or paravirtual host may have it and stop at the guest's first instructions. So a
# real kernel is booted with it, and has a time limit to reach the point where it misses a root file system.
kvm_works() {
    [ -r /dev/kvm ] && [ -w /dev/kvm ] || return 1
    local log pid works=1
    log=$(mktemp -p "$LAB_CACHE")
    qemu-system-x86_64 -accel kvm -cpu host -M q35,kernel-irqchip=split -m 512 -nodefaults -display none \
        -serial "file:$log.tty" -no-reboot -kernel "/boot/vmlinuz-$KVER" -append 'console=ttyS0 panic=-1' \
        </dev/null >"$log" 2>&1 &
    pid=$!
    for _ in $(seq 150); do # a good host needs about a second
        grep -qs 'Unable to mount root' "$log.tty" && { works=0; break; }
        grep -qis -e 'internal error' -e 'failed to initialize' -e 'not support' "$log" && break
        kill -0 $pid 2>/dev/null || { ! grep -qs 'Unable to mount root' "$log.tty" || works=0; break; }
        sleep 0.1
    done
    kill $pid 2>/dev/null || true
    wait $pid 2>/dev/null || true
    rm -f "$log" "$log.tty"
    return $works
}

# The accelerator that works here. Asked once a boot of this machine: where KVM fails, the question takes 12 s.
accelerator() {
    local probe
    probe=$LAB_CACHE/accel-$(cat /proc/sys/kernel/random/boot_id)
    [ -s "$probe" ] || { kvm_works && echo kvm || echo tcg; } >"$probe"
    cat "$probe"
}
