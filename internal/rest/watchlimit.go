package rest

import (
	"errors"
	"net/http"
	"sync"
	"time"
)

// ErrTooManyWatches is the cause of the 429 that refuses a watch.
var ErrTooManyWatches = errors.New("the caller has too many open watches")

// watchRetry is the Retry-After of a refused watch. Watches last long, so that a refused caller
// gains nothing by asking more often.
const watchRetry = 5 * time.Second

// WatchLimits bounds how many watches each caller of one server has open at the same time. Its
// methods may be called from several goroutines. A nil *WatchLimits has no bound.
type WatchLimits struct {
	perCaller int

	mu   sync.Mutex
	open map[string]int // by caller; callers without an open watch have no entry
}

// NewWatchLimits returns limits of perCaller watches for each caller; 0 means no bound.
func NewWatchLimits(perCaller int) *WatchLimits {
	return &WatchLimits{perCaller: perCaller, open: map[string]int{}}
}

// acquire counts one more open watch of a caller. The caller of acquire must call release when the
// watch ends. The error is a 429 with Retry-After; then nothing is counted. A watch without a
// caller ("") is never refused.
func (l *WatchLimits) acquire(caller string) (release func(), err error) {
	if l == nil || l.perCaller <= 0 || caller == "" {
		return func() {}, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[caller] >= l.perCaller {
		e := Errorf(http.StatusTooManyRequests, "too-many-watches",
			"the caller has %d open watches on this server, which is the limit; close one first", l.perCaller)
		e.RetryAfter = watchRetry
		return nil, e.Because(ErrTooManyWatches)
	}
	l.open[caller]++
	return sync.OnceFunc(func() { l.release(caller) }), nil
}

func (l *WatchLimits) release(caller string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open[caller]--; l.open[caller] == 0 {
		delete(l.open, caller)
	}
}
