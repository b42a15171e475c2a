package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/bus"
	"atoll.dev/pki"
)

// withSentinel starts the server again with a sentinel in it and measures the time from a create to its event at
// an adapter, and the memory of the process with many resources. The broker is in this process.
func (b *bench) withSentinel(ctx context.Context) (err error) {
	w, err := b.newEventReceiver(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := b.target.serve(w.part); err != nil {
		return err
	}
	figures, err := b.measureEvents(ctx, w)
	if err != nil {
		return err
	}
	params := b.params()
	params["creates_per_second"] = *creates
	if err := report.Line(os.Stdout, "clm/event", params, figures); err != nil {
		return err
	}
	if figures, err = b.measureMemory(ctx, w); err != nil {
		return err
	}
	return report.Line(os.Stdout, "clm/sentinel-memory", map[string]any{"resources": *resources}, figures)
}

// eventReceiver is a broker, and an adapter that records the time of each resource's first event.
type eventReceiver struct {
	part part // how the server connects
	stop context.CancelFunc
	done sync.WaitGroup
	errs []error

	mu           sync.Mutex
	firstEventAt map[string]time.Time // by resource
}

func (b *bench) newEventReceiver(ctx context.Context) (*eventReceiver, error) {
	ca, err := pki.OpenCA(filepath.Join(b.target.dir, "ca"))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	cert, key, err := bed.Certificate(ca, pki.ServiceName("broker"))
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca.CertPEM())
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{
			pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool,
	}})
	if err != nil {
		return nil, err
	}
	w := &eventReceiver{firstEventAt: map[string]time.Time{}, part: part{Broker: l.Addr().String(), CA: ca.CertPEM()}}
	if w.part.Cert, w.part.Key, err = bed.Certificate(ca, pki.ServiceName("clm")); err != nil {
		return nil, err
	}
	if cert, key, err = bed.Certificate(ca, pki.ServiceName("adapter")); err != nil {
		return nil, err
	}
	config, err := bed.ClientTLS(ca.CertPEM(), cert, key, "broker")
	if err != nil {
		return nil, err
	}
	adapter := bus.NewClient(bus.ClientOptions{
		Addr: w.part.Broker, TLS: config, ClientID: "adapter-bench", Subscriptions: []string{
			bus.EventFilter("bench", "clusters")},
		Handler: func(_ context.Context, m bus.Message) { w.handleEvent(m.Event); m.Ack() },
	})
	ctx, w.stop = context.WithCancel(ctx)
	w.run(func() error { return broker.Serve(ctx, l) })
	w.run(func() error { return adapter.Run(ctx) })
	return w, bed.Await(ctx, 2*time.Millisecond, func() error { return adapter.Check(ctx) })
}

func (w *eventReceiver) run(f func() error) {
	w.done.Go(func() {
		if err := f(); err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.errs = append(w.errs, err)
		}
	})
}

func (w *eventReceiver) close() error {
	w.stop()
	w.done.Wait()
	return errors.Join(w.errs...)
}

// handleEvent records the time of a resource's first event.
func (w *eventReceiver) handleEvent(e bus.Event) {
	at := time.Now()
	var data struct{ ID string }
	if json.Unmarshal(e.Data, &data) != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, again := w.firstEventAt[data.ID]; !again {
		w.firstEventAt[data.ID] = at
	}
}

// measureEvents creates clusters at a steady pace and waits for the first event of each.
func (b *bench) measureEvents(ctx context.Context, w *eventReceiver) (map[string]any, error) {
	warm := *creates // the first second's, which prepare what later ones use
	total := warm + int(float64(*creates)*duration.Seconds())
	ids, sent, answered := make([]string, total), make([]time.Time, total), make([]time.Time, total)
	r := rand.New(rand.NewPCG(*seed, 1))
	failures := make(chan error, total)
	var group sync.WaitGroup
	begin := time.Now()
	for i := range total {
		body := b.cluster(r, 1024)
		if wait := time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(*creates))); wait > 0 {
			<-time.After(wait)
		}
		group.Go(func() {
			sent[i] = time.Now()
			data, err := b.call(ctx, "POST", base, body, http.StatusCreated)
			answered[i] = time.Now()
			var made struct{ ID string }
			if err = errors.Join(err, json.Unmarshal(data, &made)); err != nil {
				failures <- err
			}
			ids[i] = made.ID
		})
	}
	group.Wait()
	if len(failures) > 0 {
		return nil, fmt.Errorf("%d of %d creates failed: %w", len(failures), total, <-failures)
	}
	var fromRequest, fromAnswer []time.Duration
	err := bed.Await(ctx, 5*time.Millisecond, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		fromRequest, fromAnswer = nil, nil
		for i, id := range ids {
			at, ok := w.firstEventAt[id]
			if !ok {
				return fmt.Errorf("the adapter received no event of %s", id)
			}
			if i < warm {
				continue
			}
			fromRequest, fromAnswer = append(fromRequest, at.Sub(sent[i])),
				append(fromAnswer, max(0, at.Sub(answered[i])))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	figures := map[string]any{"creates": total - warm, "server_resident_mb": b.target.resident()}
	report.Percentiles(figures, "from_request", fromRequest)
	report.Percentiles(figures, "from_answer", fromAnswer)
	return figures, nil
}

// measureMemory fills the database up with copies of clusters, starts the server anew, and reads its
// memory once the sentinel has them all: while it loads, and after it was left alone.
func (b *bench) measureMemory(ctx context.Context, w *eventReceiver) (map[string]any, error) {
	conn, err := pgx.Connect(ctx, b.target.dsn)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	copies := max(1, (*resources-*clusters+*clusters-1) / *clusters)
	for n := range copies {
		if _, err := conn.Exec(
			ctx, `insert into document (kind, id, scope, name, version, generation, spec, status, head, wire, created_at,
				updated_at, token, facets, detail)
			select kind, id || $1, scope, name || $1, version, generation, spec, status,
				convert_to(replace(convert_from(head, 'UTF8'), id, id || $1), 'UTF8'),
				convert_to(replace(convert_from(wire, 'UTF8'), id, id || $1), 'UTF8'), created_at, updated_at, $2, facets, detail
			from document where kind = 'Cluster' and length(id) = 36 order by id limit $3`, fmt.Sprint("-", n), n, *clusters); err != nil {
			return nil, err
		}
	}
	if _, err := conn.Exec(ctx, "vacuum analyze document"); err != nil {
		return nil, err
	}
	stored := 0
	if err := conn.QueryRow(ctx, "select count(*) from document where kind = 'Cluster'").Scan(&stored); err != nil {
		return nil, err
	}
	if err := b.target.serve(w.part); err != nil {
		return nil, err
	}
	figures := map[string]any{"stored": stored, "loaded_resident_mb": b.target.resident()}
	server, _, err := b.target.cpu()
	if err != nil {
		return nil, err
	}
	const window = 20 * time.Second
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(window):
	}
	after, _, err := b.target.cpu()
	figures["resting_resident_mb"], figures["resting_cpu_ms_per_second"] = b.target.resident(),
		float64((after-server).Milliseconds())/window.Seconds()
	return figures, err
}
