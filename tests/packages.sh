# Debian packages, for tests/setup.sh and lab/install.sh: one `apt-get update` a run, and only if something is missing.
# Sourced; needs die (prints its arguments and ends) and APT_LOG.

apt_fresh=

# One at a time: parts of a run do this at once, and apt itself waits for dpkg's lock alone.
apt_get() { flock -o /var/lib/apt apt-get -o DPkg::Lock::Timeout=600 "$@"; }

apt_update() {
    [ -z "$apt_fresh" ] || return 0
    local pause
    for pause in 5 15 0; do
        ! apt_get update -qq || { apt_fresh=1; return 0; }
        sleep $pause
    done
    die "apt-get update failed: is the Debian mirror reachable?"
}

apt() { # [-t SUITE] PACKAGE…
    [ "$(id -u)" = 0 ] || die "packages are missing: run this as root, or install them: apt-get install $*"
    apt_update
    DEBIAN_FRONTEND=noninteractive apt_get install -qq -y --no-install-recommends "$@" >"$APT_LOG" 2>&1 ||
        { tail -5 "$APT_LOG" >&2; die "apt-get install $* failed; all of its output is in $APT_LOG"; }
}

# Adds the suite next to the one that this machine already uses, from the same mirror. Newer releases need none.
backports() {
    . /etc/os-release
    [ "${ID:-} ${VERSION_CODENAME:-}" = "debian bookworm" ] || return 0
    grep -rqs bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d && return 0
    local mirror
    mirror=$(awk '/^URIs:/{print $2; exit}' /etc/apt/sources.list.d/debian.sources 2>/dev/null || true)
    [ -n "$mirror" ] || mirror=$(awk '$1=="deb"{for(i=2;i<=NF;i++)if($i~/:\/\//){print $i;exit}}' /etc/apt/sources.list)
    printf 'Types: deb\nURIs: %s\nSuites: bookworm-backports\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
        "$mirror" >/etc/apt/sources.list.d/bookworm-backports.sources
    apt_fresh=
}
