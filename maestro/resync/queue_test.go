package resync

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// TestListReplacesNoDigest queues lists and digests of an agent that compares by digests. After an outage the
// agent sends a list because its digest waits too long; the server answers the digest only.
func TestListReplacesNoDigest(t *testing.T) {
	message := func(kind, digests string, content any) bus.Event {
		data, err := json.Marshal(content)
		if err != nil {
			t.Fatal(err)
		}
		return bus.Event{Type: kind, Data: data, Extensions: map[string]string{work.ExtDigests: digests}}
	}
	digest := message(work.AgentDigest, "", work.Digest{Works: 1})
	list := message(work.SpecResync, "1", work.SpecVersions{})
	oldList := message(work.SpecResync, "", work.SpecVersions{})
	newComparer := func() *Comparer {
		return New(Options{Logger: slog.New(slog.DiscardHandler),
			Dropped: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "dropped"}, []string{"reason"})})
	}
	for name, c := range map[string]struct {
		order []bus.Event
		want  []string
	}{
		"list after digest":         {[]bus.Event{digest, list}, []string{work.AgentDigest}},
		"digest after list":         {[]bus.Event{list, digest}, []string{work.AgentDigest}},
		"list in the middle":        {[]bus.Event{digest, list, digest}, []string{work.AgentDigest}},
		"lists at both ends":        {[]bus.Event{list, digest, list}, []string{work.AgentDigest}},
		"digests in sequence":       {[]bus.Event{digest, digest}, []string{work.AgentDigest}},
		"a list alone":              {[]bus.Event{list, list}, []string{work.SpecResync}},
		"an agent that sends lists": {[]bus.Event{digest, oldList}, []string{work.AgentDigest, work.SpecResync}},
	} {
		t.Run(name, func(t *testing.T) {
			comparer := newComparer()
			acknowledged := make([]int, len(c.order))
			for i, m := range c.order {
				if err := comparer.Enqueue("mc1", m, func() { acknowledged[i]++ }); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for len(got) < len(c.want) {
				batch := comparer.queue.Take(t.Context(), len(c.order))
				for _, r := range batch.Items {
					got = append(got, r.kind)
					r.ack()
				}
				comparer.queue.Done(batch)
			}
			for i := range c.want {
				if len(got) != len(c.want) || got[i] != c.want[i] {
					t.Fatalf("the server answers %q, want %q", got, c.want)
				}
			}
			for i, n := range acknowledged {
				if n != 1 {
					t.Errorf("message %d is acknowledged %d times", i, n)
				}
			}
		})
	}
}
