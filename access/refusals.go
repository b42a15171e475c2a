package access

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"atoll.dev/internal/rest"
)

const (
	// refusalLines is how many refusals that anybody can cause are logged in a second. The others are
	// counted in one line.
	refusalLines  = 10
	refusalPeriod = time.Second

	maxLoggedPath = 256
)

// refusalLog logs refusals of identified callers, whose rate a limit bounds, and a sample of all other refusals.
// Several goroutines may use it.
type refusalLog struct {
	log *slog.Logger

	mu      sync.Mutex
	begun   time.Time // of the period
	lines   int       // of the period
	skipped int       // refusals of the period without a line
}

func newRefusalLog(log *slog.Logger) *refusalLog { return &refusalLog{log: log} }

// admit counts a refusal, and reports whether it may have a line.
func (l *refusalLog) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.skipped == 0 && now.Sub(l.begun) >= refusalPeriod {
		l.begun, l.lines = now, 0
	}
	if l.lines < refusalLines {
		l.lines++
		return true
	}
	if l.skipped++; l.skipped == 1 {
		time.AfterFunc(max(0, l.begun.Add(refusalPeriod).Sub(now)), l.logSkipped)
	}
	return false
}

// logSkipped logs how many refusals of a period have no line, and ends the period.
func (l *refusalLog) logSkipped() {
	l.mu.Lock()
	skipped := l.skipped
	l.begun, l.lines, l.skipped = time.Now(), 0, 0
	l.mu.Unlock()
	l.log.LogAttrs(context.Background(), slog.LevelInfo, "access denied, requests without a line",
		slog.Int("count", skipped))
}

// record counts and logs a refusal, and gives it to the audit with the policies that forbid the request. rest.Fail logs
// errors of the server.
func (rt *Router) record(r *http.Request, caller Identity, e *rest.Error, policies ...string) {
	rt.denied.WithLabelValues(e.Code).Inc()
	rt.deny(r, caller, e, policies)
	if e.Status >= http.StatusInternalServerError {
		return
	}
	// No rate bounds strangers, and replays.
	if isFree := caller.Account == "" || Code(e.Code) == SignatureUsed; isFree && !rt.refusals.admit() {
		return
	}
	rt.refusals.log.LogAttrs(r.Context(), slog.LevelInfo, "access denied",
		slog.String("operation_id", rest.OperationID(r.Context())),
		slog.String("code", e.Code), slog.String("access_key_id", quoted(caller.AccessKeyID)),
		slog.String("account", string(caller.Account)), slog.String("principal", string(caller.Principal)),
		slog.String("method", r.Method), slog.String("path", rest.Shorten(r.URL.Path, maxLoggedPath)),
		slog.String("remote", r.RemoteAddr))
}
