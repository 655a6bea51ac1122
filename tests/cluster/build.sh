#!/usr/bin/env bash
# Builds what a node of Kubernetes consists of, and what is needed to look at it, from the Go module proxy: about eight minutes
# of two processors, once. A program that is there already is not built again; a build that was stopped goes on from Go's own
# cache.
#
#   build.sh DIRECTORY     $GO is the Go to build with (1.21 or newer that may fetch the 1.26 which Kubernetes wants)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
KUBERNETES=v1.36.3
CONTAINERD=v2.4.2
HELM=v4.2.4
GO=${GO:-go}
. "$here/../go_thrice.sh"
WITNESS=$here/../../lab/kubelet/witness.go
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false -mod=mod'

KUBERNETES_PACKAGES=(k8s.io/kubernetes/cmd/{kube-apiserver,kubelet,kube-controller-manager,kube-scheduler,kubectl} helm.sh/helm/v4/cmd/helm)
CONTAINERD_PACKAGES=(./cmd/{containerd,containerd-shim-runc-v2,ctr})

programs=$(readlink -f "$1")/$KUBERNETES-$CONTAINERD-$HELM
mkdir -p "$programs"
work=$(mktemp -d -p "$1")
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

# without PACKAGE…: those whose programs are not there
without() {
    local package
    for package; do [ -x "$programs/${package##*/}" ] || printf '%s\n' "$package"; done
}

source_of() { go_thrice mod download -json "$1" | jq -r 'select(.Error == null) | .Dir'; } # MODULE@VERSION

# Kubernetes names the modules of its own tree v0.0.0; the published ones carry its number with a zero in front. containerd is
# required, and not built here, so that both are of the same versions of what they share: that is compiled once.
module() {
    printf 'module node\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/kubernetes %s\n\tgithub.com/containerd/containerd/v2 %s\n' \
        $KUBERNETES $CONTAINERD
    printf '\thelm.sh/helm/v4 %s\n)\n\nreplace (\n' $HELM
    awk '$1 ~ /^k8s\.io\// && $2 == "v0.0.0" {print $1}' "$(source_of k8s.io/kubernetes@$KUBERNETES)/go.mod" | sort -u |
        sed "s|.*|\t& => & v0.${KUBERNETES#v1.}|"
    printf ')\n'
}

link_flags() {
    local package minor=${KUBERNETES#v1.}
    printf '%s ' -s -w -X "github.com/containerd/containerd/v2/version.Version=$CONTAINERD"
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        printf '%s ' -X "$package.gitVersion=$KUBERNETES" -X "$package.gitMajor=1" -X "$package.gitMinor=${minor%.*}"
    done
}

# build DIRECTORY PACKAGE…: whole or not at all; what a stopped build has left is not taken for finished. Debug information
# is a tenth of the compiler's work, and would not be linked.
build() {
    local bin=$work/bin
    printf 'cluster: building %s\n' "$(basename -a "${@:2}" | tr '\n' ' ')"
    mkdir -p "$bin"
    (cd "$1" && go_thrice build -gcflags=all=-dwarf=false -tags 'no_btrfs no_devmapper no_zfs' -ldflags "$(link_flags)" \
        -o "$bin/" "${@:2}") >"$work/go.log" 2>&1 || { tail -20 "$work/go.log" >&2; return 1; }
    mv "$bin"/* "$programs"
}

mapfile -t missing < <(without "${KUBERNETES_PACKAGES[@]}")
[ "$programs/witness" -nt "$WITNESS" ] || missing+=(./witness)
if [ ${#missing[@]} != 0 ]; then
    mkdir -p "$work/kubernetes/witness"
    cp "$WITNESS" "$work/kubernetes/witness/main.go"
    module >"$work/kubernetes/go.mod"
    build "$work/kubernetes" "${missing[@]}"
fi
mapfile -t missing < <(without "${CONTAINERD_PACKAGES[@]}")
if [ ${#missing[@]} != 0 ]; then
    cp -r "$(source_of github.com/containerd/containerd/v2@$CONTAINERD)" "$work/containerd"
    chmod -R u+w "$work/containerd"
    build "$work/containerd" "${missing[@]}"
fi
ln -sfn "$(basename "$programs")" "$(dirname "$programs")/now"
