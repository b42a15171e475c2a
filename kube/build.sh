#!/usr/bin/env bash
# Builds bin/atoll-kube and its link bin/kubectl, when they are not what this source makes already.
#
#   kube/build.sh
#
# scripts/upstream.sh says when it compiles, and where finished programs are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../scripts/upstream.sh

name=kube
program=atoll-kube
version=v1.36.3
built="Kubernetes $version"
outputs=(atoll-kube)
foreign=(test) # its programs are not part of the binary
flags=(-trimpath -buildvcs=false -ldflags "-s -w$(stamp_version)")

compile() { "$go" build "${flags[@]}" -o "$1/atoll-kube" .; }

link() {
	[[ $(readlink "$bin/kubectl" 2>/dev/null) == atoll-kube ]] && return
	ln -s atoll-kube "$bin/.kubectl.$$"
	mv -fT "$bin/.kubectl.$$" "$bin/kubectl"
}

build_upstream "$(cd .. && pwd)/bin"
