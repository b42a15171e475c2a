package store

import (
	"testing"
	"time"
)

func TestAFeedReadsAtMostEveryIntervalAndPausesAfterSlowReads(t *testing.T) {
	s := &Store{opts: Options{FeedInterval: 5 * time.Millisecond}}
	for took, want := range map[time.Duration]time.Duration{
		0:                     5 * time.Millisecond,
		time.Millisecond:      4 * time.Millisecond,
		2 * time.Millisecond:  8 * time.Millisecond,
		4 * time.Millisecond:  16 * time.Millisecond,
		time.Second:           20 * time.Millisecond,
		500 * time.Nanosecond: 5*time.Millisecond - 500*time.Nanosecond,
	} {
		if got := s.feedPause(took); got != want {
			t.Errorf("the pause after a read of %v is %v, want %v", took, got, want)
		}
	}
}
