package sentinel

import (
	"math/bits"
	"time"
)

// State is the sentinel's state of one resource. It is small and has no document: 50,000 states take a few megabytes.
// The methods of Policy are pure functions: they compute the next state from the state, an event and the time.
type State struct {
	Salt         uint64 // of the resource's id: spreads its retries
	Version      int64  // of the newest document
	Generation   int64
	ProgressHash uint64 // of the status; see progressHash
	Deleting     bool

	Published   int64   // the generation of the last event that the broker acknowledged; 0: none
	PublishedAt instant // when; 0: not known
	Attempts    uint8   // events since the resource made progress

	Wanted    bool    // the last decision of the rules
	Requested bool    // a request is unanswered; its event does not depend on the rules
	Urgent    bool    // see Urgency
	Due       instant // of the next decision; 0: none before the next change or request
	Unsent    uint64  // the first round of the feed whose event may be unsent; 0: none

	RequestedAt    instant // when the broker acknowledged the last requested event; 0: never
	RequestedAgain bool    // another request came while an event was in flight
	BudgetFullAt   instant // when the budget of events for reports is full again

	Sending           bool         // an event is in flight to the broker
	SendingGeneration int64        // of the event in flight
	UnsentLater       uint64       // Unsent, for changes since the event in flight was sent
	AfterSending      NextDecision // the decision after the event in flight
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

// NextDecision is the decision of the rules after an event, if the resource does not change: Wanted, or not before
// TrueAt (0: never).
type NextDecision struct {
	Wanted bool
	TrueAt instant
}

// Policy limits how often one resource has events.
type Policy struct {
	Debounce time.Duration // from a report to its event, so that several reports have one; default 5 ms
	MinRetry time.Duration // the first back-off between two events without progress; default 1 s
	MaxRetry time.Duration // the longest back-off, which doubles with each event; default 5 min
	// Burst and Refill are the budget of events for reports of one resource: Burst events at once, and
	// one more after each Refill. Without a budget, an adapter whose reports differ each
	// time would cause an endless loop of reports and events. Defaults 30, and 30 s.
	Burst  int
	Refill time.Duration
	// Remember is for how long after a requested event the sentinel sends it again when an adapter
	// connects; default 15 min.
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
	ProgressHash        uint64
	Deleting            bool
	Round               uint64 // of the feed that brought it
}

// ApplyChange handles a document from the feed:
//   - of an older or equal version: nothing changes;
//   - with another generation, or deleted: an urgent event is due, and unsent until the broker acknowledges it;
//   - with another status: an event is due, urgent while the budget for reports lasts;
//   - with other times only: the version changes.
func (p Policy) ApplyChange(s State, c Change, now time.Time) State {
	if c.Version <= s.Version {
		return s
	}
	at := instantOf(now)
	spec := s.Version == 0 || c.Generation != s.Generation || c.Deleting != s.Deleting
	report := c.ProgressHash != s.ProgressHash
	s.Version, s.Generation, s.ProgressHash, s.Deleting = c.Version, c.Generation, c.ProgressHash, c.Deleting
	switch {
	case spec:
		s.Attempts = 0
		s.makeDue(at, Urgent)
		s.markUnsent(c.Round)
	case report:
		// No event is marked as unsent: the next holder of the slot evaluates the rules, with the same result.
		refill := instant(p.Refill.Microseconds())
		if ready := s.BudgetFullAt - instant(p.Burst-1)*refill; ready > at {
			s.makeDue(ready, Routine)
			break
		}
		if s.BudgetFullAt < at+instant(p.Burst/2)*refill {
			s.Attempts = 0 // reports are rare enough to count as progress
		}
		s.BudgetFullAt = max(s.BudgetFullAt, at) + refill
		s.makeDue(at.add(p.Debounce), Urgent)
	}
	return s
}

// ApplyUnsent handles a listed document that lies after the slot's saved cursor. The last holder of the slot may not
// have sent its event, so the document counts as just changed, unless the state knows better.
func (p Policy) ApplyUnsent(s State, c Change, urgency Urgency, now time.Time) State {
	switch {
	case c.Version < s.Version:
		return s // the feed had a newer version before the list
	case c.Version == s.Version && (s.Unsent != 0 || s.Published == c.Generation && s.PublishedAt != 0):
		return s // it is marked already, or its event has been sent since
	}
	s.Version, s.Generation, s.ProgressHash, s.Deleting = c.Version, c.Generation, c.ProgressHash, c.Deleting
	s.Published, s.Attempts = 0, 0
	s.makeDue(instantOf(now), urgency)
	s.markUnsent(c.Round)
	return s
}

// ApplyListed handles a listed document whose events have all been sent. after is the present decision on it.
func (p Policy) ApplyListed(s State, c Change, after NextDecision, now time.Time) State {
	switch {
	case c.Version <= s.Version:
		return s // the feed had this version, or a newer one, before the list
	case s.Version != 0:
		return p.ApplyChange(s, c, now) // the list had a newer version before the feed
	}
	s.Version, s.Generation, s.ProgressHash, s.Deleting = c.Version, c.Generation, c.ProgressHash, c.Deleting
	s.Published, s.Wanted = c.Generation, after.Wanted
	if s.Due = after.TrueAt; after.Wanted {
		s.Due = instantOf(now)
	}
	return s
}

// ApplyRequest handles a request for an event of an unchanged document. Its event is sent also when the decision is
// false.
func (p Policy) ApplyRequest(s State, urgency Urgency, round uint64, now time.Time) State {
	if s.Sending {
		s.RequestedAgain = true
	} else {
		s.Requested = true
	}
	s.markUnsent(round)
	s.Attempts = 0
	s.makeDue(instantOf(now), urgency)
	return s
}

// ApplyRecheck makes the next decision about an unchanged document due, if the last decision was true or an event is
// unsent: after the connection of the bus or of an adapter was down, or after a related document changed.
func (p Policy) ApplyRecheck(s State, urgency Urgency, now time.Time) State {
	if !s.Wanted && !s.Requested && s.Unsent == 0 {
		return s
	}
	s.Attempts = 0
	if s.Unsent != 0 {
		urgency = Urgent
	}
	s.makeDue(instantOf(now), urgency)
	return s
}

// ApplyConnect handles the connection of an adapter, which has received none of the
// earlier events: an event is due if one is wanted or unsent, and if one was requested
// within Remember, also if another adapter has received it.
func (p Policy) ApplyConnect(s State, now time.Time) State {
	if !isPending(s) && (s.RequestedAt == 0 || s.RequestedAt.add(p.Remember) < instantOf(now)) {
		return s
	}
	if !isPending(s) {
		s.Requested = true
		s.Attempts = 0
		s.makeDue(instantOf(now), Routine)
		return s
	}
	return p.ApplyRecheck(s, Routine, now)
}

// Verdict is the result of the rules for a state that is due. There are three: an event is needed (Wanted, with
// After); no event is needed before TrueAt; the rules failed (Failed).
type Verdict struct {
	Wanted bool
	Failed bool
	After  NextDecision // the decision after an event
	TrueAt instant      // when the decision becomes true without an event; 0: never
}

// ApplyVerdict applies a verdict, and returns whether to send an event now. After a
// failure the resource is due again with back-off. Its event is not unsent then,
// so that a resource whose rules always fail does not hold back its slot's
// cursor. The caller passes no state with an event in flight.
func (p Policy) ApplyVerdict(s State, v Verdict, now time.Time) (State, bool) {
	at := instantOf(now)
	s.Due, s.Urgent = 0, false
	switch {
	case s.Requested && v.Failed:
		v.After.Wanted = true // the resource is due again with back-off
	case s.Requested:
	case v.Failed:
		s.Attempts = addAttempt(s.Attempts)
		s.Due = at.add(p.backoff(s))
		s.Unsent = 0
		return s, false
	case !v.Wanted:
		s.Wanted, s.Attempts, s.Unsent = false, 0, 0
		s.Due = v.TrueAt
		return s, false
	}
	s.Wanted = v.Wanted
	s.Sending, s.SendingGeneration, s.AfterSending = true, s.Generation, v.After
	return s, true
}

// Outcome is whether the broker acknowledged a sent event.
type Outcome bool

// The outcomes of a sent event.
const (
	Delivered   Outcome = true
	Undelivered Outcome = false // the broker did not acknowledge it, or no adapter was subscribed
)

// ApplyOutcome applies the outcome of an event.
func (p Policy) ApplyOutcome(s State, outcome Outcome, now time.Time) State {
	at := instantOf(now)
	s.Sending = false
	if outcome == Undelivered {
		s.Attempts, s.Requested, s.RequestedAgain = addAttempt(s.Attempts), s.Requested || s.RequestedAgain, false
		s.Unsent, s.UnsentLater = s.unsentSince(), 0
		s.makeDue(at.add(p.backoff(s)), Routine)
		return s
	}
	if s.Requested && s.Unsent != 0 { // else the connection of an adapter caused the event
		s.RequestedAt = at
	}
	s.Published, s.PublishedAt, s.Attempts = s.SendingGeneration, at, addAttempt(s.Attempts)
	s.Requested, s.RequestedAgain = s.RequestedAgain, false
	s.Unsent, s.UnsentLater = s.UnsentLater, 0
	if s.Wanted = s.AfterSending.Wanted; s.Due != 0 {
		return s // a change or a request came while the event was in flight
	}
	if s.Wanted {
		s.Due = at.add(p.backoff(s))
	} else {
		s.Attempts, s.Due = 0, s.AfterSending.TrueAt
	}
	return s
}

// Urgency is whether a user waits for an event.
type Urgency bool

// The urgencies of events.
const (
	Routine Urgency = false // a timer or a new connection caused the event
	Urgent  Urgency = true  // a change or a request of a user caused the event
)

// makeDue makes a state due at a time, or earlier if it already is.
func (s *State) makeDue(at instant, urgency Urgency) {
	if s.Due == 0 || at < s.Due {
		s.Due = max(at, 1)
	}
	s.Urgent = s.Urgent || urgency == Urgent
}

// markUnsent records that the event for a round of the feed is unsent.
func (s *State) markUnsent(round uint64) {
	first := &s.Unsent
	if s.Sending {
		first = &s.UnsentLater
	}
	if *first == 0 || round < *first {
		*first = round
	}
}

// unsentSince returns the first round whose event is unsent, 0 if there is none.
func (s State) unsentSince() uint64 {
	if s.Unsent == 0 || s.UnsentLater != 0 && s.UnsentLater < s.Unsent {
		return s.UnsentLater
	}
	return s.Unsent
}

// addAttempt returns n + 1, at most 255.
func addAttempt(n uint8) uint8 { return min(n, 254) + 1 }

// backoff returns the time to the next event without progress. It doubles with each
// event, up to MaxRetry, and is spread between resources by a fifth up and down.
func (p Policy) backoff(s State) time.Duration {
	d := p.MaxRetry
	if n := int(s.Attempts) - 1; n < 30 && p.MinRetry<<max(n, 0) < p.MaxRetry {
		d = p.MinRetry << max(n, 0)
	}
	spread, _ := bits.Mul64(spreadBits(s.Salt+uint64(s.Attempts)), 1000) // 0 to 999
	return d * time.Duration(800+spread*400/1000) / 1000
}

// spreadBits spreads a number over all 64 bits (splitmix64).
func spreadBits(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
