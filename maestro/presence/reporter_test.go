package presence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

// lifecycleFunc is a Lifecycle that has every ManagementCluster, and whose answer to a report is that of the function.
type lifecycleFunc func(ctx context.Context, name string) error

func (f lifecycleFunc) Named(_ context.Context, _ clmclient.Collection, name string) (r clmclient.Resource, err error) {
	r.ID = name
	return r, nil
}

func (f lifecycleFunc) Report(ctx context.Context, _ clmclient.Collection, id string, _ clm.AdapterStatusCreate) (
	bool, error) {
	return true, f(ctx, id)
}

// TestAReportThatFailsDelaysNoOther: CLM answers the report of the first agent with 500 each time, because its resource
// is damaged. The other agents are reported in the same pass. Without any answer the pass ends.
func TestAReportThatFailsDelaysNoOther(t *testing.T) {
	now := time.Now()
	pass := func(answer error, others func(context.Context) error) (reported int, err error) {
		var mu sync.Mutex
		r := newReporter(Options{
			Logger: slog.New(slog.DiscardHandler), LostAfter: time.Minute, ReportEvery: time.Minute,
			Leads: func() bool { return true },
			CLM: lifecycleFunc(func(ctx context.Context, name string) error {
				if name == "mc00" {
					return answer
				}
				if err := others(ctx); err != nil {
					return err
				}
				mu.Lock()
				defer mu.Unlock()
				reported++
				return nil
			}),
		}, nil)
		for n := range 40 {
			r.recordContact(work.Consumer(fmt.Sprintf("mc%02d", n)), now)
		}
		err = r.sendDue(t.Context(), now)
		return reported, err
	}
	later := func(ctx context.Context) error {
		select { // a pass that ends with mc00's error ends these calls
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
			return nil
		}
	}
	if n, err := pass(&remote.Error{Status: http.StatusInternalServerError}, later); n != 39 || err == nil {
		t.Errorf("with a damaged resource %d of 39 other agents were reported: %v", n, err)
	}
	unreachable := errors.New("connection refused")
	untilCancelled := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	if n, err := pass(unreachable, untilCancelled); n != 0 || !errors.Is(err, unreachable) {
		t.Errorf("without CLM the pass went on, %d reports: %v", n, err)
	}
}
