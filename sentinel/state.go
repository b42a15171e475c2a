package sentinel

import (
	"math/bits"
	"time"
)

// State is what a sentinel remembers of one resource. It is small and holds no
// document: 50,000 states take a few megabytes. The methods of Policy compute the
// next state from an event and the time; they have no other effect.
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
	Forced bool    // a request asks for an event, also when the decision is false
	Urgent bool    // a user waits for the event that is due; events of timers are not urgent
	Due    instant // when to decide; 0: not before the next change or request
	Unsent uint64  // the first round of the feed whose event may still be unsent; 0: there is none

	RequestedAt  instant // when the broker took the last requested event; 0: never
	ForcedAgain  bool    // another request came while an event was in flight
	BudgetFullAt instant // when the budget of events for reports is full again

	Sending     bool   // an event is in flight to the broker
	SentGen     int64  // the generation of the event in flight
	UnsentLater uint64 // Unsent, for changes since the event in flight was sent
	Next        After  // the decision after the event in flight
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

// After is the decision after an event: it is still true (Wanted), or becomes true by
// itself at Flip (0: never).
type After struct {
	Wanted bool
	Flip   instant
}

// Policy limits how often one resource has events.
type Policy struct {
	Debounce time.Duration // from a report to its event, so that several reports have one; default 5 ms
	MinRetry time.Duration // the first back-off between two events without progress; default 1 s
	MaxRetry time.Duration // the longest back-off, which doubles with each event; default 5 min
	// Burst and Refill are the budget of events for reports: Burst events at once, and
	// one more after each Refill. Without a budget, an adapter whose reports differ each
	// time would cause its own events without end. Defaults 30, and 30 s.
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

// ApplyChange handles a document from the feed. A change by its writer is urgent; so
// is a report, while the budget of events for reports lasts. A document that
// differs in times only changes nothing.
func (p Policy) ApplyChange(s State, c Change, now time.Time) State {
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
		s.due(at, Urgent)
		s.markUnsent(c.Round)
	case report:
		// No event is marked as unsent: the next holder of the slot asks the rules, which give the same answer.
		refill := instant(p.Refill.Microseconds())
		if ready := s.BudgetFullAt - instant(p.Burst-1)*refill; ready > at {
			s.due(ready, Routine)
			break
		}
		if s.BudgetFullAt < at+instant(p.Burst/2)*refill {
			s.Attempts = 0 // reports are rare enough to count as progress
		}
		s.BudgetFullAt = max(s.BudgetFullAt, at) + refill
		s.due(at.add(p.Debounce), Urgent)
	}
	return s
}

// ApplyUnseen handles a document of a list that lies after the slot's cursor: its last event is not known, so that the
// document counts as just changed.
func (p Policy) ApplyUnseen(s State, c Change, urgency Urgency, now time.Time) State {
	switch {
	case c.Version < s.Version:
		return s // the feed brought a newer version before the list
	case c.Version == s.Version && (s.Unsent != 0 || s.Published == c.Generation && s.PublishedAt != 0):
		return s // it is marked already, or its event has been sent since
	}
	s.Version, s.Generation, s.Mark, s.Deleting = c.Version, c.Generation, c.Mark, c.Deleting
	s.Published, s.Attempts = 0, 0
	s.due(instantOf(now), urgency)
	s.markUnsent(c.Round)
	return s
}

// ApplyListed handles a document of a list whose events have all been sent. after is the present decision about it.
func (p Policy) ApplyListed(s State, c Change, after After, now time.Time) State {
	switch {
	case c.Version <= s.Version:
		return s // the feed brought this version, or a newer one, before the list
	case s.Version != 0:
		return p.ApplyChange(s, c, now) // the list brought a newer version before the feed
	}
	s.Version, s.Generation, s.Mark, s.Deleting = c.Version, c.Generation, c.Mark, c.Deleting
	s.Published, s.Wanted = c.Generation, after.Wanted
	if s.Due = after.Flip; after.Wanted {
		s.Due = instantOf(now)
	}
	return s
}

// ApplyRequest handles a request for an event of an unchanged document. Its event is sent also when the decision is
// false.
func (p Policy) ApplyRequest(s State, urgency Urgency, round uint64, now time.Time) State {
	if s.Sending {
		s.ForcedAgain = true
	} else {
		s.Forced = true
	}
	s.markUnsent(round)
	s.Attempts = 0
	s.due(instantOf(now), urgency)
	return s
}

// ApplyRecheck makes the next decision about an unchanged document due, if the last decision was true or an event is
// unsent: after the connection of the bus or of an adapter was down, or after a related document changed.
func (p Policy) ApplyRecheck(s State, urgency Urgency, now time.Time) State {
	if !s.Wanted && !s.Forced && s.Unsent == 0 {
		return s
	}
	s.Attempts = 0
	if s.Unsent != 0 {
		urgency = Urgent
	}
	s.due(instantOf(now), urgency)
	return s
}

// ApplyConnect handles an adapter that has just connected, which has received none
// of the earlier events: wanted and unsent events are sent again, and so are events
// that were requested within Remember, also if another adapter has received them.
func (p Policy) ApplyConnect(s State, now time.Time) State {
	if !pending(s) && (s.RequestedAt == 0 || s.RequestedAt.add(p.Remember) < instantOf(now)) {
		return s
	}
	if !pending(s) {
		s.Forced = true
		s.Attempts = 0
		s.due(instantOf(now), Routine)
		return s
	}
	return p.ApplyRecheck(s, Routine, now)
}

// Verdict is the result of the rules for a state that is due: an event is needed, with
// the decision after it; or no event is needed before Flip; or the rules failed.
type Verdict struct {
	Wanted bool
	Failed bool
	After  After   // the decision after an event
	Flip   instant // when the decision becomes true without an event; 0: never
}

// ApplyVerdict applies a verdict, and returns whether to send an event now. After a
// failure the resource is due again with back-off. Its event is not unsent then,
// so that a resource whose rules always fail does not hold back its slot's
// cursor. States whose event is on its way must not be passed.
func (p Policy) ApplyVerdict(s State, v Verdict, now time.Time) (State, bool) {
	at := instantOf(now)
	s.Due, s.Urgent = 0, false
	switch {
	case s.Forced && v.Failed:
		v.After.Wanted = true // the resource is due again with back-off
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

// Outcome is what became of a sent event.
type Outcome bool

// The outcomes of a sent event.
const (
	Delivered   Outcome = true
	Undelivered Outcome = false // the broker did not take it, or no adapter was subscribed
)

// ApplyOutcome applies the outcome of an event.
func (p Policy) ApplyOutcome(s State, outcome Outcome, now time.Time) State {
	at := instantOf(now)
	s.Sending = false
	if outcome == Undelivered {
		s.Attempts, s.Forced, s.ForcedAgain = bump(s.Attempts), s.Forced || s.ForcedAgain, false
		s.Unsent, s.UnsentLater = s.unsentSince(), 0
		s.due(at.add(p.backoff(s)), Routine)
		return s
	}
	if s.Forced && s.Unsent != 0 { // a request; an event that is sent again to an adapter that connects is none
		s.RequestedAt = at
	}
	s.Published, s.PublishedAt, s.Attempts = s.SentGen, at, bump(s.Attempts)
	s.Forced, s.ForcedAgain = s.ForcedAgain, false
	s.Unsent, s.UnsentLater = s.UnsentLater, 0
	if s.Wanted = s.Next.Wanted; s.Due != 0 {
		return s // a change or a request came while the event was in flight
	}
	if s.Wanted {
		s.Due = at.add(p.backoff(s))
	} else {
		s.Attempts, s.Due = 0, s.Next.Flip
	}
	return s
}

// Urgency says whether a user waits for an event.
type Urgency bool

// The urgencies of events.
const (
	Routine Urgency = false // a timer or a new connection caused the event
	Urgent  Urgency = true  // a change or a request of a user caused the event
)

// due makes a state due at a time, or earlier if it already is.
func (s *State) due(at instant, urgency Urgency) {
	if s.Due == 0 || at < s.Due {
		s.Due = max(at, 1)
	}
	s.Urgent = s.Urgent || urgency == Urgent
}

// markUnsent notes a round of the feed whose event is still to be sent.
func (s *State) markUnsent(round uint64) {
	first := &s.Unsent
	if s.Sending {
		first = &s.UnsentLater
	}
	if *first == 0 || round < *first {
		*first = round
	}
}

// unsentSince returns the first round whose event is still to be sent, 0 if there is none.
func (s State) unsentSince() uint64 {
	if s.Unsent == 0 || s.UnsentLater != 0 && s.UnsentLater < s.Unsent {
		return s.UnsentLater
	}
	return s.Unsent
}

func bump(n uint8) uint8 { return min(n, 254) + 1 }

// backoff returns the time to the next event without progress. It doubles with each
// event, up to MaxRetry, and is spread between resources by a fifth up and down.
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
