#!/usr/bin/env bash
# The tests, with one summary at the end. ATOLL_SLOW=1 runs the slow ones, too
# (internal/quick), and builds the services with the race detector, as "make
# test-all" does. ATOLL_SOAK=DURATION lengthens the loops of faults (20 s at most in
# an ordinary run). The short tests of real nodes run where root and the
# machine permit them; ATOLL_REAL_NODES=1 runs all of them or fails, and
# ATOLL_REAL_NODES=0 leaves them out.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/ensure.sh postgres gcc curl mosquitto
scripts/ensure.sh prometheus || echo 'without Prometheus the test of the gates of rollouts is skipped'
# The programs are built with -trimpath. With it for vet and the tests, too, each package is compiled once for them and
# once with the race detector; without it twice each.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
make --no-print-directory build
# With -race the compiler would also check conversions of unsafe pointers, for a sixth of the tests' processor time
# (docs/decisions/186-tests-check-no-unsafe-pointers.md).
export RACE='-race -gcflags=all=-d=checkptr=0'
export ATOLL_KUBE_BIN=$PWD/bin/atoll-kube ATOLL_BIN=$PWD/bin/atoll
# Each service runs with the race detector in the tests of its own package. The processes of whole regions have it with
# the slow tests only (docs/decisions/190-slow-tests.md).
if [[ ${ATOLL_SLOW:-} == 1 ]]; then
	ATOLL_BIN=$PWD/bin/race/atoll
	go build $RACE -trimpath -ldflags=-w -o "$ATOLL_BIN" ./cmd/atoll
fi
# A program with the race detector waits for a second before it ends, in case another goroutine races at that moment. The
# suite starts some thousand such programs: one for each command of a script.
export GORACE="${GORACE:-atexit_sleep_ms=10}"
# Processor time is what the suite lacks, and not memory. The linker and the tests take this value; a control plane that
# a test starts by itself takes it for all its life (kube/serve).
export GOGC="${GOGC:-200}"

# Real nodes need root, a kernel that permits their namespaces, and programs whose first build takes minutes.
nodes=${ATOLL_REAL_NODES:-short}
if [ "$nodes" != 0 ]; then
	if why=$(((EUID == 0)) || echo 'they need root') && [ -z "$why" ] &&
		why=$({ scripts/ensure.sh runc nft mkfs.ext4 && make --no-print-directory nodes && bin/atoll node preflight; } 2>&1); then
		if bin/atoll node preflight -o json | grep -q '"noUserNamespace"'; then
			echo 'nodes have no user namespaces here, so what these keep from the machine is not tested'
			export ATOLL_NODES_WITHOUT_USER_NAMESPACE=1
		fi
	else
		printf 'the tests of real nodes do not run: %s\n' "$(tail -1 <<<"$why")"
		[ "$nodes" != 1 ] || exit 1
		nodes=0
	fi
fi
export ATOLL_REAL_NODES=$nodes

# Vet with the race detector's build tag uses packages as the tests use them, so each is compiled once for both; without
# it Go would compile 225 more. It runs before the tests: beside them, both would compile the same packages. Packages with
# files that this tag leaves out are vetted without it, too.
failed=0
make --no-print-directory check VETFLAGS="$RACE" || failed=1
git grep -lE '^//go:build .*!race' -- '*.go' | xargs -n1 dirname | sort -u | sed 's|^|./|' | xargs go vet || failed=1
events=$(mktemp) again=$(mktemp)
trap 'rm -f "$events" "$again"' EXIT
# A test that failed runs once more, unless more than three failed or the race detector found something; those that
# passed then are listed (docs/decisions/177-a-failed-test-runs-once-more.md).
go tool gotestsum --format "${GOTESTSUM_FORMAT:-pkgname}" --jsonfile "$events" --rerun-fails=1 \
	--rerun-fails-max-failures=3 --rerun-fails-run-root-test --rerun-fails-abort-on-data-race \
	--rerun-fails-report "$again" --raw-command -- scripts/test-json.sh "$@" || failed=1
if [ -s "$again" ]; then
	printf '\nTests that failed and ran once more: a test that passed then has a defect, or found a rare one\n'
	cat "$again"
fi
printf '\nThe packages that took longest (several run at once), in seconds:\n'
scripts/slowest.sh "$events"
exit $failed
