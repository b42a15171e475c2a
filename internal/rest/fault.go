package rest

import (
	"net/http"
	"time"
)

// Fault is a kind of failure that every service of the region answers with the same HTTP status. The service
// chooses the code and the text of the answer.
type Fault int

// The faults. Nothing was written, except perhaps with FaultUnknownOutcome.
const (
	FaultNotFound       Fault = iota + 1 // the object does not exist
	FaultExists                          // an object of that name or id exists
	FaultStale                           // the write names another version than the stored one
	FaultGone                            // the cursor of a watch is too old
	FaultInvalid                         // the database cannot store the value
	FaultUnavailable                     // the database or the broker is down
	FaultBusy                            // transactions conflict again and again
	FaultTimeout                         // the database took longer than a statement may
	FaultFull                            // the database's disk is full; reads go on
	FaultUnknownOutcome                  // the connection broke at the commit: it may have been written
)

// faultStatuses is the one table from faults to HTTP statuses. Decision 50 has the reasons.
var faultStatuses = map[Fault]struct {
	status     int
	retryAfter time.Duration
}{
	FaultNotFound:       {http.StatusNotFound, 0},
	FaultExists:         {http.StatusConflict, 0},
	FaultStale:          {http.StatusPreconditionFailed, 0},
	FaultGone:           {http.StatusGone, 0},
	FaultInvalid:        {http.StatusBadRequest, 0},
	FaultUnavailable:    {http.StatusServiceUnavailable, time.Second},
	FaultBusy:           {http.StatusServiceUnavailable, time.Second},
	FaultTimeout:        {http.StatusGatewayTimeout, time.Second},
	FaultFull:           {http.StatusInsufficientStorage, 10 * time.Second},
	FaultUnknownOutcome: {http.StatusServiceUnavailable, time.Second},
}

// Errorf returns the Error that answers a fault, with a code and a reason.
func (f Fault) Errorf(code, format string, args ...any) *Error {
	a, known := faultStatuses[f]
	if !known {
		a.status = http.StatusInternalServerError
	}
	e := Errorf(a.status, code, format, args...)
	e.RetryAfter = a.retryAfter
	return e
}
