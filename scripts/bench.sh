#!/usr/bin/env bash
# All benchmarks, one after another, as JSON lines on standard output. Nothing else
# should run on the machine. bench/README.md says what they measure.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/ensure.sh mosquitto >&2
export ATOLL_KUBE_BIN=$PWD/bin/atoll-kube
commit=$(git describe --always --dirty)
programs=$(mktemp -d)
home=$(mktemp -d)
trap 'bin/atoll down --purge --home "$home" >/dev/null 2>&1 || true; rm -rf "$programs" "$home"' EXIT
go build -o "$programs" ./bench/hosted ./bench/store ./bench/clm ./bench/lifecycle ./bench/maestro ./bench/fleet ./bench/agent ./bench/road ./bench/azure ./bench/backup ./bench/platform

millis() { echo $(($(date +%s%N) / 1000000)); }
begun=$(millis)
bin/atoll up --detach --home "$home" >&2
first=$(($(millis) - begun))
bin/atoll down --home "$home" >&2
begun=$(millis)
bin/atoll up --detach --home "$home" >&2
again=$(($(millis) - begun))
printf '{"name":"up","params":{},"figures":{"first_ms":%d,"existing_data_ms":%d},"commit":"%s"}\n' "$first" "$again" "$commit"

eval "$(bin/atoll env --home "$home")"
"$programs/road" -rate 20 -works 1200
"$programs/road" -inflight 100 -works 3000
"$programs/platform" -home "$home"
"$programs/hosted" -atoll bin/atoll
"$programs/hosted" -atoll bin/atoll -only density
bin/atoll down --purge --home "$home" >&2
unset ATOLL_HOME ATOLL_ENDPOINT ATOLL_CA

"$programs/store"
"$programs/clm"
"$programs/lifecycle"
"$programs/lifecycle" -stored 10000
"$programs/azure"
"$programs/maestro"
"$programs/maestro" -broker mosquitto -only delivery,status,update,deletion,sustained
"$programs/fleet"
"$programs/fleet" -broker mosquitto -works 20 -digests true
"$programs/agent" -kube bin/atoll-kube
"$programs/backup" -kube bin/atoll-kube
"$programs/backup" -kube bin/atoll-kube -writes 0
