#!/usr/bin/env bash
# Every test, with one summary at the end. ATOLL_SOAK=DURATION lengthens the
# loops of faults (half a minute at most in an ordinary run).
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/ensure.sh postgres gcc curl mosquitto
scripts/ensure.sh prometheus || echo 'without Prometheus the test of the gates of rollouts is skipped'
# The programs are built with -trimpath. With it for vet and the tests, too, each package is compiled once for them and
# once with the race detector; without it twice each.
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-trimpath"
make --no-print-directory build
go build -race -trimpath -ldflags=-w -o bin/race/atoll ./cmd/atoll
export ATOLL_KUBE_BIN=$PWD/bin/atoll-kube ATOLL_BIN=$PWD/bin/race/atoll

# While tests wait there is time for vet.
checked=$(mktemp)
make --no-print-directory check >"$checked" 2>&1 &
check=$!
failed=0
events=$(mktemp)
go tool gotestsum --format "${GOTESTSUM_FORMAT:-pkgname}" --jsonfile "$events" --raw-command -- scripts/test-json.sh "$@" || failed=1
wait $check || failed=1
cat "$checked"
printf '\nThe packages that took longest (several run at once), in seconds:\n'
scripts/slowest.sh "$events"
rm -f "$checked" "$events"
exit $failed
