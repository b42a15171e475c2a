package leakcheck

import (
	"testing"
	"time"

	"atoll.dev/internal/quick"
)

func TestMain(m *testing.M) { Main(m) }

// A goroutine that stays is reported, and one that ends late is not.
func TestAGoroutineThatStaysIsReported(t *testing.T) {
	quick.LeavesOut(t, "waits for a goroutine that stays")
	end := make(chan struct{})
	go func() { <-end }()
	if err := awaitNone(0); err == nil {
		t.Error("a goroutine that stays is not reported")
	}
	time.AfterFunc(2*time.Second, func() { close(end) })
	if err := awaitNone(limit); err != nil {
		t.Errorf("a goroutine that ends after two seconds is reported: %v", err)
	}
}
