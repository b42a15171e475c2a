package agent

import (
	"reflect"
	"time"
)

// What is told of an object is paced by a token bucket of its own: the first
// changes go out at once, those of one that does not come to rest are
// gathered. The latest always gets out in the end. Only telling is paced:
// drift, removals and waiting see every observation.
const (
	reportBurst    = 20
	reportInterval = 500 * time.Millisecond
)

// bucket holds tokens, one more every so often. The zero value is full.
type tokenBucket struct {
	used int       // tokens taken and not yet given back
	at   time.Time // when used was right
}

// take takes a token, or says when there will be one.
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

// told is what may be told of the manifest's object now. When that is not the
// latest, the works that want the object are called again in time.
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

// tells says whether two observations tell the region the same.
func (o *observed) reportsSameAs(other *observed) bool {
	return o.exists == other.exists && reflect.DeepEqual(o.feedback, other.feedback)
}

func (o *observed) hasFeedbackOf(rs *ruleset) bool {
	_, ok := o.feedback[rs.key]
	return ok || !o.exists
}

// A repair that is undone soon after is a fight with another writer. Repairs
// are spaced out from the second on (see repairAt); after this many the fight
// is told of, until there was none for repairQuiet.
const contestedAfter = 4

// orderRepair says when the object may be repaired next, counts the repair,
// and notes when the object is being fought for.
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

// settleContests calls the works of objects that are fought for no more.
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
