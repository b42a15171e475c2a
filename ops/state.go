package ops

import (
	"encoding/json"
	"time"
)

// Status is how far an operation has come.
type Status string

// The statuses. Accepted and Running are active, the others terminal.
const (
	Accepted  Status = "Accepted" // no process has worked on it yet
	Running   Status = "Running"
	Succeeded Status = "Succeeded"
	Failed    Status = "Failed"
	Canceled  Status = "Canceled"
)

// IsTerminal reports whether an operation with this status has ended.
func (s Status) IsTerminal() bool { return s == Succeeded || s == Failed || s == Canceled }

// Request names what an operation does to its resource, such as Create. Each service has its own names.
type Request string

// Error is why an operation failed or was canceled. Customers read it.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Target  string `json:"target,omitempty"` // the path of a field, or the id of a resource
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Order is the part of an operation that never changes: what was requested, and of which resource.
type Order struct {
	ID       string  `json:"id"`
	Scope    string  `json:"scope"`    // the owner of operations that are listed together
	Resource string  `json:"resource"` // names the resource within the scope
	Request  Request `json:"request"`
	// Parameters are the service's own, such as the path of the resource.
	Parameters json.RawMessage `json:"parameters,omitempty"`
	// Budget is how long the operation may take with all of its retries. It then fails.
	Budget time.Duration `json:"budget"`
	// NotificationURI gets one POST when the operation has ended; "": none.
	NotificationURI string `json:"notificationUri,omitempty"`
}

// Lease is the right of one process to work on an operation until a time.
type Lease struct {
	Holder string    `json:"holder"`
	Until  time.Time `json:"until"`
}

// Step is one imperative step that the worker has done and must not do again.
type Step struct {
	Name   string          `json:"name"`
	At     time.Time       `json:"at"`
	Result json.RawMessage `json:"result,omitempty"`
}

// Notification records the attempts to notify the caller of the end of an operation.
type Notification struct {
	Pending   bool      `json:"pending"`
	Attempts  int       `json:"attempts,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	GiveUpAt  time.Time `json:"giveUpAt"`
	Failure   string    `json:"failure,omitempty"` // of the last attempt
}

// State is an operation at one moment.
type State struct {
	Order `json:"-"`

	Status    Status    `json:"status"`
	Phase     string    `json:"phase,omitempty"` // what the operation waits for, in one word
	Percent   int       `json:"percent"`         // never decreases
	Error     *Error    `json:"error,omitempty"`
	StartedAt time.Time `json:"startedAt"`
	ChangedAt time.Time `json:"changedAt"` // of the status
	EndedAt   time.Time `json:"endedAt,omitzero"`

	// Fence counts the leases of the operation. An event of a worker names the fence of its lease, and
	// is refused when another process has taken a later lease.
	Fence int64  `json:"fence"`
	Lease *Lease `json:"lease,omitempty"`

	// Attempts counts failures since the last progress; Failure describes the last one. No attempt
	// begins before NotBefore.
	Attempts  int       `json:"attempts,omitempty"`
	Failure   string    `json:"failure,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`

	Journal      []Step          `json:"journal,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"` // of the service, for a succeeded operation
	Notification *Notification   `json:"notification,omitempty"`
}

// New returns the state of an operation that is accepted now.
func New(o Order, now time.Time) State {
	return State{Order: o, Status: Accepted, StartedAt: now, ChangedAt: now}
}

// Deadline is when the budget of the operation ends.
func (s State) Deadline() time.Time { return s.StartedAt.Add(s.Budget) }

// StepDone returns the entry of the journal for a step, and whether the worker has done that step.
func (s State) StepDone(name string) (Step, bool) {
	for _, step := range s.Journal {
		if step.Name == name {
			return step, true
		}
	}
	return Step{}, false
}

// isLeased reports whether a process holds the operation at a time.
func (s State) isLeased(now time.Time) bool { return s.Lease != nil && now.Before(s.Lease.Until) }

// hasPendingNotification reports whether the operation has ended and its notification must still be sent.
func (s State) hasPendingNotification() bool {
	return s.Status.IsTerminal() && s.Notification != nil && s.Notification.Pending
}

// dueAt is when the next attempt may begin: at the work, or at the notification of a terminal operation.
func (s State) dueAt() time.Time {
	if s.hasPendingNotification() {
		return s.Notification.NotBefore
	}
	return s.NotBefore
}
