package arm_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apiclm "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/clm"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// testAbsences checks what follows from the absence of a Cluster, and from the absence of a document.
func (w *world) testAbsences(t *testing.T) {
	const kind store.Kind = "ArmCluster"
	path := strings.Replace(demo, "demo", "absent", 1)
	w.succeed(t, w.do(call{method: "PUT", path: path, body: clusterBody()}).want(t, 201))
	made := w.clusterOf(t, "absent")
	ctx := clmclient.WithTenant(t.Context(), cluster.Account(made.Tenancy["account"]))

	t.Run("a cluster that another API deletes while no front works leaves no document", func(t *testing.T) {
		d, err := w.store.Get(t.Context(), kind, made.Labels["azure-document"])
		if err != nil {
			t.Fatal(err)
		}
		// The lifecycle manager has no history of the Cluster of this document.
		unknown := store.Document{Kind: kind, ID: "00000000-unknown", Scope: d.Scope, Name: "unknown", Spec: d.Spec,
			Status: []byte(strings.ReplaceAll(string(d.Status), made.ID, "0a1b2c3d-0000-4000-8000-00000000dead"))}
		w.stopWork()
		if _, err := w.store.Create(t.Context(), unknown); err != nil {
			t.Fatal(err)
		}
		if _, err := w.front.Delete(t.Context(), "clusters", made.ID, ""); err != nil {
			t.Fatal(err)
		}
		w.awaitRemoval(t, made.ID)
		w.do(call{method: "GET", path: path}).want(t, 200)
		w.startWork()
		testsite.Eventually(t, "the document is removed", func() error {
			if a := w.do(call{method: "GET", path: path}); a.status != 404 {
				return errors.New(a.raw)
			}
			return nil
		})
		if _, err := w.store.Get(t.Context(), kind, unknown.ID); err != nil {
			t.Errorf("the document whose Cluster has no history: %v", err)
		}
		if err := w.store.Remove(t.Context(), kind, unknown.ID, 0); err != nil {
			t.Error(err)
		}
	})

	t.Run("a creation that arrives after the deletion leaves no cluster", func(t *testing.T) {
		w.stopWork()
		w.do(call{method: "PUT", path: path, body: clusterBody()}).want(t, 201)
		page, err := w.store.List(t.Context(), store.Query{Kind: kind, Where: store.Fragment{
			SQL: "d.spec->>'name' = 'absent'"}})
		if err != nil || len(page.Documents) != 1 {
			t.Fatalf("%d documents, %v", len(page.Documents), err)
		}
		removed := w.do(call{method: "DELETE", path: path}).want(t, 202)
		w.startWork()
		w.succeed(t, removed)

		// Each front tries to delete the late Cluster at its only event; the adapters report nothing, so that the
		// retries come without another event.
		w.pilot.Lock()
		w.refusals.Store(int64(2 * len(w.fronts)))
		// The creations arrive only now: that of the removed document, and before it one whose document
		// never existed.
		late := map[string]clmclient.Resource{}
		for _, document := range []string{"0a1b2c3d-0000-4000-8000-00000000beef", page.Documents[0].ID} {
			labels := map[string]string{"azure": "hcp", "azure-subscription": sub, "azure-document": document}
			r, err := w.front.Create(ctx, "clusters", apiclm.ResourceCreate{Kind: "Cluster", Name: "late-" + document[:8] +
				"-" + fmt.Sprint(len(late)), Labels: labels, Spec: made.Spec}, document)
			if err != nil {
				t.Fatal(err)
			}
			late[document] = r
		}
		testsite.Eventually(t, "the deletion is tried again", func() error {
			if left := w.refusals.Load(); left > 0 {
				return fmt.Errorf("%d refusals are left", left)
			}
			return nil
		})
		w.pilot.Unlock()
		w.awaitRemoval(t, late[page.Documents[0].ID].ID)
		delete(late, page.Documents[0].ID)
		for _, stays := range late {
			r, err := w.system.Get(t.Context(), "clusters", stays.ID, "")
			if err != nil || r.DeletedTime != nil {
				t.Errorf("the Cluster without any document: %+v, %v", r.DeletedTime, err)
			}
			if _, err := w.front.Delete(t.Context(), "clusters", stays.ID, ""); err != nil {
				t.Error(err)
			}
			w.awaitRemoval(t, stays.ID)
		}
	})
}

// clusterOf returns the Cluster of the lifecycle manager for a name in ARM.
func (w *world) clusterOf(t *testing.T, name string) clmclient.Resource {
	t.Helper()
	page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: "name like '" + name + "-%'"})
	if err != nil || len(page.Items) != 1 {
		t.Fatalf("%d Clusters, %v", len(page.Items), err)
	}
	return page.Items[0]
}

// awaitRemoval waits until the lifecycle manager has removed a Cluster.
func (w *world) awaitRemoval(t *testing.T, id string) {
	t.Helper()
	testsite.Eventually(t, "the Cluster is removed", func() error {
		page, err := w.system.List(t.Context(), "clusters", clmclient.ResourceQuery{Search: "id = '" + id + "'"})
		if err == nil && len(page.Items) > 0 {
			err = errors.New("it exists")
		}
		return err
	})
}

// refuseDeletions makes the lifecycle manager answer refusals requests to delete with an error.
func (w *world) refuseDeletions(o *clm.Options) {
	identify := o.Identify
	o.Identify = func(r *http.Request) (clm.Caller, error) {
		if r.Method == http.MethodDelete && w.refusals.Load() > 0 && w.refusals.Add(-1) >= 0 {
			return clm.Caller{}, rest.Errorf(http.StatusForbidden, "test", "the test refuses this deletion")
		}
		return identify(r)
	}
}
