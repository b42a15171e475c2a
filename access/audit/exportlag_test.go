package audit

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/pgtest"
	"atoll.dev/test/testsite"
)

// lines is a log in memory.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A store that is away shows in the log and in the metrics, and its return in the log.
func TestAnExportThatIsBehindShows(t *testing.T) {
	chain, _, _ := open(t, pgtest.DSN(t))
	b, log := newBucket(t), &lines{}
	var isAway atomic.Bool
	isAway.Store(true)
	b.put = func() error {
		if isAway.Load() {
			return errors.New("the store is away")
		}
		return nil
	}
	registry := prometheus.NewRegistry()
	x := &Exporter{Chain: chain, Objects: b, Prefix: "p/", Target: "bucket", Period: 10 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: registry}
	add(t, chain, "a", 4)
	testsite.Run(t, "the export", x.Run)
	testsite.Eventually(t, "the export is behind", func() error {
		if !strings.Contains(log.String(), "is behind") || !strings.Contains(log.String(), "records=4") {
			return errors.New(log.String())
		}
		families, err := registry.Gather()
		if err != nil {
			return err
		}
		for _, f := range families {
			if f.GetName() == "audit_export_behind_records" && f.GetMetric()[0].GetGauge().GetValue() == 4 {
				return nil
			}
		}
		return fmt.Errorf("the metrics are %v", families)
	})
	isAway.Store(false)
	testsite.Eventually(t, "the export has caught up", func() error {
		if !strings.Contains(log.String(), "has caught up") {
			return errors.New(log.String())
		}
		return nil
	})
}

// The age of an export is that of its oldest record that waits.
func TestTheAgeOfAnExport(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	var l lag
	for _, step := range []struct {
		exported, head int64
		second, want   int
	}{
		{0, 0, 1, 0}, {0, 5, 2, 0}, {0, 6, 10, 8}, {3, 9, 11, 9}, {5, 9, 12, 0}, {5, 9, 14, 2}, {9, 9, 15, 0},
	} {
		l = l.see(step.exported, step.head, at(step.second))
		if got := l.age(at(step.second)); got != time.Duration(step.want)*time.Second ||
			l.records != step.head-step.exported {
			t.Errorf("after %+v: %s, %d records", step, got, l.records)
		}
	}
}
