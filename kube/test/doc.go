// Package test runs the built atoll-kube and holds it to its contract: what package serve promises to
// a supervisor, and that a Kubernetes cluster's core behaves as one.
//
// The binary is $ATOLL_KUBE_BIN or bin/atoll-kube of the repository; build.sh makes it.
package test
