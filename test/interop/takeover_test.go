package interop

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// A cluster moves from OCM's work agent to ours and back: the same broker host, so the same
// AppliedManifestWorks. No object is created again or waits for eviction, and each agent continues
// where the other stopped.
func TestAClusterGoesFromOCMsAgentToOursAndBack(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	s, name := w.mosquitto, "taken-over"
	c := w.cluster(t, name)
	s.consumer(t, name)
	src := s.startSource(t, "source-takeover", byGRPC, s.grpc, s.platform)
	const works = 5
	workName := func(i int) string { return fmt.Sprintf("work-%d", i) }
	for i := range works {
		if _, err := src.at(name).Create(t.Context(), manifestWork(workName(i), configMap(workName(i), "ocm-1")),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	uids := map[string]types.UID{}
	check := func(who, value string, generation int64, from int) {
		t.Helper()
		for i := from; i < works; i++ {
			cm := c.awaitValue(t, workName(i), value)
			if uid := uids[cm.Name]; uid != "" && uid != cm.UID {
				t.Errorf("%s made %s anew", who, cm.Name)
			}
			uids[cm.Name] = cm.UID
			src.awaitCondition(name, workName(i), workv1.WorkApplied, metav1.ConditionTrue, generation)
			src.awaitCondition(name, workName(i), workv1.WorkAvailable, metav1.ConditionTrue, generation)
		}
		amws := c.appliedWorks(t)
		if len(amws) != works-from {
			t.Errorf("with %s there are %d AppliedManifestWorks for %d works", who, len(amws), works-from)
		}
		for _, amw := range amws {
			if uid := uids[amw.Name]; uid != "" && uid != amw.UID {
				t.Errorf("%s made AppliedManifestWork %s anew", who, amw.Name)
			}
			uids[amw.Name] = amw.UID
			eventually(t, who+" owns "+amw.Name, func() error {
				for _, now := range c.appliedWorks(t) {
					if now.Name != amw.Name {
						continue
					}
					if now.Status.EvictionStartTime != nil {
						return fmt.Errorf("it waits for its eviction since %s", now.Status.EvictionStartTime)
					}
					if len(now.Status.AppliedResources) != 1 {
						return fmt.Errorf("it lists %+v", now.Status.AppliedResources)
					}
					return nil
				}
				return fmt.Errorf("it is gone")
			})
		}
	}
	change := func(value string, from int) {
		t.Helper()
		for i := from; i < works; i++ {
			if err := src.patch(name, workName(i), 0, configMap(workName(i), value)); err != nil {
				t.Fatal(err)
			}
		}
	}

	stop := s.startWorkAgent(t, c, byMQTT, s.broker)
	check("OCM's agent", "ocm-1", 1, 0)
	stop()

	ours := s.startAgent(t, c)
	check("our agent", "ocm-1", 1, 0)
	change("ours-2", 0)
	check("our agent", "ours-2", 2, 0)
	if err := ours.stop(); err != nil {
		t.Fatal(err)
	}

	stop = s.startWorkAgent(t, c, byMQTT, s.broker)
	check("OCM's agent again", "ours-2", 2, 0)
	change("ocm-3", 0)
	check("OCM's agent again", "ocm-3", 3, 0)

	// Each agent deletes works of the other: one work while OCM's agent runs, one that was ordered
	// while no agent runs.
	if err := src.at(name).Delete(t.Context(), workName(0), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitAbsence(t, workName(0))
	src.awaitGone(name, workName(0))
	stop()
	if err := src.at(name).Delete(t.Context(), workName(1), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, c)
	c.awaitAbsence(t, workName(1))
	src.awaitGone(name, workName(1))
	check("our agent again", "ocm-3", 3, 2)
	for _, condition := range src.work(name, workName(2)).Status.Conditions {
		if !meta.IsStatusConditionTrue([]metav1.Condition{condition}, condition.Type) {
			t.Errorf("after all that: %+v", condition)
		}
	}
}
