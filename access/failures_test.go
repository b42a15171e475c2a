package access

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// While the ledger fails, every round counts, and the log has one of each minute.
func TestFailedSettlementsAreCountedAndLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		metrics := prometheus.NewRegistry()
		failures := NewFailures(slog.New(slog.NewTextHandler(&log, nil)), metrics)
		l := NewLimiter(Limits{Rates: map[Class]Rate{Writes: {PerSecond: 1e-6, Burst: 10}}})
		if err := l.take(http.Header{}, account, Writes); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute+30*time.Second+exchangePeriod/2)
		defer cancel()
		if err := l.Run(ctx, failingLedger{}, failures); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run: %v", err)
		}
		if n := failuresOf(t, metrics, "settle-rates"); n != 150 {
			t.Errorf("%v failures of 150 were counted", n)
		}
		if n := strings.Count(log.String(), "task=settle-rates"); n != 3 {
			t.Errorf("%d failures were logged, want 3:\n%s", n, &log)
		}
	})
}

// Signatures that cannot be removed show in the metric and in the log.
func TestAFailedRemovalOfSignaturesIsCounted(t *testing.T) {
	s, err := store.Open(t.Context(), store.Options{DSN: pgtest.DSN(t), Kinds: StoreKinds(),
		Migrations: Migrations()}.Patient())
	if err != nil {
		t.Fatal(err)
	}
	s.Close() // from now on every statement fails
	ctx, cancel := context.WithCancel(t.Context())
	logged := logged(make(chan string, 1))
	metrics := prometheus.NewRegistry()
	failures := NewFailures(slog.New(slog.NewTextHandler(logged, nil)), metrics)
	ended := make(chan error)
	go func() { ended <- NewUsedSignatures(s).Run(ctx, failures) }()
	if line := <-logged; !strings.Contains(line, "task=forget-signatures") {
		t.Errorf("the log has %s", line)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if n := failuresOf(t, metrics, "forget-signatures"); n != 1 {
		t.Errorf("%v failures were counted", n)
	}
}

// logged gets the lines of a log.
type logged chan string

func (l logged) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// failuresOf returns how many failures of a task the metric counts.
func failuresOf(t *testing.T, metrics *prometheus.Registry, of task) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.Metric {
			if family.GetName() == "access_task_failures_total" && m.Label[0].GetValue() == string(of) {
				return m.Counter.GetValue()
			}
		}
	}
	t.Errorf("no metric has the task %s", of)
	return 0
}
