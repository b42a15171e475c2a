package objects

import (
	"net/http"
	"strconv"
	"testing"

	"k8s.io/client-go/rest"

	"atoll.dev/adapter"
)

// heldBack is a client that waits before its first write.
type heldBack struct {
	http.RoundTripper
	reached, goOn chan struct{}
	done          bool
}

func (h *heldBack) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPatch && !h.done {
		h.done = true
		close(h.reached)
		<-h.goOn
	}
	return h.RoundTripper.RoundTrip(r)
}

// A replica whose read became stale before its write does not replace a higher generation by its
// lower one, neither in an update nor in a creation.
func TestALowerGenerationIsNeverWrittenOverAHigher(t *testing.T) {
	w := newWorld(t)
	of := func(name string, generation int64) adapter.Application {
		o := w.configMap(name, strconv.FormatInt(generation, 10))
		o["metadata"].(map[string]any)["annotations"] = map[string]any{annotationGeneration: strconv.FormatInt(
			generation, 10)}
		return adapter.Application{Object: o, Generation: generation, Event: adapter.Event{ID: name, Kind: "Cluster",
			Generation: generation}}
	}
	for _, first := range []int64{0, 1} {
		name := "fence-" + strconv.FormatInt(first, 10)
		quick := w.transport("fence")
		if first > 0 {
			if _, err := quick.Apply(t.Context(), of(name, first)); err != nil {
				t.Fatal(err)
			}
		}
		held := &heldBack{reached: make(chan struct{}), goOn: make(chan struct{})}
		config := rest.CopyConfig(w.config)
		config.Wrap(func(rt http.RoundTripper) http.RoundTripper { held.RoundTripper = rt; return held })
		slow, err := New(Options{Config: config, Adapter: "fence"})
		if err != nil {
			t.Fatal(err)
		}
		type result struct {
			adapter.Applied
			err error
		}
		ended := make(chan result, 1)
		go func() {
			done, err := slow.Apply(t.Context(), of(name, 2))
			ended <- result{done, err}
		}()
		<-held.reached
		if done, err := quick.Apply(t.Context(), of(name, 3)); err != nil || done.Operation == adapter.Skipped {
			t.Fatalf("%+v, %v", done, err)
		}
		close(held.goOn)
		if r := <-ended; r.err != nil || r.Operation != adapter.Skipped {
			t.Errorf("after generation %d: the slow one: %s (%s), %v", first, r.Operation, r.Reason, r.err)
		}
		found, err := quick.Discover(t.Context(), adapter.Search{APIVersion: "v1", Kind: "ConfigMap", Namespace: w.ns,
			Name: name})
		if err != nil || len(found) != 1 || found[0]["data"].(map[string]any)["k"] != "3" {
			t.Errorf("after generation %d: %v, %v", first, found, err)
		}
	}
}
