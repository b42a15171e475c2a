package testsite

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"atoll.dev/internal/freeport"
)

// HangLimit is how long Eventually waits. Only a hang exceeds it, on a machine under any load.
const HangLimit = 3 * time.Minute

// Eventually calls check until it returns nil. After HangLimit it fails the test with the last error, which should say
// the state that check found.
func Eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	EventuallyWithin(t, what, HangLimit, check)
}

// EventuallyWithin is Eventually with another limit. Between two calls it waits 20 ms, and longer after a slow call:
// three times as long as the call took, at most 1 s. So a check that starts programs leaves the processors to the
// processes that the test waits for.
func EventuallyWithin(t testing.TB, what string, limit time.Duration, check func() error) {
	t.Helper()
	const shortest, longest = 20 * time.Millisecond, time.Second
	end := time.After(limit)
	for {
		begun := time.Now()
		err := check()
		if err == nil {
			return
		}
		pause := time.NewTimer(min(max(3*time.Since(begun), shortest), longest))
		select {
		case <-end:
			pause.Stop()
			t.Fatalf("%s: not within %s: %v", what, limit, err)
		case <-pause.C:
		}
	}
}

// Run runs a part until stop is called, which may be repeated, or until the test ends. Both wait for
// the part's end. The part must return when its context is cancelled; if it returns an error other
// than the cancellation, the test fails.
func Run(t testing.TB, name string, part func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := part(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with an error: %v", name, err)
		} else if ctx.Err() == nil {
			t.Errorf("%s ended before the test stopped it", name)
		}
	})
	stop = sync.OnceFunc(func() { cancel(); done.Wait() })
	t.Cleanup(stop)
	return stop
}

// Listen returns a listener of 127.0.0.1 on a free port, on which the test may listen again after the listener was
// closed: the port is none of those that the system gives to outgoing connections.
func Listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := freeport.Listen()
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// FreeAddress returns an address for a child process, which listens on it with ListenAgain.
func FreeAddress(t testing.TB) string {
	t.Helper()
	l := Listen(t)
	defer l.Close()
	return l.Addr().String()
}

// ListenAgain listens on an address of Listen or FreeAddress. It retries for a minute while the previous listener's
// process still holds the address.
func ListenAgain(address string) (l net.Listener, err error) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range 1200 {
		if l, err = net.Listen("tcp", address); err == nil {
			return l, nil
		}
		<-tick.C
	}
	return nil, err
}

// ListenOn listens on a free port when address is "", and on an address of an earlier listener otherwise.
func ListenOn(t testing.TB, address string) net.Listener {
	t.Helper()
	if address == "" {
		return Listen(t)
	}
	l, err := ListenAgain(address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// shownLog is how many bytes of a log a failed test shows: the last ones.
const shownLog = 64 << 10

// Log returns a logger whose lines the test shows when it ends, if it failed.
func Log(t testing.TB) *slog.Logger {
	t.Helper()
	buffer := &tail{}
	t.Cleanup(func() {
		if text := buffer.String(); t.Failed() && text != "" {
			t.Logf("log:\n%s", text)
		}
	})
	return slog.New(slog.NewTextHandler(buffer, nil))
}

// tail keeps the last shownLog bytes that were written. Several goroutines may write.
type tail struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *tail) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	b.text.Next(max(0, b.text.Len()-shownLog))
	return len(p), nil
}

func (b *tail) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
