package adapter

import (
	"bytes"
	"io"
	"net/http"
	"testing"
)

// answering is CLM without a network.
type answering map[string][]byte

func (a answering) Do(r *http.Request) (*http.Response, error) {
	body := []byte("{}")
	if r.Method == http.MethodGet {
		body = a[r.URL.Path]
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body)),
		Request: r}, nil
}

// BenchmarkRun executes the namespace task with existing objects: the cost of the engine, without
// network and server.
func BenchmarkRun(b *testing.B) {
	e := newEngine(b, namespaceTask(b), nil, newShelf(), func(o *Options) {
		o.API = answering{clusterPath: []byte(clusterAnswer)}
	})
	ev := clusterEvent(3)
	if r := e.Run(b.Context(), ev); r.Err() != nil {
		b.Fatal(r.Err())
	}
	b.ReportAllocs()
	for b.Loop() {
		if r := e.Run(b.Context(), ev); r.Status != Success || !r.Reported {
			b.Fatal(r.Err())
		}
	}
}

func BenchmarkNew(b *testing.B) {
	task := namespaceTask(b)
	for b.Loop() {
		newEngine(b, task, nil, newShelf())
	}
}
