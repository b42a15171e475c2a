//go:build !race

package agent

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// The memory of the agent's process with 10,000 objects, and its peak, during the apply and after a
// restart. The race detector multiplies it, so the test runs only without.
func TestMemoryOf10000Objects(t *testing.T) {
	c := bootstrap(t, planetest.Start(t)) // of its own: agents of other tests would watch all these objects
	for name, rules := range map[string]bool{"metadata": false, "feedback": true} {
		t.Run(name, func(t *testing.T) {
			ns := "memory-" + name
			c.create(t, namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace",
				"metadata": map[string]any{"name": ns}})
			w := newSite(t, c, ns, work.Consumer(ns))
			agent := w.child()
			agent.Start()
			const works, each = 1000, 10
			filler := strings.Repeat("x", 400)
			began := time.Now()
			for i := range works {
				var b work.Bundle
				for j := range each {
					b.Manifests = append(b.Manifests, configMap(ns, fmt.Sprintf("c-%d-%d", i, j), "k", "1", "filler",
						filler))
				}
				if rules {
					b.ManifestConfigs = []workv1.ManifestConfigOption{{
						ResourceIdentifier: workv1.ResourceIdentifier{Resource: "configmaps", Namespace: "*",
							Name: "*"},
						FeedbackRules: []workv1.FeedbackRule{{Type: workv1.JSONPathsType, JsonPaths: []workv1.JsonPath{
							{Name: "k", Path: ".data.k"}}}},
						ConditionRules: []workv1.ConditionRule{celRule("Ready", `object.data.k == "1"`)},
					}}
				}
				w.server.apply(work.ID(fmt.Sprint("work-", i)), b)
			}
			for i := range works {
				w.server.awaitApplied(work.ID(fmt.Sprint("work-", i)))
			}
			t.Logf("%d objects in %v", works*each, time.Since(began))
			checkMemory(t, agent, "applied")
			agent.Kill()
			agent.Start()
			w.server.apply("last", withFeedbackOf(ns, "last"))
			w.server.awaitApplied("last")
			w.server.await("the restart", func() bool { return w.server.reportedValue("last", "k") == "1" })
			checkMemory(t, agent, "restarted")
		})
	}
}

const mostResident = 150 << 20

func checkMemory(t *testing.T, p *testsite.Process, when string) {
	t.Helper()
	now, peak := memoryOf(t, p, "VmRSS"), memoryOf(t, p, "VmHWM")
	t.Logf("%s: %d MB resident, %d MB at most", when, now>>20, peak>>20)
	if now > mostResident {
		t.Errorf("%s: %d MB are resident, want at most %d", when, now>>20, mostResident>>20)
	}
}

// memoryOf reads a figure of the process, in bytes.
func memoryOf(t *testing.T, p *testsite.Process, name string) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kb, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kb << 10
		}
	}
	t.Fatalf("no %s", name)
	return 0
}
