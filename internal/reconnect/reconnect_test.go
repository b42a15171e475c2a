package reconnect

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheBackoffDoublesAndBeginsAnewAfterAnOpenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var log bytes.Buffer
		o := Options{MinBackoff: 100 * time.Millisecond, MaxBackoff: time.Second, Message: "lost",
			Attrs: []any{"server", "s"}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		lost := time.Now()
		calls := 0
		backoffs := []time.Duration{0, 100, 200, 400, 800, 1000, 1000, 100, 200} // milliseconds; the seventh call is open
		Run(ctx, o, func(context.Context) error {
			want := backoffs[calls] * time.Millisecond
			if took := time.Since(lost); took < want/2 || took > want*3/2 {
				t.Errorf("call %d came after %s, with a back-off of %s", calls, took, want)
			}
			if calls++; calls == 7 {
				<-time.After(2 * o.MaxBackoff)
			}
			if calls == len(backoffs) {
				cancel()
			}
			lost = time.Now()
			return errors.New("broken")
		})
		if calls != len(backoffs) {
			t.Errorf("%d calls", calls)
		}
		// Three warnings at once, and one for the open connection.
		const line = "level=WARN msg=lost server=s error=broken retry_in="
		if n := strings.Count(log.String(), line); n != 4 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
}

func TestAPauseEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		o := Options{MinBackoff: time.Hour, MaxBackoff: time.Hour, Message: "lost", Log: slog.New(slog.DiscardHandler)}
		Run(ctx, o, func(context.Context) error { return errors.New("broken") })
		if took := time.Since(begun); took != time.Second {
			t.Errorf("Run ended after %s", took)
		}
	})
}
