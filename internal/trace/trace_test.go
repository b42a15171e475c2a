package trace_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"atoll.dev/internal/leakcheck"
	"atoll.dev/internal/rest"
	"atoll.dev/internal/trace"
	"atoll.dev/internal/tracetest"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// One trace covers a client, a server, a waiting message, and its processing, each with a tracer of
// its own.
func TestOneTraceCrossesProcesses(t *testing.T) {
	collector := tracetest.Start(t)
	collector.Setenv(t)
	tracers := map[string]*trace.Tracer{}
	for _, name := range []string{"caller", "api", "adapter"} {
		tracer, err := trace.Open(t.Context(), trace.Options{Service: name})
		if err != nil {
			t.Fatal(err)
		}
		defer tracer.Close()
		tracers[name] = tracer
	}

	message := make(chan string, 1)
	mux := rest.NewMux()
	mux.Handle("POST /things/{id}", func(w http.ResponseWriter, r *http.Request) error {
		message <- trace.Parent(r.Context())
		w.WriteHeader(http.StatusAccepted)
		return nil
	})
	server := httptest.NewServer(rest.Observe(rest.Options{Trace: tracers["api"].StartRequest}, mux))
	defer server.Close()

	ctx, root := tracers["caller"].Start(t.Context(), "root", trace.Internal)
	client := &http.Client{Transport: tracers["caller"].Transport(nil)}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, "POST", server.URL+"/things/7", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	root.End(nil)

	ctx, work := tracers["adapter"].Start(trace.WithParent(context.Background(), <-message), "work", trace.Consumer,
		trace.String("adapter", "a"))
	if !strings.HasPrefix(trace.Parent(ctx), "00-") {
		t.Errorf("traceparent %q", trace.Parent(ctx))
	}
	work.End(errors.New("no luck"))
	for _, tracer := range tracers {
		if err := tracer.Close(); err != nil {
			t.Error(err)
		}
	}

	spans := collector.Await(t, "four spans", func(s []tracetest.Span) bool { return len(s) >= 4 })
	ids := map[string]string{"": ""}
	for _, s := range spans {
		ids[s.ID] = s.Service + " " + s.Name
		if s.Trace != spans[0].Trace {
			t.Errorf("%s is in a trace of its own", s.Name)
		}
	}
	got := map[string]string{}
	for _, s := range spans {
		got[s.Service+" "+s.Name] = fmt.Sprintf("%s below %q", s.Kind, ids[s.Parent])
		if s.Name == "work" && (s.Failed != "no luck" || s.Attrs["adapter"] != "a") {
			t.Errorf("%+v", s)
		}
	}
	for name, want := range map[string]string{
		"caller root": `INTERNAL below ""`, "caller POST": `CLIENT below "caller root"`,
		"api POST /things/{id}": `SERVER below "caller POST"`, "adapter work": `CONSUMER below "api POST /things/{id}"`,
	} {
		if got[name] != want {
			t.Errorf("%s is %s, want %s", name, got[name], want)
		}
	}
}

// A disabled tracer costs no memory and forwards its input.
func TestADisabledTracerDoesNothing(t *testing.T) {
	var off *trace.Tracer
	ctx := trace.WithParent(t.Context(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	r := httptest.NewRequestWithContext(ctx, "GET", "/", nil)
	if n := testing.AllocsPerRun(100, func() {
		ctx, span := off.Start(ctx, "x", trace.Client)
		span.Set()
		span.End(nil)
		_, end := off.StartRequest(r.WithContext(ctx))
		end("route", 500)
	}); n > 1 { // WithContext's
		t.Errorf("%v allocations", n)
	}
	if off.Transport(http.DefaultTransport) != http.DefaultTransport || off.Close() != nil {
		t.Error("it is not off")
	}
	if _, span := off.Start(ctx, "x", trace.Client); span != nil ||
		trace.Parent(ctx) != "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" {
		t.Errorf("%v, parent %q", span, trace.Parent(ctx))
	}
}

func TestAnInvalidTraceparentIsIgnored(t *testing.T) {
	for _, text := range []string{"", "x", "00-00000000000000000000000000000000-b7ad6b7169203331-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", strings.Repeat("0", 1000)} {
		if got := trace.Parent(trace.WithParent(t.Context(), text)); got != "" {
			t.Errorf("%q: %q", text, got)
		}
	}
}

func TestUnknownProtocolsAreRefused(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "carrier-pigeon")
	if _, err := trace.Open(t.Context(), trace.Options{Service: "x"}); err == nil || !strings.Contains(err.Error(),
		"carrier-pigeon") {
		t.Error(err)
	}
}
