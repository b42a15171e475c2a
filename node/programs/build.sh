#!/usr/bin/env bash
# Builds the programs of a node, when bin/ does not have what this source makes already:
#
#   bin/atoll-node                      kubelet, kube-proxy and the agent of konnectivity in one process
#   bin/node/containerd                 containerd and ctr in one binary
#   bin/node/containerd-shim-runc-v2    containerd's process beside each pod
#   bin/node/cni/                       the plugins that connect pods to the network
#   bin/node/pause-image.tar            the image of each pod's first process
#   bin/node/dns-image.tar              the image of CoreDNS
#   bin/demo-image.tar                  the image atoll.dev/demo:v1
#
# scripts/upstream.sh says when it compiles, and where finished programs are kept.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source ../../scripts/upstream.sh

name=node
program=atoll-node
version=v1.36.3
built="kubelet and kube-proxy $version, containerd, CNI plugins and CoreDNS"
outputs=(atoll-node node/containerd node/containerd-shim-runc-v2
	node/cni/ptp node/cni/loopback node/cni/host-local node/cni/portmap node/pause-image.tar node/dns-image.tar
	demo-image.tar)
foreign=()
containerd=github.com/containerd/containerd/v2/version
flags=(-trimpath -buildvcs=false -ldflags
	"-s -w$(stamp_version) -X $containerd.Version=2.4.2 -X $containerd.Revision=unknown")

compile() {
	local cni=github.com/containernetworking/plugins/plugins
	mkdir -p "$1/node/cni" "$1/images"
	"$go" build "${flags[@]}" -o "$1/atoll-node" . || return
	"$go" build -C runtime "${flags[@]}" -o "$1/node/containerd" . || return
	"$go" build -C runtime "${flags[@]}" -o "$1/node/" \
		github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2 || return
	"$go" build -C runtime "${flags[@]}" -o "$1/node/cni/" \
		$cni/main/ptp $cni/main/loopback $cni/ipam/host-local $cni/meta/portmap || return
	"$go" build "${flags[@]}" -o "$1/images/" ./demo ./pause ./pack || return
	"$go" build -C dns "${flags[@]}" -o "$1/images/coredns" . || return
	"$1/images/pack" -name atoll.dev/coredns:v1 -program "$1/images/coredns" -out "$1/node/dns-image.tar" || return
	"$1/images/pack" -name atoll.dev/pause:v1 -program "$1/images/pause" -out "$1/node/pause-image.tar" || return
	"$1/images/pack" -name atoll.dev/demo:v1 -program "$1/images/demo" -out "$1/demo-image.tar" || return
	rm -r "$1/images"
}
recipe=$(
	declare -f compile
	cat runtime/go.mod runtime/go.sum dns/go.mod dns/go.sum
)

link() { :; }

build_upstream "$(cd ../.. && pwd)/bin"
