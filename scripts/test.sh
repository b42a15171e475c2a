#!/usr/bin/env bash
# Every test, with one summary at the end. ATOLL_SOAK=DURATION lengthens the
# kill loop (a minute in an ordinary run).
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/ensure.sh postgres gcc curl mosquitto
make --no-print-directory check build
go build -race -trimpath -o bin/race/atoll ./cmd/atoll
export ATOLL_KUBE_BIN=$PWD/bin/atoll-kube ATOLL_BIN=$PWD/bin/race/atoll

exec go tool gotestsum --format "${GOTESTSUM_FORMAT:-pkgname}" --raw-command -- scripts/test-json.sh "$@"
