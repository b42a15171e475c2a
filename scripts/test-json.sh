#!/usr/bin/env bash
# Runs the tests of all modules and prints Go's JSON events, for gotestsum.
# kube/ runs without the race detector, upstream Kubernetes is not ours to race,
# and with the flags of its build script, so that it is compiled once; so does
# test/interop, which is other people's programs against the binaries of
# ATOLL_BIN and ATOLL_KUBE_BIN. Both run beside the others.
#
# Most tests wait most of the time: for processes to start, leases to end,
# streams to fall silent. So more packages run at once than there are cores, and
# those that take longest begin first, so that none is left alone at the end.
set -uo pipefail
first=(./test/e2e ./maestro ./test/hosted ./test/faults ./test/lifecycle ./agent ./bus ./front/rosa ./sentinel ./clm ./store ./test/rebuild ./hosting ./cli)

out=$(mktemp -d)
# A run that is interrupted takes them with it, test programs and all: each is a group.
trap 'kill -- ${kube:+-$kube} ${interop:+-$interop} 2>/dev/null; rm -rf "$out"' EXIT
beside() { cd "$1" && CGO_ENABLED=0 exec setsid go test -trimpath -json -count=1 -timeout 60m ./... >"$out/$(basename "$1")"; }
beside kube & kube=$!
beside test/interop & interop=$!

failed=0
packages=()
for p in "${first[@]}"; do
	[[ -d $p ]] && packages+=("$p")
done
# A package that is named twice is tested once, where it is named first.
go test -json -race -count=1 -timeout 80m -p $((2 * $(nproc))) "$@" "${packages[@]}" ./... || failed=1
wait $kube || failed=1
cat "$out/kube"
wait $interop || failed=1
cat "$out/interop"
exit $failed
