// Package reconnect keeps one connection open: it connects again after each loss, with a back-off.
//
// The clients of the bus and of a server's streams use it. It imports nothing of Atoll but internal/pause.
package reconnect

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"atoll.dev/internal/pause"
)

// Options are the back-off and the log of a connection. All fields but Attrs are required.
type Options struct {
	// MinBackoff is the back-off after the first failure. It doubles up to MaxBackoff, and begins anew after a
	// connection that was open for longer than MaxBackoff. The pause is between half of the back-off and one and a half.
	MinBackoff, MaxBackoff time.Duration

	Log     *slog.Logger
	Message string // of the line about a lost connection
	Attrs   []any  // of that line
}

// Run calls serve, which connects and returns when the connection is lost, again and again until ctx ends. It logs as
// warnings the loss of a connection that was open, the first three failed attempts, and then one in 30 seconds; the
// other attempts are for debugging.
func Run(ctx context.Context, o Options, serve func(context.Context) error) {
	warnings := rate.NewLimiter(rate.Every(30*time.Second), 3)
	backoff := o.MinBackoff
	for {
		begun := time.Now()
		err := serve(ctx)
		if ctx.Err() != nil {
			return
		}
		wasOpen := time.Since(begun) > o.MaxBackoff
		if wasOpen {
			backoff = o.MinBackoff
		}
		level := slog.LevelDebug
		if warnings.Allow() || wasOpen {
			level = slog.LevelWarn
		}
		o.Log.With(o.Attrs...).Log(ctx, level, o.Message, "error", err, "retry_in", backoff.String())
		if !pause.For(ctx, backoff/2+rand.N(backoff)) {
			return
		}
		backoff = min(2*backoff, o.MaxBackoff)
	}
}
