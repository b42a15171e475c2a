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

// Source is the feed of audit records of one service. Several goroutines may use it.
type Source interface {
	// ReadAudit returns at most limit records after a cursor, the oldest first, and the cursor after the last of them:
	//
	//   - If there are such records, it returns them at once.
	//   - If there are none, it waits for one, at most for wait, and then returns a page without items.
	//   - If the service's database no longer has the cursor, because it was restored, the error is store.ErrGone or a
	//     *remote.Error with status 410. A call with the cursor "" begins again with the oldest record.
	//
	// It changes nothing: the same call returns the same records again. The end of ctx ends the wait.
	ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error)
}

// Own is the Source of a service whose database this process has open.
type Own struct{ Store *store.Store }

// ReadAudit implements Source.
func (o Own) ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error) {
	return auditfeed.Read(ctx, o.Store, after, limit, wait)
}

const (
	gatherLimit = 500              // records of one page
	gatherWait  = 15 * time.Second // for a new record
	maxBackoff  = 15 * time.Second
	trimPeriod  = time.Hour // between two deletions of old records
	// DefaultRetention is how long the chain keeps records.
	DefaultRetention = 365 * 24 * time.Hour
	// sourceRetention is how long the platform database keeps the records that were gathered from it.
	sourceRetention = 90 * 24 * time.Hour
)

// Gatherer appends the audit records of the region's services to the chain, each of them once: the transaction that
// appends a service's records also moves the service's cursor. After a restore of a service's database the Gatherer
// reads its records again; the chain recognizes the ones it has by their keys.
type Gatherer struct {
	Chain     *Chain
	Sources   map[string]Source // by service: clm, maestro, platform
	Retention time.Duration     // default DefaultRetention
	Log       *slog.Logger      // default slog.Default()
	Metrics   prometheus.Registerer

	gathered, failed *prometheus.CounterVec
}

// Run gathers records and deletes old ones until ctx ends, and returns the cause of that end. After an error it tries
// again. Several replicas of a region may call Run at the same time.
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
	group.Go(func() error { return g.trimPeriodically(ctx) })
	return group.Wait()
}

// follow gathers the records of one service until ctx ends, and returns the cause of that end.
func (g *Gatherer) follow(ctx context.Context, service string, source Source) error {
	often := rate.Sometimes{Interval: time.Minute}
	backoff := time.Duration(0)
	g.failed.WithLabelValues(service)
	for {
		err := g.gatherPage(ctx, service, source)
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

// gatherPage appends the next page of a service's records to the chain. Without new records it waits for gatherWait and
// changes nothing.
func (g *Gatherer) gatherPage(ctx context.Context, service string, source Source) error {
	from, err := g.Chain.cursor(ctx, service)
	if err != nil {
		return err
	}
	page, err := source.ReadAudit(ctx, from, gatherLimit, gatherWait)
	if isCursorGone(err) && from != "" {
		g.Log.LogAttrs(ctx, slog.LevelWarn, "a database was restored, its audit records are read from the beginning",
			slog.String("service", service))
		_, err = g.Chain.gather(ctx, service, from, "", nil)
		return ignoreMoved(err)
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
	return ignoreMoved(err)
}

// ignoreMoved returns nil for errCursorMoved, since the chain has the records, and any other error as it is.
func ignoreMoved(err error) error {
	if errors.Is(err, errCursorMoved) {
		return nil
	}
	return err
}

// isCursorGone reports whether a service refused a cursor because its database was restored.
func isCursorGone(err error) bool {
	e, ok := errors.AsType[*remote.Error](err)
	return errors.Is(err, store.ErrGone) || ok && e.Status == http.StatusGone
}

// trimPeriodically deletes old records every trimPeriod until ctx ends, and returns the cause of that end.
func (g *Gatherer) trimPeriodically(ctx context.Context) error {
	tick := time.NewTimer(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case now := <-tick.C:
			tick.Reset(trimPeriod)
			if err := g.trim(ctx, now); err != nil && ctx.Err() == nil {
				g.Log.LogAttrs(ctx, slog.LevelWarn, "old audit records were not deleted, the next round tries again",
					slog.Any("error", err))
			}
		}
	}
}

// trim deletes old records: from the history of the platform database the records older than sourceRetention, and from
// the chain the records older than g.Retention. Each deletion from the chain appends a record to it. So that there is
// one such record a day and not one an hour, trim waits until the oldest record is a day older than the retention.
func (g *Gatherer) trim(ctx context.Context, now time.Time) error {
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
