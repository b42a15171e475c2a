package audit

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"atoll.dev/api/audit"
	"atoll.dev/client/remote"
	"atoll.dev/internal/pause"
	"atoll.dev/store"
	"atoll.dev/store/auditfeed"
)

// Source is the feed of audit records of one service. ReadAudit waits for a record after the cursor, up to wait.
type Source interface {
	ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error)
}

// Own is the Source of a database of this process.
type Own struct{ Store *store.Store }

// ReadAudit implements Source.
func (o Own) ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error) {
	return auditfeed.Read(ctx, o.Store, after, limit, wait)
}

const (
	gatherLimit = 500
	gatherWait  = 15 * time.Second
	maxBackoff  = 15 * time.Second
	tidyPeriod  = time.Hour
	// DefaultRetention is how long the chain keeps records.
	DefaultRetention = 365 * 24 * time.Hour
	// sourceRetention is how long the platform database keeps the records that were gathered from it.
	sourceRetention = 90 * 24 * time.Hour
)

// Gatherer appends the audit records of the region's services to the chain. Each record comes into the chain once: the
// cursor of a service moves in the transaction that appends, and a record that comes again, after a restore of the
// service's database, has a key that the chain knows.
type Gatherer struct {
	Chain     *Chain
	Sources   map[string]Source // by service: clm, maestro, platform
	Retention time.Duration     // default DefaultRetention
	Log       *slog.Logger      // default slog.Default()
	Metrics   prometheus.Registerer

	gathered, failed *prometheus.CounterVec
}

// Run gathers until ctx ends, and returns its cause. It tries again after errors. Several replicas may run.
func (g *Gatherer) Run(ctx context.Context) error {
	if g.Retention <= 0 {
		g.Retention = DefaultRetention
	}
	if g.Log == nil {
		g.Log = slog.Default()
	}
	g.gathered = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "audit_records_total",
		Help: "Audit records that this process appended to the chain, by the service that committed the change."},
		[]string{"service"})
	g.failed = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "audit_gather_failures_total",
		Help: "Failed rounds of gathering audit records, by service. The next round tries again."}, []string{"service"})
	if g.Metrics != nil {
		g.Metrics.MustRegister(g.gathered, g.failed)
	}
	group, ctx := errgroup.WithContext(ctx)
	for service, source := range g.Sources {
		group.Go(func() error { return g.follow(ctx, service, source) })
	}
	group.Go(func() error { return g.keepTidy(ctx) })
	return group.Wait()
}

// follow gathers from one service until ctx ends.
func (g *Gatherer) follow(ctx context.Context, service string, source Source) error {
	often := rate.Sometimes{Interval: time.Minute}
	backoff := time.Duration(0)
	g.failed.WithLabelValues(service)
	for {
		err := g.round(ctx, service, source)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			backoff = 0
			continue
		}
		g.failed.WithLabelValues(service).Inc()
		often.Do(func() {
			g.Log.LogAttrs(ctx, slog.LevelWarn, "audit records were not gathered, the next round tries again",
				slog.String("service", service), slog.Any("error", err))
		})
		backoff = min(max(2*backoff, 100*time.Millisecond), maxBackoff)
		if !pause.For(ctx, backoff) {
			return context.Cause(ctx)
		}
	}
}

// round gathers the next records of a service, when there are some.
func (g *Gatherer) round(ctx context.Context, service string, source Source) error {
	from, err := g.Chain.cursor(ctx, service)
	if err != nil {
		return err
	}
	page, err := source.ReadAudit(ctx, from, gatherLimit, gatherWait)
	if isGone(err) && from != "" {
		g.Log.LogAttrs(ctx, slog.LevelWarn, "a database was restored, its audit records are read from the beginning",
			slog.String("service", service))
		_, err = g.Chain.gather(ctx, service, from, "", nil)
		return notMoved(err)
	}
	if err != nil || len(page.Items) == 0 {
		return err
	}
	records := make([]Record, len(page.Items))
	for i, item := range page.Items {
		records[i] = recordOf(service, item)
	}
	added, err := g.Chain.gather(ctx, service, from, page.Next, records)
	if err == nil {
		g.gathered.WithLabelValues(service).Add(float64(added))
	}
	return notMoved(err)
}

// notMoved returns nil for errMoved: the records are in the chain.
func notMoved(err error) error {
	if errors.Is(err, errMoved) {
		return nil
	}
	return err
}

// isGone reports whether a cursor is of another life of a service's database.
func isGone(err error) bool {
	e, ok := errors.AsType[*remote.Error](err)
	return errors.Is(err, store.ErrGone) || ok && e.Status == http.StatusGone
}

// keepTidy deletes what is older than the retention, until ctx ends. To write one record for a day of deleted records,
// it waits until they are a day older.
func (g *Gatherer) keepTidy(ctx context.Context) error {
	tick := time.NewTimer(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-tick.C:
			tick.Reset(tidyPeriod)
			if err := g.tidy(ctx, now); err != nil && ctx.Err() == nil {
				g.Log.LogAttrs(ctx, slog.LevelWarn, "old audit records were not deleted, the next round tries again",
					slog.Any("error", err))
			}
		}
	}
}

func (g *Gatherer) tidy(ctx context.Context, now time.Time) error {
	_, err := g.Chain.store.TrimHistory(ctx, now.Add(-sourceRetention))
	if err != nil {
		return err
	}
	oldest, err := g.Chain.List(ctx, Query{Limit: 1, Ascending: true})
	if err != nil || len(oldest.Entries) == 0 {
		return err
	}
	var first Record
	if json.Unmarshal(oldest.Entries[0].Record, &first) == nil &&
		first.Time >= timeText(now.Add(-g.Retention-24*time.Hour)) {
		return nil
	}
	for {
		deleted, err := g.Chain.trim(ctx, now.Add(-g.Retention))
		if err != nil || deleted < trimBatch {
			return err
		}
	}
}
