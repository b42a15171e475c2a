package audit

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// lag is how far an export is behind the chain, by the clock of this process alone.
type lag struct {
	records int64     // that are not exported
	mark    int64     // number of a record that was not exported when this process saw it first
	since   time.Time // when this process saw that record; zero when all are exported
}

// see returns the lag after a look at the position: exported is the last exported record, head that of the chain.
func (l lag) see(exported, head int64, now time.Time) lag {
	switch {
	case exported >= head:
		return lag{}
	case l.since.IsZero() || exported >= l.mark:
		return lag{records: head - exported, mark: head, since: now}
	}
	l.records = head - exported
	return l
}

// age returns for how long a record has waited for its export.
func (l lag) age(now time.Time) time.Duration {
	if l.since.IsZero() {
		return 0
	}
	return now.Sub(l.since)
}

func (x *Exporter) see(p exportPosition) {
	x.mu.Lock()
	defer x.mu.Unlock()
	from, _ := p.next()
	x.behind = x.behind.see(from.Seq, p.head.Seq, time.Now())
}

func (x *Exporter) lag() lag {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.behind
}

// registerMetrics makes the metrics of the export.
func (x *Exporter) registerMetrics() {
	x.records = prometheus.NewCounter(prometheus.CounterOpts{Name: "audit_exported_records_total",
		Help: "Audit records that this process stored in the object store."})
	x.failed = prometheus.NewCounter(prometheus.CounterOpts{Name: "audit_export_failures_total",
		Help: "Failed rounds of the export of audit records. The next round tries again."})
	records := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "audit_export_behind_records",
		Help: "Audit records of the chain that were not in the object store at the last look."},
		func() float64 { return float64(x.lag().records) })
	age := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "audit_export_behind_seconds",
		Help: "For how long this process knows of an audit record that is not in the object store; 0 without one."},
		func() float64 { return x.lag().age(time.Now()).Seconds() })
	if x.Metrics != nil {
		x.Metrics.MustRegister(x.records, x.failed, records, age)
	}
}

// exportLog writes a line each minute while an export fails or is behind, and one when it has caught up.
type exportLog struct {
	log      *slog.Logger
	often    rate.Sometimes
	isBehind bool
}

// report logs the outcome of a round. An export is behind when a record has waited for three periods.
func (e *exportLog) report(ctx context.Context, err error, l lag, period time.Duration) {
	age := l.age(time.Now())
	if err == nil && age <= 3*period {
		if e.isBehind && l.records == 0 {
			e.isBehind = false
			e.log.LogAttrs(ctx, slog.LevelInfo, "the export of audit records has caught up")
		}
		return
	}
	e.isBehind = true
	e.often.Do(func() {
		e.log.LogAttrs(ctx, slog.LevelWarn, "the export of audit records is behind, the next round tries again",
			slog.Int64("records", l.records), slog.Duration("age", age.Truncate(time.Second)), slog.Any("error", err))
	})
}
