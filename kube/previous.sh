#!/usr/bin/env bash
# Builds bin/previous/atoll-kube: the same program with the minor version of Kubernetes before, for the test of upgrades
# and rollbacks between two versions (make test-versions).
#
#   kube/previous.sh
#
# kube/previous/go.mod pins the modules. scripts/upstream.sh says when it compiles, and where finished programs are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../scripts/upstream.sh

name=kube-previous
program=atoll-kube
version=v1.35.4
built="Kubernetes $version"
outputs=(atoll-kube)
foreign=(test)
flags=(-trimpath -buildvcs=false -modfile=previous/go.mod -ldflags "-s -w$(stamp_version)")
recipe=$(sha256sum previous/go.mod previous/go.sum)

compile() { "$go" build "${flags[@]}" -o "$1/atoll-kube" .; }

link() { :; }

build_upstream "$(cd .. && pwd)/bin/previous"
