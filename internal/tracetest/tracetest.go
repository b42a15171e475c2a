// Package tracetest is an OTLP/HTTP collector for tests: a real receiver of
// what package trace exports, in the test's process.
//
// Tests import it, and nothing else does.
package tracetest

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that the Collector received. IDs are hexadecimal; Parent is "" for a root.
type Span struct {
	Service           string
	Name              string
	Trace, ID, Parent string
	Kind              string // "SERVER", "CLIENT", ...
	Attrs             map[string]string
	Failed            string // the error's text; "" after a success
	Begun, Ended      time.Time
}

// Collector is an OTLP collector that keeps the received spans in memory.
type Collector struct {
	URL string

	mu       sync.Mutex
	spans    []Span
	received chan struct{}
}

// Start starts a collector that ends with the test.
func Start(t testing.TB) *Collector {
	c := &Collector{received: make(chan struct{}, 1)}
	s := httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(s.Close)
	c.URL = s.URL
	return c
}

// Env returns the variables that make a process send all of its spans to the collector.
func (c *Collector) Env() map[string]string {
	return map[string]string{
		"HYPERFLEET_TRACING_ENABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": c.URL,
		"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
		"OTEL_SERVICE_NAME":           "", "OTEL_RESOURCE_ATTRIBUTES": "", "OTEL_TRACES_SAMPLER": "always_on",
	}
}

// Setenv sets Env for the test.
func (c *Collector) Setenv(t *testing.T) {
	for name, value := range c.Env() {
		t.Setenv(name, value)
	}
}

func (c *Collector) receive(w http.ResponseWriter, r *http.Request) {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = z
	}
	data, err := io.ReadAll(body)
	var req collector.ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(data, &req)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "not an OTLP export of traces", http.StatusBadRequest)
		return
	}
	c.store(&req)
	w.Header().Set("Content-Type", "application/x-protobuf")
	answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
	_, _ = w.Write(answer)
}

func (c *Collector) store(req *collector.ExportTraceServiceRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		service := ""
		for _, a := range rs.Resource.GetAttributes() {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, ss := range rs.ScopeSpans {
			for _, s := range ss.Spans {
				c.spans = append(c.spans, decode(service, s))
			}
		}
	}
	select {
	case c.received <- struct{}{}:
	default:
	}
}

func decode(service string, s *otlp.Span) Span {
	d := Span{
		Service: service, Name: s.Name, Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(
			s.SpanId), Parent: hex.EncodeToString(s.ParentSpanId),
		Kind: s.Kind.String()[len("SPAN_KIND_"):], Attrs: map[string]string{},
		Begun: time.Unix(0, int64(s.StartTimeUnixNano)), Ended: time.Unix(0, int64(s.EndTimeUnixNano)),
	}
	for _, a := range s.Attributes {
		d.Attrs[a.Key] = a.Value.GetStringValue()
	}
	if s.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
		d.Failed = s.Status.Message
	}
	return d
}

// Spans returns the spans received so far.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Await returns the spans when they satisfy enough. It fails the test after
// three minutes.
func (c *Collector) Await(t testing.TB, what string, enough func([]Span) bool) []Span {
	t.Helper()
	for deadline := time.After(3 * time.Minute); ; {
		if spans := c.Spans(); enough(spans) {
			return spans
		}
		select {
		case <-c.received:
		case <-deadline:
			t.Fatalf("not within three minutes: %s; there are %+v", what, c.Spans())
		}
	}
}
