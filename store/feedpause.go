package store

import "time"

// A read of the feed costs PostgreSQL as much as half of a write, whether it finds one change or twenty. On a busy
// machine the next changes are there when a read ends, so that a pause makes the reads fewer and larger.
const (
	pausePerReadTime      = 4 // how many times as long as a read the pause after it is
	maxFeedPauseIntervals = 4 // the longest such pause, in FeedIntervals
)

// feedPause returns how long a follower pauses after a read, or a notifier after a notification, that took some time.
// Reads begin at most every FeedInterval. A slow read has a pause of up to four intervals. A change that comes after
// the pause is read at once.
func (s *Store) feedPause(took time.Duration) time.Duration {
	interval := s.opts.FeedInterval
	return max(interval-took, min(pausePerReadTime*took, maxFeedPauseIntervals*interval))
}
