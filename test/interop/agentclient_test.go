package interop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

func (a *agentClient) awaitWork(t *testing.T, what string,
	check func(*workv1.ManifestWork) error) *workv1.ManifestWork {
	t.Helper()
	var found *workv1.ManifestWork
	eventually(t, "the agent client has "+what, func() error {
		works := a.informer.Informer().GetStore().List()
		err := fmt.Errorf("none of %d works", len(works))
		for _, w := range works {
			if e := check(w.(*workv1.ManifestWork)); e == nil {
				found = w.(*workv1.ManifestWork)
				return nil
			} else {
				err = errors.Join(err, e)
			}
		}
		return err
	})
	return found
}

func generationIs(uid types.UID, n int64) func(*workv1.ManifestWork) error {
	return func(w *workv1.ManifestWork) error {
		if w.UID != uid || w.Generation != n {
			return fmt.Errorf("%s has generation %d", w.UID, w.Generation)
		}
		return nil
	}
}

// report patches the status of a work, or with a nil status its finalizers away, as OCM's controllers do.
func (a *agentClient) report(t *testing.T, w *workv1.ManifestWork, status *workv1.ManifestWorkStatus) {
	t.Helper()
	body, sub := map[string]any{"metadata": map[string]any{"resourceVersion": w.ResourceVersion}}, []string{"status"}
	if status != nil {
		body["status"] = status
	} else {
		body["metadata"].(map[string]any)["finalizers"] = nil
		sub = nil
	}
	data, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.works.Patch(context.Background(), w.Name, types.MergePatchType, data, metav1.PatchOptions{},
		sub...); err != nil {
		t.Fatal(err)
	}
}

func appliedStatus(generation int64, message string) *workv1.ManifestWorkStatus {
	return &workv1.ManifestWorkStatus{Conditions: []metav1.Condition{{
		Type: workv1.WorkApplied, Status: metav1.ConditionTrue, Reason: "AppliedManifestWorkComplete", Message: message,
		ObservedGeneration: generation, LastTransitionTime: metav1.Now(),
	}}}
}

// The agent side of OCM's SDK with our server: it receives works, sends statuses, reconnects
// without memory and receives the missing works; its deletion of a work ends the bundle.
func TestTheAgentClientOfOCMsSDKServesOurServer(t *testing.T) {
	t.Parallel()
	w := sharedWorld(t)
	for _, way := range []struct {
		name   string
		server *server
		driver way
		addr   string
	}{
		{"sdk-embedded", w.embedded, byMQTT, w.embedded.broker},
		{"sdk-mosquitto", w.mosquitto, byMQTT, w.mosquitto.broker},
		{"sdk-grpc", w.mosquitto, byGRPC, w.mosquitto.agents},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s, name := way.server, way.name
			s.consumer(t, name)
			src := s.startSource(t, "source-"+name, byGRPC, s.grpc, s.platform)
			made, err := src.at(name).Create(t.Context(), manifestWork("one", configMap("one", "1")),
				metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			agent := s.startAgentClient(t, name, way.driver, way.addr)
			got := agent.awaitWork(t, "generation 1", generationIs(made.UID, 1))
			if got.Name != string(made.UID) || got.Namespace != name || got.Labels["app"] != "interop" ||
				got.Labels["cloudevents.open-cluster-management.io/originalsource"] != "maestro" {
				t.Errorf(
					"the agent got the work as %s/%s, labels %v; want the bundle's id as its name, and the source's "+
						"labels", got.Namespace, got.Name, got.Labels)
			}
			agent.report(t, got, appliedStatus(1, "first"))
			src.awaitCondition(name, "one", workv1.WorkApplied, metav1.ConditionTrue, 1)

			if err := src.patch(name, "one", 0, configMap("one", "2")); err != nil {
				t.Fatal(err)
			}
			got = agent.awaitWork(t, "generation 2", generationIs(made.UID, 2))
			agent.report(t, got, appliedStatus(2, "second"))
			src.awaitCondition(name, "one", workv1.WorkApplied, metav1.ConditionTrue, 2)

			// Away for a change, back without a memory.
			agent.stop()
			if err := src.patch(name, "one", 0, configMap("one", "3")); err != nil {
				t.Fatal(err)
			}
			agent = s.startAgentClient(t, name, way.driver, way.addr)
			got = agent.awaitWork(t, "generation 3", generationIs(made.UID, 3))
			agent.report(t, got, appliedStatus(3, "third"))
			src.awaitCondition(name, "one", workv1.WorkApplied, metav1.ConditionTrue, 3)

			if err := src.at(name).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			got = agent.awaitWork(t, "the deletion", func(w *workv1.ManifestWork) error {
				if w.DeletionTimestamp.IsZero() {
					return errors.New("not deleting")
				}
				return nil
			})
			if status, body := s.call(t, "GET", "/v1/resource-bundles/"+string(made.UID), ""); status != http.StatusOK {
				t.Errorf("a deletion that nobody acknowledged removed the bundle: %d %s", status, body)
			}
			agent.report(t, got, nil)
			src.awaitGone(name, "one")
			eventually(t, "the bundle is gone", func() error {
				if status, body := s.call(t, "GET", "/v1/resource-bundles/"+string(made.UID),
					""); status != http.StatusNotFound {
					return fmt.Errorf("%d %s", status, body)
				}
				return nil
			})
		})
	}
}
