package agent

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"
)

// When the API server refuses an AppliedManifestWork, the agent reports the server's error in
// the work's conditions, keeps the reported state of the manifests, and tries again.
func TestAFailedAppliedManifestWorkIsReported(t *testing.T) {
	c := newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", sendWindow: 4})
	now := noon
	refused, created := true, 0
	var run func(effects []effect)
	run = func(effects []effect) {
		for _, e := range effects {
			switch e := e.(type) {
			case effPersist:
				if e.then != nil {
					run(c.step(e.then, now))
				}
			case effDiscover:
				run(c.step(evMapped{gvk: e.gvk, gvr: configMaps, namespaced: true}, now))
			case effCreateAMW:
				created++
				done := evAMWDone{id: e.id, name: e.name, op: amwCreate}
				if refused {
					done.err = &opError{kind: errRefused, message: "quota exceeded"}
				} else {
					done.amw = &amwState{name: e.name, uid: "amw", finalizers: []string{amwFinalizer}}
				}
				run(c.step(done, now))
			case effApply:
				run(c.step(evApplied{id: e.id, ordinal: e.ordinal, key: e.key, hash: e.hash,
					obs: &observed{exists: true, uid: "u", rv: 3}}, now))
			}
		}
	}
	data, err := json.Marshal(manifests(configMap("ns", "a", "k", "1")))
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSpec(spec{ID: "one", Generation: 1, Source: "maestro", Metadata: "{}", Received: now}, data)
	if err != nil {
		t.Fatal(err)
	}
	run(c.step(evAMWsSynced{}, now))
	run(c.step(evSpec{spec: s, ack: func() {}}, now))
	status := c.works["one"].status
	if status == nil {
		t.Fatal("the agent reports no status")
	}
	applied := meta.FindStatusCondition(status.Status.Conditions, workv1.WorkApplied)
	if applied == nil || applied.Status != "False" || applied.Reason != "AppliedManifestWorkFailed" ||
		!strings.HasSuffix(applied.Message, ": quota exceeded") {
		t.Errorf("Applied is %+v", applied)
	}
	refused = false
	now = now.Add(time.Minute)
	run(c.step(evTick{}, now))
	status = c.works["one"].status
	if created != 2 || !meta.IsStatusConditionTrue(status.Status.Conditions, workv1.WorkApplied) ||
		len(status.Status.ResourceStatus.Manifests) != 1 {
		t.Errorf("after %d attempts the status is %+v", created, status.Status)
	}
}
