//go:build realnodes

package realnodes

import (
	"fmt"
	"slices"
	"strings"
)

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

// demoPod returns the manifest of a pod with one container, main, of the demonstration image. podSpec and container are
// further lines of the pod's spec and of its container.
func demoPod(name, restartPolicy, podSpec, container string) string {
	indent := func(lines, by string) string {
		if lines == "" {
			return ""
		}
		return by + strings.ReplaceAll(lines, "\n", "\n"+by) + "\n"
	}
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 1
  restartPolicy: %[2]s
%[3]s  containers:
  - name: main
    image: atoll.dev/demo:v1
    imagePullPolicy: Never
%[4]s`, name, restartPolicy, indent(podSpec, "  "), indent(container, "    "))
}
