#!/usr/bin/env bash
# A region on this machine that also serves Azure Resource Manager, and a program of Azure's SDK for Go that
# creates a cluster, a node pool and credentials, and deletes the cluster again. The region goes on after it.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/ensure.sh postgres curl
make --no-print-directory build
export PATH=$PWD/bin:$PATH ATOLL_HOME=${ATOLL_HOME:-$PWD/bin/azure-home}

printf '$ atoll up --azure --detach     # its home: %s\n' "$ATOLL_HOME"
atoll up --azure --detach
printf '\n$ cd examples/azure-sdk && go run . %s/azure/client.json\n' "$ATOLL_HOME"
(cd examples/azure-sdk && GOFLAGS= go run . "$ATOLL_HOME/azure/client.json")
printf '\nThe region keeps running. Its processes: bin/atoll status --home %s\n' "$ATOLL_HOME"
printf 'To remove it: bin/atoll down --purge --home %s\n' "$ATOLL_HOME"
