//go:build realnodes

package realnodes

import (
	"fmt"
	"strings"
	"testing"

	"atoll.dev/test/testsite"
)

// TestBehavioursOfKubernetesOnRealNodes starts one cluster, creates the objects of all behaviours, and then tries each.
func TestBehavioursOfKubernetesOnRealNodes(t *testing.T) {
	skipLong(t)
	w := newWorld(t, 0)
	var all []string
	for _, b := range behaviours {
		all = append(all, b.manifests)
	}
	w.apply(strings.Join(all, "\n---\n"))
	for _, b := range behaviours {
		t.Run(b.name, func(t *testing.T) {
			for _, s := range b.steps {
				testsite.EventuallyWithin(t, "kubectl "+s.args, limit, func() error {
					out, err := w.run("input of exec", strings.Fields(s.args)...)
					if err == nil && !strings.Contains(out, s.want) {
						err = fmt.Errorf("it prints %q, want %q", out, s.want)
					}
					return err
				})
			}
		})
	}
}
