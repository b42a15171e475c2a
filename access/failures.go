package access

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
)

// task is background work of this package that tries again by itself.
type task string

const (
	settleRates      task = "settle-rates"
	forgetSignatures task = "forget-signatures"
	keepKeys         task = "keep-keys"
	resealKeys       task = "reseal-keys"
	readSealKeys     task = "read-seal-keys"
)

// Failures counts the failed rounds of Limiter.Run, UsedSignatures.Run, KeyStore.Keep and KeyStore.Reseal, and logs one
// of each task at most once a minute. Several goroutines may use it. A nil *Failures does nothing.
type Failures struct {
	log    *slog.Logger
	counts *prometheus.CounterVec
	often  map[task]*rate.Sometimes
}

// NewFailures returns Failures that log to log. metrics, unless it is nil, gets
// access_task_failures_total by task; it panics when the metric is registered already.
func NewFailures(log *slog.Logger, metrics prometheus.Registerer) *Failures {
	f := &Failures{log: log, often: map[task]*rate.Sometimes{}, counts: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "access_task_failures_total",
		Help: "Failed rounds of background tasks, which try again: settle-rates, forget-signatures, keep-keys, " +
			"reseal-keys, read-seal-keys.",
	}, []string{"task"})}
	for _, t := range []task{settleRates, forgetSignatures, keepKeys, resealKeys, readSealKeys} {
		f.counts.WithLabelValues(string(t)) // 0 and not absent before the first failure
		f.often[t] = &rate.Sometimes{Interval: time.Minute}
	}
	if metrics != nil {
		metrics.MustRegister(f.counts)
	}
	return f
}

// record counts a failed round, and logs it unless another one of the task was logged in the last
// minute. A round that failed because ctx ended is no failure.
func (f *Failures) record(ctx context.Context, of task, err error) {
	if f == nil || err == nil || ctx.Err() != nil {
		return
	}
	f.counts.WithLabelValues(string(of)).Inc()
	f.often[of].Do(func() {
		f.log.LogAttrs(ctx, slog.LevelWarn, "background task failed, it tries again", slog.String("task", string(of)),
			slog.Any("error", err))
	})
}
