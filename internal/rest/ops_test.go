package rest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
)

func TestReadinessNamesMissingParts(t *testing.T) {
	o := NewOps()
	h := o.Handler()
	if w := do(h, "GET", "/readyz"); w.Code != 200 {
		t.Errorf("without checks: %d %s", w.Code, w.Body)
	}
	var broker error
	o.Check("store", func(context.Context) error { return nil })
	o.Check("broker", func(context.Context) error { return broker })
	if w := do(h, "GET", "/readyz"); w.Code != 200 || w.Body.String() != "{\"status\":\"ok\"}\n" {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	broker = errors.New("connection refused")
	w := do(h, "GET", "/readyz")
	want := `{"status":"unavailable","missing":[{"name":"broker","reason":"connection refused"}]}` + "\n"
	if w.Code != 503 || w.Body.String() != want {
		t.Errorf("not ready: %d %s", w.Code, w.Body)
	}
	if w := do(h, "GET", "/healthz"); w.Code != 200 {
		t.Errorf("healthz: %d", w.Code)
	}
	if w := do(h, "GET", "/metrics"); w.Code != 200 || !strings.Contains(w.Body.String(), "go_goroutines") ||
		!strings.Contains(w.Body.String(), "process_") {
		t.Errorf("metrics: %d %s", w.Code, w.Body)
	}
	o.Drain()
	if w := do(h, "GET", "/readyz"); w.Code != 503 || !strings.Contains(w.Body.String(), "draining") {
		t.Errorf("draining: %d %s", w.Code, w.Body)
	}
}

func TestALatePartHasItsRoute(t *testing.T) {
	o := NewOps()
	h := o.Handler()
	if w := do(h, "GET", "/config"); w.Code != 404 {
		t.Errorf("before Handle: %d %s", w.Code, w.Body)
	}
	o.Handle("GET /config", func(w http.ResponseWriter, _ *http.Request) error {
		return WriteJSON(w, http.StatusOK,
			1)
	})
	if w := do(h, "GET", "/config"); w.Code != 200 {
		t.Errorf("it is served already: %d %s", w.Code, w.Body)
	}
}

func TestAHangingOrPanickingCheckCountsAsMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		o := NewOps()
		o.Check("hangs", func(context.Context) error { <-release; return nil })
		o.Check("panics", func(context.Context) error { panic("oops") })
		o.Check("holds", func(context.Context) error { return nil })
		got := o.Missing(t.Context())
		if len(got) != 2 || got[0].Name != "hangs" || got[1].Name != "panics" {
			t.Errorf("missing %v", got)
		}
		close(release)
		synctest.Wait()
	})
}
