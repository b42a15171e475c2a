#!/usr/bin/env bash
# Runs the tests of all modules and prints Go's JSON events, for gotestsum.
# kube/ runs without the race detector, upstream Kubernetes is not ours to race,
# and with the flags of its build script, so that it is compiled once; so does
# test/interop, which is other people's programs against the binaries of
# ATOLL_BIN and ATOLL_KUBE_BIN.
set -uo pipefail
failed=0
go test -json -race -count=1 -timeout 20m "$@" ./... || failed=1
(cd kube && CGO_ENABLED=0 go test -trimpath -json -count=1 -timeout 10m ./...) || failed=1
(cd test/interop && CGO_ENABLED=0 go test -trimpath -json -count=1 -timeout 10m ./...) || failed=1
exit $failed
