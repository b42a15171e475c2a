//go:build realnodes

package realnodes

import "slices"

// behaviour is one behaviour of Kubernetes.
type behaviour struct {
	name      string
	manifests string // applied before any step of any behaviour
	steps     []step
}

// step is a call of kubectl whose output must have a text at last.
type step struct{ args, want string }

// behaviours are all behaviours that the test checks.
var behaviours = slices.Concat(podBehaviours, configBehaviours, serviceBehaviours, dnsBehaviours)
