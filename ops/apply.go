package ops

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// EventKind is the kind of an event.
type EventKind string

// The kinds of events. Cancel and Acquire come without a lease; all others come from the holder of
// the lease whose fence the event names.
const (
	Acquire  EventKind = "acquire"  // a process takes the lease
	Renew    EventKind = "renew"    // the holder keeps the lease
	Release  EventKind = "release"  // the holder gives the lease up; another process continues
	Progress EventKind = "progress" // the worker has come further, or waits
	Retry    EventKind = "retry"    // an attempt failed, and may succeed later
	Succeed  EventKind = "succeed"
	Fail     EventKind = "fail"   // no attempt can succeed
	Cancel   EventKind = "cancel" // another request takes the place of the operation
	// Notified and NotifyFailed are about the notification of a terminal operation.
	Notified     EventKind = "notified"
	NotifyFailed EventKind = "notify-failed"
)

// Event is a change for Apply to make to an operation. Only the fields of its kind are used.
type Event struct {
	Kind  EventKind
	Fence int64 // of the lease; not for Acquire and Cancel

	Holder string        // Acquire
	For    time.Duration // Acquire and Renew: how long the lease lasts

	Phase   string          // Progress
	Percent int             // Progress
	Step    *Step           // Progress: an imperative step is done
	Error   *Error          // Retry, Fail, Cancel, NotifyFailed
	Result  json.RawMessage // Succeed
}

// Effect is the action of the caller of Apply after it has committed the new state.
type Effect string

// The effects.
const (
	StartWork        Effect = "start-work"     // call the worker
	FreeResource     Effect = "free-resource"  // in the same transaction: the resource is not busy any more
	RetryLater       Effect = "retry-later"    // at NotBefore
	SendNotification Effect = "send-notice"    // to the notification URI, at Notification.NotBefore
	ForgetHolding    Effect = "forget-holding" // the process does not hold the operation any more
)

// Errors of Apply.
var (
	// ErrEnded: the operation is terminal, and the event is for active ones.
	ErrEnded = errors.New("the operation has ended")
	// ErrFenced: another process has taken a later lease, or the lease has expired.
	ErrFenced = errors.New("the lease of the operation is lost")
	// ErrLeased: another process holds the operation.
	ErrLeased = errors.New("another process holds the operation")
	// ErrTooEarly: the pause after a failure has not passed.
	ErrTooEarly = errors.New("the next attempt is not due yet")
)

// Bounds of the pauses between attempts.
const (
	firstPause   = time.Second
	longestPause = time.Minute
	// notificationBudget is how long the engine tries to send a notification.
	notificationBudget = time.Hour
)

// CodeDeadline is the code of an operation that failed because its budget ended.
const CodeDeadline = "OperationTimedOut"

// Apply returns the state after an event, and the effects of the event. It changes nothing when it
// returns an error. A worker's event after the budget that is neither success nor failure ends the
// operation as failed, so every operation that a process works on ends.
func (s State) Apply(e Event, now time.Time) (State, []Effect, error) {
	switch e.Kind {
	case Acquire:
		return s.acquire(e, now)
	case Cancel:
		if s.Status.IsTerminal() {
			return s, nil, ErrEnded
		}
		return s.finish(Canceled, e.Error, now)
	}
	if s.Lease == nil || e.Fence != s.Fence || !now.Before(s.Lease.Until) {
		if s.Status.IsTerminal() && s.Notification == nil {
			return s, nil, ErrEnded
		}
		return s, nil, ErrFenced
	}
	switch e.Kind {
	case Notified, NotifyFailed:
		return s.recordNotification(e, now)
	case Release:
		s.Lease = nil
		return s, []Effect{ForgetHolding}, nil
	case Renew:
		s.Lease = &Lease{Holder: s.Lease.Holder, Until: now.Add(e.For)}
		if s.Status.IsTerminal() {
			return s, nil, nil
		}
		return s.failAfterBudget(now, nil)
	}
	if s.Status.IsTerminal() {
		return s, nil, ErrEnded
	}
	switch e.Kind {
	case Progress:
		s.storeProgress(e, now)
		return s.failAfterBudget(now, nil)
	case Retry:
		return s.recordFailedAttempt(e, now)
	case Succeed:
		s.Result = e.Result
		return s.finish(Succeeded, nil, now)
	case Fail:
		return s.finish(Failed, e.Error, now)
	}
	return s, nil, fmt.Errorf("the event %q is unknown", e.Kind)
}

// acquire gives the lease to a process, with the next fence. A terminal operation can be leased while its notification
// is pending.
func (s State) acquire(e Event, now time.Time) (State, []Effect, error) {
	pendingNotification := s.Notification != nil && s.Notification.Pending
	switch {
	case s.Status.IsTerminal() && !pendingNotification:
		return s, nil, ErrEnded
	case s.isLeased(now):
		return s, nil, ErrLeased
	case s.Status.IsTerminal() && now.Before(s.Notification.NotBefore), now.Before(s.NotBefore):
		return s, nil, ErrTooEarly
	}
	s.Fence++
	s.Lease = &Lease{Holder: e.Holder, Until: now.Add(e.For)}
	if s.Status.IsTerminal() {
		return s, []Effect{SendNotification}, nil
	}
	if s.Status == Accepted {
		s.Status, s.ChangedAt = Running, now
	}
	return s, []Effect{StartWork}, nil
}

// storeProgress stores phase, percentage and step of an event, and resets the count of failures. A step that is in the
// journal already stays as it is.
func (s *State) storeProgress(e Event, now time.Time) {
	s.Phase, s.Percent = e.Phase, max(s.Percent, min(e.Percent, 99))
	s.Attempts, s.Failure, s.NotBefore = 0, "", time.Time{}
	if e.Step == nil {
		return
	}
	if _, done := s.StepDone(e.Step.Name); !done {
		step := *e.Step
		step.At = now
		s.Journal = append(s.Journal[:len(s.Journal):len(s.Journal)], step)
	}
}

// alreadyHas reports whether an event is progress that is stored already: its commit would change nothing.
func (s State) alreadyHas(e Event) bool {
	return e.Kind == Progress && e.Phase == s.Phase && min(e.Percent, 99) <= s.Percent && s.Attempts == 0 &&
		s.NotBefore.IsZero() && e.Step == nil
}

// recordFailedAttempt counts a failure and ends the lease. The next attempt begins after a pause that doubles with each
// failure, from 1 s to 1 min. If the budget has ended, the operation fails instead.
func (s State) recordFailedAttempt(e Event, now time.Time) (State, []Effect, error) {
	s.Attempts++
	s.NotBefore = now.Add(min(firstPause<<min(s.Attempts-1, 10), longestPause))
	if e.Error != nil {
		s.Failure = e.Error.Message
	}
	after, effects, err := s.failAfterBudget(now, e.Error)
	if len(effects) > 0 || err != nil {
		return after, effects, err
	}
	after.Lease = nil
	return after, []Effect{RetryLater, ForgetHolding}, nil
}

// failAfterBudget ends the operation as failed if its budget has ended, and returns it as it is before that.
func (s State) failAfterBudget(now time.Time, last *Error) (State, []Effect, error) {
	if now.Before(s.Deadline()) {
		return s, nil, nil
	}
	e := &Error{Code: CodeDeadline, Message: fmt.Sprintf("the operation did not end within %s", s.Budget)}
	switch {
	case last != nil:
		e.Message += "; the last failure: " + last.Message
		e.Target = last.Target
	case s.Phase != "":
		e.Message += "; it waited for " + s.Phase
	}
	return s.finish(Failed, e, now)
}

// finish makes the operation terminal and ends its lease. If it has a NotificationURI, a notification is then due.
func (s State) finish(status Status, e *Error, now time.Time) (State, []Effect, error) {
	s.Status, s.Error, s.ChangedAt, s.EndedAt = status, e, now, now
	s.Lease, s.NotBefore, s.Attempts, s.Failure = nil, time.Time{}, 0, ""
	effects := []Effect{FreeResource, ForgetHolding}
	if status == Succeeded {
		s.Percent = 100
	}
	if s.NotificationURI != "" {
		s.Notification = &Notification{Pending: true, NotBefore: now, GiveUpAt: now.Add(notificationBudget)}
		effects = append(effects, SendNotification)
	}
	return s, effects, nil
}

// recordNotification stores whether an attempt to send the notification succeeded. It gives up after
// notificationBudget.
func (s State) recordNotification(e Event, now time.Time) (State, []Effect, error) {
	if s.Notification == nil || !s.Notification.Pending {
		return s, nil, ErrEnded
	}
	n := *s.Notification
	s.Notification, s.Lease = &n, nil
	n.Attempts++
	if e.Kind == Notified {
		n.Pending, n.Failure = false, ""
		return s, []Effect{ForgetHolding}, nil
	}
	if e.Error != nil {
		n.Failure = e.Error.Message
	}
	n.NotBefore = now.Add(min(firstPause<<min(n.Attempts-1, 10), longestPause))
	if !n.NotBefore.Before(n.GiveUpAt) {
		n.Pending = false
		return s, []Effect{ForgetHolding}, nil
	}
	return s, []Effect{SendNotification, ForgetHolding}, nil
}
