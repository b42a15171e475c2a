package backup

import "time"

// Of more changes than these in a second, those of one lookEvery do not fit in the buffers between a plane and the
// closed gate of its watch. etcd would then read them from its database again, and try 100 times a second to send them.
const (
	fastChanges = 16
	fastBytes   = 32 << 10
)

// pace counts the changes that come between two looks at a plane.
type pace struct {
	at             time.Time     // of the last look
	since          time.Duration // from the look before to the last one
	changes, bytes int           // that came after the last look: etcd had sent most of them before it
}

// look records a look.
func (p *pace) look(now time.Time) {
	if !p.at.IsZero() {
		p.since = now.Sub(p.at)
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
	seconds := max(int((p.since+slack)/time.Second), 1)
	return p.changes > seconds*fastChanges || p.bytes > seconds*fastBytes
}
