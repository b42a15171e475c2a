package backup

import "time"

// At a higher rate than this in each second, the changes of one lookEvery do not fit in the buffers between a plane and
// the closed gate of its watch. etcd would then read them from its database again, and try 100 times a second to send
// them.
const (
	fastChanges = 12
	fastBytes   = 24 << 10
)

// pace counts the changes that come between two looks at a plane.
type pace struct {
	at             time.Time     // of the last look
	interval       time.Duration // between the last two looks
	changes, bytes int           // received since the last look; etcd sent most of them in that interval
}

// look records a look.
func (p *pace) look(now time.Time) {
	if !p.at.IsZero() {
		p.interval = now.Sub(p.at)
	}
	p.at, p.changes, p.bytes = now, 0, 0
}

// add counts changes.
func (p *pace) add(changes, bytes int) {
	p.changes += changes
	p.bytes += bytes
}

// isFast reports whether so many changes come that the next look should be soon.
func (p *pace) isFast() bool {
	seconds := max(int((p.interval+slack)/time.Second), 1)
	return p.changes > seconds*fastChanges || p.bytes > seconds*fastBytes
}
