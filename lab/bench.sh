#!/usr/bin/env bash
# fairlead-bench with real VFs: runs it in the lab machine, on what is in dist/. Arguments are its own.
#   lab/bench.sh --quick
#   lab/bench.sh --peer sriov-cni=/opt/cni/bin/sriov     with host-local beside it, or the reference plugins'
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
case ${1:-} in
--inside) shift ;;
*) exec "$here/up.sh" "bash $(printf '%q ' "$here/bench.sh" --inside "$@")" ;;
esac

# ours are of the NIC on node 0; those of the NIC on node 1 are for the floor and the peers; those of the third are ours too,
# under vfio-pci
FUNCTIONS=${FUNCTIONS:-7} VFIO_FUNCTIONS=${VFIO_FUNCTIONS-2}
PHYSICAL=0000:21:00.0 BESIDE=${BESIDE:-0000:41:00.0} THIRD=0000:01:00.0
functions() { # PHYSICAL OPTION NUMBER
    local n
    [ "${3:-0}" != 0 ] || return 0
    ip link set "$(basename "$(echo /sys/bus/pci/devices/"$1"/net/*)")" up
    [ -e /sys/bus/pci/devices/"$1"/virtfn0 ] || echo "$3" >/sys/bus/pci/devices/"$1"/sriov_numvfs
    for ((n = 0; n < $3; n++)); do
        printf '%s %s ' "$2" "$(basename "$(readlink /sys/bus/pci/devices/"$1"/virtfn$n)")"
    done
}
programs=$(mktemp -d) # in memory, ours and the peers' alike
cp "$here"/../dist/{fairlead,fairleadd,fairlead-bench,fairlead-empty} "$programs"
words=() last='' # peers as well
for word in "$@"; do
    if [ "$last" = --peer ]; then
        path=${word#*=} peer=$programs/peers/${word%%=*}
        mkdir -p "$peer"
        cp "$path" "$peer"
        cp "$(dirname "$path")/host-local" "$peer" 2>/dev/null || cp "$here/../.cache/bin/plugins/host-local" "$peer"
        word=${word%%=*}=$peer/$(basename "$path")
    fi
    words+=("$word") last=$word
done
options="$(functions $PHYSICAL --function "$FUNCTIONS")$(functions "$BESIDE" --function-beside "$FUNCTIONS")"
options+=$(functions $THIRD --function-vfio "$VFIO_FUNCTIONS")
cd "$here/.."
# shellcheck disable=SC2086 # words
"$programs/fairlead-bench" --ours "$programs" --empty "$programs/fairlead-empty" $options "${words[@]}"
