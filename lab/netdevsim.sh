# netdevsim for the guest's kernel: Debian has it switched off, so it is built from Debian's own source of just that
# kernel. Sourced by up.sh. All of it happens in a directory of LAB_CACHE, which keeps the module alone (300 KiB); the
# packages are only unpacked: their installation would pull in a kernel image and have an initrd made.
# From nothing: 170 MB, 20 to 80 s.

install_netdevsim() {
    NETDEVSIM=$LAB_CACHE/netdevsim-$KVER.ko
    export NETDEVSIM
    [ ! -s "$NETDEVSIM" ] || return 0
    say "building netdevsim for the guest's kernel (170 MB)"
    local missing=()
    command -v gcc-12 >/dev/null || missing+=(gcc-12)
    command -v make >/dev/null || missing+=(make)
    command -v xz >/dev/null || missing+=(xz-utils)
    [ ${#missing[@]} = 0 ] || apt "${missing[@]}"
    apt_update
    local work
    work=$(mktemp -d -p "$LAB_CACHE")
    chmod 755 "$work" # apt's own user downloads into it
    (cd "$work" && build_netdevsim >build.log 2>&1) ||
        { tail -5 "$work/build.log" >&2; die "netdevsim cannot be built; all of it is in $work/build.log"; }
    mv "$work/netdevsim.ko" "$NETDEVSIM"
    rm -rf "$work"
}

# In an empty directory.
build_netdevsim() {
    set -e
    local common=${KVER%-amd64} version package headers
    version=$(apt-cache show "linux-headers-$KVER" | sed -n 's/^Version: //p' | head -1)
    [ -n "$version" ] || { echo "the archive has no linux-headers-$KVER"; return 1; }
    for package in "linux-headers-$KVER" "linux-headers-$common-common" "linux-kbuild-$common" "linux-source-6.12=$version"; do
        apt_get download -qq "$package"
    done
    for package in linux-headers-*.deb linux-kbuild-*.deb; do dpkg-deb -x "$package" .; done
    dpkg-deb --fsys-tarfile linux-source-*.deb | tar -xO ./usr/src/linux-source-6.12.tar.xz |
        tar -xJ --strip-components 3 --wildcards 'linux-source-6.12/drivers/net/netdevsim/*'
    headers=$PWD/usr/src/linux-headers-$KVER
    sed -i "s|/usr/src/|$PWD/usr/src/|" "$headers/Makefile" # where it would be if it were installed
    rm -f "$headers/vmlinux"                                # without it no pahole is needed, for types that nobody reads
    make -s -C "$headers" M="$PWD/netdevsim" CC=gcc-12 CONFIG_NETDEVSIM=m modules
    strip --strip-debug -o netdevsim.ko netdevsim/netdevsim.ko
}
