#!/usr/bin/env bash
# Runs the tests of all modules and prints Go's JSON events, for gotestsum. RACE has the flags of the race detector
# (scripts/test.sh).
# kube/ runs without the race detector, upstream Kubernetes is not ours to race,
# and with the flags of its build script, so that it is compiled once; so does
# test/interop, which is other people's programs against the binaries of
# ATOLL_BIN and ATOLL_KUBE_BIN. Both run beside the others, one after the other,
# and so do deploy/image, a small module of its own, and the tests of real nodes,
# which load the machine with kubelets and need no race detector a second time.
#
# One package more than there are cores runs at once, beside those runs, and four tests
# of each. The processors are what the suite lacks: with slow tests and the race detector
# in all services it is one less, because a busy machine had a load of 40 and tests met
# time limits of 10 s and more. The packages
# that take longest begin first, so that none is left alone at the end. Where
# a control group gives less processor time than the cores have, fewer run at once:
# the limits of a service's requests are for a machine that runs one region.
#
# scripts/test.sh runs go vet over the root module before this, so go test does not
# run it once more. No test needs the linker's debugging information. Before its
# tests, each package runs those that depend on -short with -short
# (scripts/short-first.sh), so that "make quick" stays green.
#
# gotestsum runs a test that failed once more: test-json.sh -test.run=REGEXP PACKAGE
# (docs/decisions/177-a-failed-test-runs-once-more.md). Exit status 3 means a failure
# that no test reports, such as that of a build or of TestMain: gotestsum then runs
# nothing again.
set -uo pipefail
if [[ $# == 2 && $1 == -test.run=* ]]; then
	[[ $1 != '-test.run=^$' ]] || exit 3 # a package failed, and none of its tests
	case $2 in
	atoll.dev/kube/* | atoll.dev/test/interop* | atoll.dev/deploy/image*)
		module=${2#atoll.dev/}
		[[ $module != kube/* ]] || module=kube
		cd "$module" && CGO_ENABLED=0 exec go test -trimpath -json -count=1 -timeout 20m "$@" ;;
	atoll.dev/node/supervisor | atoll.dev/test/realnodes) # with the tests of real nodes, when these run
		tags=$RACE
		[[ ${ATOLL_REAL_NODES:-0} == 0 ]] || tags='-tags realnodes'
		exec go test -json $tags -vet=off -count=1 -timeout 20m "$@" ;;
	*) exec go test -json $RACE -vet=off -ldflags=-w -count=1 -timeout 20m "$@" ;;
	esac
fi
first=(./test/e2e ./maestro ./hosting ./agent ./store ./test/hosted ./cli ./clm ./bus ./front/rosa ./hosting/nodepool
	./bench/fleet ./test/faults ./access ./test/lifecycle ./test/rebuild ./front/arm ./backup/region ./hosting/backups
	./sentinel ./fleet)

out=$(mktemp -d) kube='' interop='' image='' nodes=''
# When this script ends, also by an interrupt, it kills the runs beside it: those that
# wait, so that they do not begin, and the process groups of those that have begun,
# with their test programs.
trap 'kill $nodes $image $interop $kube 2>/dev/null
	for run in $nodes $image $interop $kube; do kill -- -$run 2>/dev/null; done; rm -rf "$out"' EXIT
beside() { cd "$1" && CGO_ENABLED=0 exec setsid go test -trimpath -json -count=1 -timeout 60m ./... >"$out/$(basename "$1")"; }
real_nodes() {
	[[ ${ATOLL_REAL_NODES:-0} != 0 ]] || exit 0 # short: test/realnodes leaves its long tests out
	exec setsid go test -trimpath -tags realnodes -json -count=1 -timeout 60m ./node/supervisor ./test/realnodes >"$out/nodes"
}

# after waits for the end of a process, and then runs a command.
after() {
	tail --pid="$1" -f /dev/null
	shift
	"$@"
}

# quota prints the cores' worth of processor time, in hundredths, that the control
# groups of this process allow; nothing where there is no limit.
quota() {
	local path max period
	path=$(awk -F: '$2 == "" {print "/sys/fs/cgroup" $3} $2 ~ /(^|,)cpu(,|$)/ {print "/sys/fs/cgroup/cpu" $3}' /proc/self/cgroup)
	for dir in $path; do
		while [[ $dir == /sys/fs/cgroup/* ]]; do
			max='' period=''
			if [[ -r $dir/cpu.max ]]; then
				read -r max period <"$dir/cpu.max"
			elif [[ -r $dir/cpu.cfs_quota_us ]]; then
				max=$(<"$dir/cpu.cfs_quota_us") period=$(<"$dir/cpu.cfs_period_us")
			fi
			[[ $max =~ ^[0-9]+$ && $period -gt 0 ]] && echo $((100 * max / period))
			dir=${dir%/*}
		done
	done | sort -n | head -1
}
hundredths=$(quota)
at_once=$((${hundredths:-$((100 * $(nproc)))} / 100))
((at_once > 0)) || at_once=1
((at_once == 1)) || [[ ${ATOLL_SLOW:-} == 1 ]] || at_once=$((at_once + 1)) # the small packages mostly link and wait
parallel=$(($(nproc) > 4 ? $(nproc) : 4)) # tests of one package: many of them wait

failed=0
# One after the other: all at once they slowed each other and the packages below so much that time limits were exceeded.
beside kube & kube=$!
after $kube beside test/interop & interop=$!
after $interop beside deploy/image & image=$!
after $image real_nodes & nodes=$!
((at_once > 1)) || wait $nodes

packages=()
for p in "${first[@]}"; do
	[[ -d $p ]] && packages+=("$p")
done
# A package that is named twice is tested once, where it is named first.
go test -json $RACE -vet=off -ldflags=-w -count=1 -timeout 80m -p "$at_once" -parallel "$parallel" \
	-exec "$PWD/scripts/short-first.sh" "$@" "${packages[@]}" ./... | tee "$out/root" || failed=1
wait $kube || failed=1
cat "$out/kube"
wait $interop || failed=1
cat "$out/interop"
wait $image || failed=1
cat "$out/image"
wait $nodes || failed=1
[[ ! -e $out/nodes ]] || cat "$out/nodes"
((failed == 0)) || grep -qE '"Action":"fail".*"Test":' "$out"/* || exit 3
exit $failed
