package sentinel

import (
	"math/bits"
	"time"
)

// State is what a sentinel remembers of one resource. It is small, and holds no
// document: 50,000 of them are a few megabytes. Its methods are functions of
// what happens and of the time; they do nothing else.
type State struct {
	Salt       uint64 // of the resource's id: spreads its retries
	Version    int64  // of the document that was seen last
	Generation int64
	Mark       uint64 // of what counts as progress, see markOf
	Deleting   bool

	Published   int64   // the generation of the last event that the broker took; 0: none
	PublishedAt instant // when; 0: not known
	Attempts    uint8   // events since there was progress

	Wanted bool    // the decision was true, last
	Forced bool    // someone asked for an event, whatever the decision
	Asked  instant // when the broker took an event that someone had asked for; 0: none
	Again  bool    // and once more while one was on its way
	Urgent bool    // somebody waits for Due; what comes of the clock is not urgent
	Due    instant // when to decide; 0: not before something happens
	Spent  instant // when the budget of events for reports would be whole again
	Unsent uint64  // the first round of the feed whose event may still be unsent; 0: there is none

	Sending bool   // an event is on its way
	SentGen int64  // its generation
	Later   uint64 // Unsent of the changes since then
	Next    After  // what the decision becomes with it
}

// instant is a time in microseconds since 1970; 0 is none.
type instant int64

func instantOf(t time.Time) instant {
	if t.IsZero() {
		return 0
	}
	return instant(t.UnixMicro())
}

func (i instant) time() time.Time {
	if i == 0 {
		return time.Time{}
	}
	return time.UnixMicro(int64(i)).UTC()
}

func (i instant) add(d time.Duration) instant { return i + instant(d.Microseconds()) }

// After is what is known of the time after an event: the decision is still true,
// or becomes true by itself at Flip (0: never).
type After struct {
	Wanted bool
	Flip   instant
}

// Policy says how often one resource may have events.
type Policy struct {
	Debounce time.Duration // from a report to its event, so that several reports have one; default 5 ms
	MinRetry time.Duration // from an event to the next when nothing happens; default 1 s
	MaxRetry time.Duration // it doubles up to this; default 5 min
	// Reports bring events at once only while their budget lasts: so many, and
	// one more after each Refill. An adapter that reports something else each
	// time would keep itself busy without end. Defaults 30, and 30 s.
	Burst  int
	Refill time.Duration
	// Remember is for how long after a requested event it is sent again to adapters
	// that connect; default 15 min.
	Remember time.Duration
}

func (p Policy) withDefaults() Policy {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&p.Debounce, 5*time.Millisecond)
	def(&p.MinRetry, time.Second)
	def(&p.MaxRetry, 5*time.Minute)
	def(&p.Refill, 30*time.Second)
	def(&p.Remember, 15*time.Minute)
	if p.Burst == 0 {
		p.Burst = 30
	}
	return p
}

// Change is a document as the feed, or a list, has it.
type Change struct {
	Version, Generation int64
	Mark                uint64
	Deleting            bool
	Round               uint64 // of the feed that brought it
}

// Changed handles a document from the feed. A change by its writer is urgent; so
// is a report, while the budget of events for reports lasts. A document that
// differs in times only changes nothing.
func (p Policy) Changed(s State, c Change, now time.Time) State {
	if c.Version <= s.Version {
		return s
	}
	at := instantOf(now)
	spec := s.Version == 0 || c.Generation != s.Generation || c.Deleting != s.Deleting
	report := c.Mark != s.Mark
	s.Version, s.Generation, s.Mark, s.Deleting = c.Version, c.Generation, c.Mark, c.Deleting
	switch {
	case spec:
		s.Attempts = 0
		s.due(at, true)
		s.markUnsent(c.Round)
	case report:
		// No event is marked as unsent: the next holder of the slot asks the rules, which give the same answer.
		refill := instant(p.Refill.Microseconds())
		if ready := s.Spent - instant(p.Burst-1)*refill; ready > at {
			s.due(ready, false)
			break
		}
		if s.Spent < at+instant(p.Burst/2)*refill {
			s.Attempts = 0 // it is progress, not restlessness
		}
		s.Spent = max(s.Spent, at) + refill
		s.due(at.add(p.Debounce), true)
	}
	return s
}

// Found is Changed for a document of a list. unseen says that the slot's cursor
// lies before the document: its last event is not known, so that it counts as
// just changed. The events of other documents have all been sent; after is the
// present decision about them.
func (p Policy) Found(s State, c Change, unseen, urgent bool, after After, now time.Time) State {
	switch {
	case c.Version < s.Version:
		return s // the feed was faster
	case unseen && c.Version == s.Version && (s.Unsent != 0 || s.Published == c.Generation && s.PublishedAt != 0):
		return s // it is marked already, or its event has been sent since
	case unseen:
		s.Version, s.Generation, s.Mark, s.Deleting = c.Version, c.Generation, c.Mark, c.Deleting
		s.Published, s.Attempts = 0, 0
		s.due(instantOf(now), urgent)
		s.markUnsent(c.Round)
		return s
	case c.Version == s.Version:
		return s
	case s.Version != 0:
		return p.Changed(s, c, now) // the list was faster than the feed
	}
	s.Version, s.Generation, s.Mark, s.Deleting = c.Version, c.Generation, c.Mark, c.Deleting
	s.Published, s.Wanted = c.Generation, after.Wanted
	if s.Due = after.Flip; after.Wanted {
		s.Due = instantOf(now)
	}
	return s
}

// Asked handles a request for an event although nothing changed. A forced event
// is sent whatever the decision is. Another one, after the bus or an adapter was
// away, is sent when the last decision was true, or there was none yet.
func (p Policy) Asked(s State, forced, urgent bool, round uint64, now time.Time) State {
	switch {
	case forced && s.Sending:
		s.Again = true
	case forced:
		s.Forced = true
	case !s.Wanted && !s.Forced && s.Unsent == 0:
		return s
	}
	if forced {
		s.markUnsent(round)
	}
	s.Attempts = 0
	s.due(instantOf(now), urgent || !forced && s.Unsent != 0)
	return s
}

// AdapterConnected handles an adapter that has just connected, which has received none
// of the earlier events: wanted and unsent events are sent again, and those that
// somebody asked for within Remember. It does not matter that another adapter
// has received them.
func (p Policy) AdapterConnected(s State, now time.Time) State {
	if !pending(s) && (s.Asked == 0 || s.Asked.add(p.Remember) < instantOf(now)) {
		return s
	}
	if !pending(s) {
		s.Forced = true
		s.Attempts = 0
		s.due(instantOf(now), false)
		return s
	}
	return p.Asked(s, false, false, 0, now)
}

// Verdict is what the rules say at a time when a state is due: that an event is
// needed, and what comes after it; or that none is, and until when; or that
// they failed.
type Verdict struct {
	Wanted bool
	Failed bool
	After  After   // of an event
	Flip   instant // without an event
}

// Decided applies a verdict, and returns whether to send an event now. After a
// failure the resource is due again with back-off. Its event is not unsent then,
// so that a resource whose rules always fail does not hold back its slot's
// cursor. States whose event is on its way must not be passed.
func (p Policy) Decided(s State, v Verdict, now time.Time) (State, bool) {
	at := instantOf(now)
	s.Due, s.Urgent = 0, false
	switch {
	case s.Forced && v.Failed:
		v.After.Wanted = true // so that it is looked at again
	case s.Forced:
	case v.Failed:
		s.Attempts = bump(s.Attempts)
		s.Due = at.add(p.backoff(s))
		s.Unsent = 0
		return s, false
	case !v.Wanted:
		s.Wanted, s.Attempts, s.Unsent = false, 0, 0
		s.Due = v.Flip
		return s, false
	}
	s.Wanted = v.Wanted
	s.Sending, s.SentGen, s.Next = true, s.Generation, v.After
	return s, true
}

// Sent applies the outcome of an event: ok is true when the broker took it. It is
// false, too, when no adapter was subscribed.
func (p Policy) Sent(s State, ok bool, now time.Time) State {
	at := instantOf(now)
	s.Sending = false
	if !ok {
		s.Attempts, s.Forced, s.Again = bump(s.Attempts), s.Forced || s.Again, false
		s.Unsent, s.Later = s.unsentSince(), 0
		s.due(at.add(p.backoff(s)), false)
		return s
	}
	if s.Forced && s.Unsent != 0 { // somebody asked; sending it again to an adapter that connects is no new request
		s.Asked = at
	}
	s.Published, s.PublishedAt, s.Attempts = s.SentGen, at, bump(s.Attempts)
	s.Forced, s.Again = s.Again, false
	s.Unsent, s.Later = s.Later, 0
	if s.Wanted = s.Next.Wanted; s.Due != 0 {
		return s // something happened meanwhile
	}
	if s.Wanted {
		s.Due = at.add(p.backoff(s))
	} else {
		s.Attempts, s.Due = 0, s.Next.Flip
	}
	return s
}

// due makes a state due at a time, or earlier if it already is.
func (s *State) due(at instant, urgent bool) {
	if s.Due == 0 || at < s.Due {
		s.Due = max(at, 1)
	}
	s.Urgent = s.Urgent || urgent
}

// markUnsent notes a round of the feed whose event is still to be sent.
func (s *State) markUnsent(round uint64) {
	first := &s.Unsent
	if s.Sending {
		first = &s.Later
	}
	if *first == 0 || round < *first {
		*first = round
	}
}

// unsentSince returns the first round whose event is still to be sent, 0 if there is none.
func (s State) unsentSince() uint64 {
	if s.Unsent == 0 || s.Later != 0 && s.Later < s.Unsent {
		return s.Later
	}
	return s.Unsent
}

func bump(n uint8) uint8 { return min(n, 254) + 1 }

// backoff is the time to the next event when nothing happens: it doubles with
// each, and differs between resources by a fifth up and down.
func (p Policy) backoff(s State) time.Duration {
	d := p.MaxRetry
	if n := int(s.Attempts) - 1; n < 30 && p.MinRetry<<max(n, 0) < p.MaxRetry {
		d = p.MinRetry << max(n, 0)
	}
	spread, _ := bits.Mul64(mix(s.Salt+uint64(s.Attempts)), 1000) // 0 to 999
	return d * time.Duration(800+spread*400/1000) / 1000
}

// mix spreads a number over all 64 bits (splitmix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
