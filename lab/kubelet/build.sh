#!/usr/bin/env bash
# Builds what a node of Kubernetes consists of, from the Go module proxy: kube-apiserver, kubelet, containerd 2 with its
# shim, and the witness of kubelet's PodResources that the test needs. About twenty minutes on two cores, once: a program
# that is there already is not built again.
#
#   build.sh DIRECTORY     $GO is the Go to build with (1.21 or newer that may fetch the 1.26 which Kubernetes wants)
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
KUBERNETES=v1.36.3
CONTAINERD=v2.4.2
GO=${GO:-go}
export CGO_ENABLED=0 GOFLAGS='-trimpath -buildvcs=false -mod=mod'

programs=$(readlink -f "$1")/$KUBERNETES-$CONTAINERD
mkdir -p "$programs"
work=$(mktemp -d -p "$1")
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT

say() { printf 'kubelet: %s\n' "$*"; }
built() { [ -x "$programs/$1" ]; }
# whole or not at all: a build that is stopped leaves nothing that looks finished
keep() { mv "$work/$1" "$programs/$1"; }

# Kubernetes names the modules of its own tree v0.0.0; the published ones carry its number with a zero in front.
kubernetes_module() {
    local source
    source=$("$GO" mod download -json k8s.io/kubernetes@$KUBERNETES | jq -r .Dir)
    mkdir "$work/kubernetes"
    cd "$work/kubernetes"
    {
        printf 'module lab\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes %s\n\nreplace (\n' $KUBERNETES
        awk '$1 ~ /^k8s\.io\// && $2 == "v0.0.0" {print $1}' "$source/go.mod" | sort -u |
            sed "s|.*|\t& => & v0.${KUBERNETES#v1.}|"
        printf ')\n'
    } >go.mod
    cat >programs.go <<'G'
//go:build programs

package lab

import (
	_ "k8s.io/kubelet/pkg/apis/podresources/v1"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kubelet"
)
G
    mkdir witness
    cp "$here/witness.go" witness/main.go
    "$GO" mod tidy -e >tidy.log 2>&1 || { tail -5 tidy.log >&2; return 1; }
}

kubernetes() {
    built kube-apiserver && built kubelet && return 0
    say "building kube-apiserver and kubelet $KUBERNETES (about fifteen minutes on two cores, once)"
    kubernetes_module
    local package flags='-s -w' program minor=${KUBERNETES#v1.}
    for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
        flags+=" -X $package.gitVersion=$KUBERNETES -X $package.gitMajor=1 -X $package.gitMinor=${minor%.*}"
    done
    for program in kube-apiserver kubelet; do
        built $program && continue
        "$GO" build -ldflags "$flags" -o "$work/$program" k8s.io/kubernetes/cmd/$program
        keep $program
    done
}

witness() {
    [ "$programs/witness" -nt "$here/witness.go" ] && return 0
    say "building the witness of PodResources"
    [ -d "$work/kubernetes" ] || kubernetes_module
    cd "$work/kubernetes"
    "$GO" build -ldflags '-s -w' -o "$work/witness.new" ./witness
    mv "$work/witness.new" "$programs/witness"
}

containerd() {
    built containerd && built containerd-shim-runc-v2 && built ctr && return 0
    say "building containerd $CONTAINERD"
    local source program
    source=$("$GO" mod download -json github.com/containerd/containerd/v2@$CONTAINERD | jq -r .Dir)
    cp -r "$source" "$work/containerd.source"
    chmod -R u+w "$work/containerd.source"
    cd "$work/containerd.source"
    for program in containerd containerd-shim-runc-v2 ctr; do
        built $program && continue
        "$GO" build -tags 'no_btrfs no_devmapper no_zfs' \
            -ldflags "-s -w -X github.com/containerd/containerd/v2/version.Version=$CONTAINERD" \
            -o "$work/$program" ./cmd/$program
        keep $program
    done
}

kubernetes
witness
containerd
ln -sfn "$(basename "$programs")" "$(dirname "$programs")/now"
