// Package realnodes tries behaviours of Kubernetes on a cluster with two real nodes, which hosting makes for a node
// pool with the provider local. Each case is named by the behaviour.
//
// It needs root and the programs of `make nodes`, and runs by `make test-nodes`.
package realnodes
