package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/delivery"
	"atoll.dev/maestro/ledger"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// heldCarrier is a carrier that has no room until it is released, or that never
// acknowledges.
type heldCarrier struct {
	release chan struct{} // closed when there is room
	mute    bool

	mu      sync.Mutex
	waiting int
	left    []bus.Event
}

func (c *heldCarrier) send(ctx context.Context, _ work.Consumer, encode func() (bus.Event, error),
	done func(error)) error {
	c.mu.Lock()
	c.waiting++
	c.mu.Unlock()
	select {
	case <-c.release:
	case <-ctx.Done():
		return ctx.Err()
	}
	m, err := encode()
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.left = append(c.left, m)
	c.mu.Unlock()
	if !c.mute {
		done(nil)
	}
	return nil
}

func (c *heldCarrier) kinds() (kinds []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range c.left {
		kinds = append(kinds, m.Type)
	}
	return kinds
}

// newOptions returns options with an empty database of its own.
func newOptions(t *testing.T) Options {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	st, err := store.Open(t.Context(), store.Options{DSN: pgtest.DSN(t), Logger: log, Migrations: []string{ledger.LedgerSchema},
		Kinds: []store.KindSpec{{Kind: bundle.Kind, Begin: bundle.Begin, Render: bundle.Render}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(st.Close)
	return Options{
		Store: st, Ledger: ledger.New(st), SourceID: "maestro", Life: func() string { return "life" },
		Times: delivery.Config{Jitter: rand.Float64}, Repeated: func(work.Consumer, []work.ID) {}, Logger: log,
		Metrics: Metrics{
			Republished: prometheus.NewCounter(prometheus.CounterOpts{Name: "republished"}),
			Latency:     prometheus.NewHistogram(prometheus.HistogramOpts{Name: "latency"}),
		},
	}
}

// deliverBy runs a deliverer that uses the carrier.
func deliverBy(t *testing.T, o Options, send Send) *deliverer {
	t.Helper()
	d := newDeliverer(o, send)
	d.machine.Connect()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = d.run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return d
}

// deletionOf returns the change that deletes a work.
func deletionOf(id work.ID, generation int64) *store.Change {
	c := changeOf(id, generation)
	now := time.Now()
	c.DeletedAt = &now
	return c
}

// changeOf returns the change that creates or updates a work.
func changeOf(id work.ID, generation int64) *store.Change {
	doc := store.Document{Kind: bundle.Kind, ID: string(id), Scope: "mc1", Version: generation, Generation: generation,
		UpdatedAt: time.Now(), CreatedAt: time.Now()}
	doc.Spec, _ = bundle.Marshal(bundle.Spec{ID: id, Source: "test-source", Consumer: "mc1", Version: generation,
		Data: []byte(`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"one","namespace":"default"}}]}`)})
	doc.Status, _ = bundle.Marshal(bundle.Status{})
	return &store.Change{Document: doc}
}

// TestI9AStaleCreateNeverFollowsItsDeletion: a publisher has loaded a work, from the database or from a change of the
// feed, and waits for room. Meanwhile this server or another one publishes the work's deletion. When there is room, the
// publisher must not send the create.
func TestI9AStaleCreateNeverFollowsItsDeletion(t *testing.T) {
	t.Parallel()
	o := newOptions(t)
	for _, over := range []struct {
		what string
		then func(d *deliverer)
		want []string
	}{
		{"its deletion is ordered", func(d *deliverer) { d.applyChanges([]*store.Change{deletionOf("w1", 1)}) },
			[]string{work.SpecDelete}},
		{"its deletion is over", func(d *deliverer) { d.forgetRemoved("mc1", "w1", 1) }, nil},
		{"another server delivers it", func(d *deliverer) {
			d.update(func(m *delivery.Machine) { m.DropIf(func(work.Consumer) bool { return true }) })
		}, nil},
		{"it has changed", func(d *deliverer) { d.applyChanges([]*store.Change{changeOf("w1", 2)}) },
			[]string{work.SpecUpdate}},
	} {
		t.Run(over.what, func(t *testing.T) {
			carrier := &heldCarrier{release: make(chan struct{})}
			d := deliverBy(t, o, carrier.send)
			d.applyChanges([]*store.Change{changeOf("w1", 1)})
			testsite.Eventually(t, "a publisher waits for room", func() error {
				carrier.mu.Lock()
				defer carrier.mu.Unlock()
				if carrier.waiting == 0 {
					return errors.New("none")
				}
				return nil
			})
			over.then(d)
			close(carrier.release)
			testsite.Eventually(t, "nothing is under way", func() error {
				if got := carrier.kinds(); len(got) < len(over.want) {
					return fmt.Errorf("%q left", got)
				}
				if n := len(d.publishing); n > 0 {
					return fmt.Errorf("%d publishers run", n)
				}
				return nil
			})
			if got := carrier.kinds(); fmt.Sprint(got) != fmt.Sprint(over.want) {
				t.Errorf("%q left, not %q", got, over.want)
			}
		})
	}
}

// TestI6LostAcknowledgementsStopNoDelivery: a carrier that never reports what became
// of hundreds of messages does not hold back those of other works.
func TestI6LostAcknowledgementsStopNoDelivery(t *testing.T) {
	t.Parallel()
	o := newOptions(t)
	carrier := &heldCarrier{release: make(chan struct{}), mute: true}
	close(carrier.release)
	d := deliverBy(t, o, carrier.send)
	const works = 2 * publishers * deliverBatch
	for n := range works {
		c := changeOf(work.ID(fmt.Sprint("w", n)), 1)
		c.Scope = fmt.Sprint("mc", n) // each window has room
		d.applyChanges([]*store.Change{c})
	}
	testsite.Eventually(t, "all works are sent", func() error {
		if got := len(carrier.kinds()); got < works {
			return fmt.Errorf("%d of %d", got, works)
		}
		return nil
	})
}
