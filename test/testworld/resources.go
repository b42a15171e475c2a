package testworld

import (
	"encoding/json"
	"fmt"
	"net/http"

	"atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

// Create creates a resource.
func (w *World) Create(in clmclient.Collection, kind, name, spec string, labels clm.Labels) clmclient.Resource {
	w.T.Helper()
	r, err := w.Client.Create(w.T.Context(), in, clm.ResourceCreate{Kind: kind, Name: name,
		Spec: json.RawMessage(spec), Labels: labels}, "")
	if err != nil {
		w.T.Fatal(err)
	}
	return r
}

// Replace replaces those of spec and labels that the JSON object body has.
func (w *World) Replace(in clmclient.Collection, id, body string) clmclient.Resource {
	w.T.Helper()
	r, err := w.Client.Replace(w.T.Context(), in, id, json.RawMessage(body), "")
	if err != nil {
		w.T.Fatal(err)
	}
	return r
}

// Delete orders the deletion of a resource. AwaitGone waits for its end.
func (w *World) Delete(in clmclient.Collection, id string) {
	w.T.Helper()
	if _, err := w.Client.Delete(w.T.Context(), in, id, ""); err != nil {
		w.T.Fatal(err)
	}
}

// AwaitReconciled waits until all adapters have reported that a generation of a resource is carried out.
func (w *World) AwaitReconciled(in clmclient.Collection, id string, generation int32) {
	w.T.Helper()
	w.Await(fmt.Sprintf("%s/%s is reconciled at %d", in, id, generation), func() error {
		r, err := w.Client.Get(w.T.Context(), in, id, "")
		if err != nil {
			return err
		}
		c := clmclient.Condition(r.Resource, "Reconciled")
		if r.Generation == generation && c != nil && c.Status == "True" && c.ObservedGeneration == generation {
			return nil
		}
		return fmt.Errorf("%s", r.JSON)
	})
}

// AwaitCondition waits until a condition of a resource has a status and a reason. With the reason "" each will do.
func (w *World) AwaitCondition(in clmclient.Collection, id, condition, status, reason string) {
	w.T.Helper()
	w.Await(fmt.Sprintf("%s/%s has %s=%s %s", in, id, condition, status, reason), func() error {
		r, err := w.Client.Get(w.T.Context(), in, id, "")
		if err != nil {
			return err
		}
		c := clmclient.Condition(r.Resource, condition)
		if c != nil && c.Status == status && (reason == "" || c.Reason == reason) {
			return nil
		}
		return fmt.Errorf("%s", r.JSON)
	})
}

// AwaitGone waits until a resource does not exist: all adapters have deleted what they made for it.
func (w *World) AwaitGone(in clmclient.Collection, id string) {
	w.T.Helper()
	w.Await(fmt.Sprintf("%s/%s is gone", in, id), func() error {
		r, err := w.Client.Get(w.T.Context(), in, id, "")
		if remote.StatusOf(err) != http.StatusNotFound {
			return fmt.Errorf("%v: %s", err, r.JSON)
		}
		return nil
	})
}
