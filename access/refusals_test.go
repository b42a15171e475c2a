package access

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// lockedBuffer is a buffer that several goroutines may use.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// take returns and removes what was written.
func (b *lockedBuffer) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.buf.Reset()
	return b.buf.String()
}

// Strangers fill no log: ten lines in a second, each with a short path, and one line with the number of
// the others. A request of the next second has a line again.
func TestStrangersFillNoLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedBuffer
		h := front(notFound, slog.New(slog.NewJSONHandler(&log, nil)), testKeys(), nil)
		path := "/" + strings.Repeat("x", 60<<10)
		lines := func() (denied, others int) {
			t.Helper()
			synctest.Wait()
			for line := range strings.Lines(log.take()) {
				var of struct {
					Msg, Path string
					Count     int
				}
				if err := json.Unmarshal([]byte(line), &of); err != nil || len(line) > 1000 {
					t.Fatalf("%v, a line of %d bytes", err, len(line))
				}
				if of.Count > 0 {
					others += of.Count
				} else {
					denied++
				}
			}
			return denied, others
		}
		for range 1000 {
			serve(h, request(t, "GET", path, ""))
		}
		if denied, others := lines(); denied != refusalLines || others != 0 {
			t.Errorf("at once: %d lines, %d others", denied, others)
		}
		<-time.After(refusalPeriod)
		if denied, others := lines(); denied != 0 || others != 1000-refusalLines {
			t.Errorf("after a second: %d lines, %d others", denied, others)
		}
		for range 2 {
			serve(h, request(t, "GET", path, ""))
			<-time.After(2 * refusalPeriod)
			if denied, others := lines(); denied != 1 || others != 0 {
				t.Errorf("later: %d lines, %d others", denied, others)
			}
		}
	})
}
