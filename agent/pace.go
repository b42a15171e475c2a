package agent

import (
	"reflect"
	"time"
)

// A token bucket for each object limits how often its changes are reported. The
// first reportBurst changes are reported at once; after that one in every
// reportInterval, always the latest. Only reports are limited: drift, removals and
// waiting works use every observation.
const (
	reportBurst    = 20
	reportInterval = 500 * time.Millisecond
)

// tokenBucket allows reportBurst tokens at once and regains one in every
// reportInterval. The zero value is full.
type tokenBucket struct {
	used int       // tokens taken and not regained
	at   time.Time // used counts up to this time
}

// take takes a token and returns true. If there is none, it returns false and the time
// of the next token.
func (b *tokenBucket) take(now time.Time) (next time.Time, ok bool) {
	if back := int(now.Sub(b.at) / reportInterval); back >= b.used || now.Before(b.at) { // or the clock stepped back
		b.used, b.at = 0, now
	} else if back > 0 {
		b.used -= back
		b.at = b.at.Add(time.Duration(back) * reportInterval)
	}
	if b.used >= reportBurst {
		return b.at.Add(reportInterval), false
	}
	b.used++
	return time.Time{}, true
}

// reportable returns the observation of the manifest's object that the rate limit
// allows to be reported. When that is not the latest one, the works of the object
// are advanced again at the time when it may be reported.
func (c *core) reportable(m *manifestState) *observed {
	o := c.objects[m.key]
	if o == nil {
		return nil
	}
	if o.reported == o.latest {
		return o.latest
	}
	if o.reported == nil || o.reported.reportsSameAs(o.latest) || m.rules != nil && !o.reported.hasFeedbackOf(m.rules) {
		o.reported = o.latest
		return o.latest
	}
	next, ok := o.reportPace.take(c.now)
	if ok {
		o.reported = o.latest
		return o.latest
	}
	if o.reportAt != next {
		o.reportAt = next
		for id := range o.claims {
			c.wakeAt(next, id)
		}
	}
	return o.reported
}

// reportsSameAs reports whether two observations lead to the same status.
func (o *observed) reportsSameAs(other *observed) bool {
	return o.exists == other.exists && reflect.DeepEqual(o.feedback, other.feedback)
}

// hasFeedbackOf reports whether the observation has the values that rs reads. An
// object that does not exist has no values to read.
func (o *observed) hasFeedbackOf(rs *ruleset) bool {
	_, ok := o.feedback[rs.key]
	return ok || !o.exists
}

// An object is contested when it needed so many repairs without a pause of
// repairQuiet: another writer keeps undoing them. Its status has the condition
// Contested until such a pause.
const contestedAfter = 4

// scheduleRepair counts a repair of the object, marks the object as contested after
// contestedAfter repairs, and returns when the repair may be made.
func (c *core) scheduleRepair(o *object) time.Time {
	before := o.lastRepair
	at := o.nextRepair(c.now)
	if at == before {
		return at
	}
	c.repairsOrdered++
	if o.repairs < contestedAfter {
		return at
	}
	_, known := c.contestedUntil[o.key]
	until := o.lastRepair.Add(repairQuiet)
	c.contestedUntil[o.key] = until
	c.wakeAt(until.Add(1), contestTimer)
	if !known {
		for id := range o.claims {
			c.wakeAt(c.now.Add(1), id)
		}
	}
	return at
}

// expireContests ends the contests that had no repair for repairQuiet, and advances
// the works of these objects.
func (c *core) expireContests() {
	for key, until := range c.contestedUntil {
		if !until.Before(c.now) {
			continue
		}
		delete(c.contestedUntil, key)
		if o := c.objects[key]; o != nil {
			for id := range o.claims {
				c.advanceByID(id)
			}
		}
	}
}
