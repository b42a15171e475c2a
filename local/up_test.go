package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// A slow machine takes long for each process; `up` waits while one after the other begins to
// serve. It gives up when a process only restarts.
func TestUpWaitsWhileProcessesBeginToServe(t *testing.T) {
	for _, c := range []struct {
		name   string
		stages []string // one in two minutes, then the region
		want   error
	}{
		{"one after the other", []string{"pki", "broker", "postgres", "clm"}, nil},
		{"the same one again and again", []string{"pki", "clm", "clm", "clm"}, errNoProgress},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := Home{Dir: t.TempDir()}
			if err := os.Mkdir(filepath.Join(h.Dir, "run"), 0o700); err != nil {
				t.Fatal(err)
			}
			synctest.Test(t, func(t *testing.T) {
				events, err := h.newEventLog()
				if err != nil {
					t.Fatal(err)
				}
				result := make(chan error, 1)
				go func() { result <- h.awaitRegion(t.Context(), 0, nil, func(Event) {}) }()
				for _, stage := range append(c.stages, regionStage) {
					<-time.After(2 * time.Minute)
					events.recordDone(stage, "", 0)
				}
				if err := <-result; !errors.Is(err, c.want) {
					t.Errorf("got %v, want %v", err, c.want)
				}
			})
		})
	}
}
