package access

import (
	"context"
	"time"

	"atoll.dev/internal/rest"
)

// Method is a way to prove an identity.
type Method string

// Methods. Each region is configured with the methods that it accepts.
const (
	BySignature Method = "sigv4"           // a signature in the Authorization header, by a key of the region
	ByPresigned Method = "sigv4-presigned" // the same in the query
	ByGateway   Method = "api-gateway"     // headers of API Gateway, with its secret
	BySTS       Method = "sts"             // a presigned sts:GetCallerIdentity
	ByOIDC      Method = "oidc"            // a token of the configured issuer
)

// Evidence is how the sender of a request proved its identity. It has no secret, and audit records
// keep it.
type Evidence struct {
	Method Method `json:"method"`
	// Credential identifies the credential that an operator can disable: an access key id, or the id of the link of an
	// external identity. It is empty for the other methods.
	Credential string `json:"credential,omitempty"`
	// Subject is the name of the sender in the system that identified it: AWS's unique user id, or the
	// subject of a token.
	Subject string `json:"subject,omitempty"`
	Issuer  string `json:"issuer,omitempty"` // of the token
	Session string `json:"session,omitempty"`
	// Until is the end of temporary credentials and tokens, and of a presigned request; zero: the proof has no
	// end of its own.
	Until time.Time `json:"until,omitzero"`
}

// Validity ends requests that last longer than the credential that proved their sender.
type Validity interface {
	// OnInvalid calls end once when the credential of caller is disabled or deleted, or cannot be
	// confirmed any more; at once when that has happened already. end must not block. After stop
	// has returned there is no call. Several goroutines may call OnInvalid.
	OnInvalid(caller Identity, end func(cause error)) (stop func())
}

// watchLease cancels an open watch when the credential of its caller ends. Its methods may be called
// from several goroutines.
type watchLease struct {
	release chan func() // has the function that ends the lease, or nil before the watch opens
}

// newWatchLease returns the lease of a request that is no open watch yet.
func newWatchLease() *watchLease {
	l := &watchLease{release: make(chan func(), 1)}
	l.release <- nil
	return l
}

// open makes the router cancel the watch of caller from now on. The cause is a *rest.Error.
func (l *watchLease) open(validity Validity, caller Identity, cancel context.CancelCauseFunc) {
	release := <-l.release
	if release == nil {
		release = func() {}
		var timer *time.Timer
		if until := caller.Evidence.Until; !until.IsZero() {
			timer = time.AfterFunc(time.Until(until), func() { cancel(endOf(caller.Evidence)) })
			release = func() { timer.Stop() }
		}
		if validity != nil {
			stop, stopTimer := validity.OnInvalid(caller, cancel), release
			release = func() { stop(); stopTimer() }
		}
	}
	l.release <- release
}

// end makes the router cancel the watch no more.
func (l *watchLease) end() {
	if release := <-l.release; release != nil {
		release()
	}
	l.release <- func() {}
}

// endOf is the refusal of a watch whose proof has ended.
func endOf(e Evidence) *rest.Error {
	until := e.Until.UTC().Format(time.RFC3339)
	switch e.Method {
	case ByPresigned:
		return refuse(ExpiredCredentials, "the presigned request, or the credentials that signed it, expired at %s; sign "+
			"again, and watch from the last cursor", until)
	case ByGateway:
		return refuse(ExpiredCredentials, "a watch through the gateway lasts %s, until %s; watch again from the last cursor",
			gatewayWatch, until)
	}
	return expired(e.Until)
}

// expired is the refusal of temporary credentials after their end.
func expired(until time.Time) *rest.Error {
	return refuse(ExpiredCredentials, "the credentials expired at %s; get new ones", until.UTC().Format(time.RFC3339))
}
