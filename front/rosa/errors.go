package rosa

import (
	"errors"
	"net/http"
	"time"

	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// Codes of errors: those of the contract, and those that it lacks.
const (
	codeNotFound     = "not-found"
	codePrecondition = "precondition-failed"
	codeGone         = "gone"
	codeUnavailable  = "maestro-unavailable"
	codeTooMany      = "too-many-watches"
	codeInUse        = "management-cluster-in-use"
	codeNoLifecycle  = "clm-unavailable"
	codeQuota        = "quota-exceeded"

	codeMissingName    = "missing-name"
	codeMissingCluster = "missing-cluster-id"
	codeMissingData    = "missing-data"
	codeInvalidData    = "invalid-data"
	codeInvalidWork    = "invalid-manifestwork"
	codeInvalidType    = "invalid-manifestwork-type"
	codeBadFields      = "maestro-21" // of Maestro's REST API, too
)

// classify gives an error of Maestro the answer of this API. An error of the
// caller keeps its status; an error between Maestro and the Platform API becomes
// 502 or 503. It returns nil for every other error.
func classify(err error) *rest.Error {
	e, ok := errors.AsType[*remote.Error](err)
	if !ok {
		return nil
	}
	answer := func(status int, code, reason string) *rest.Error {
		r := rest.Errorf(status, code, "%s", reason).Because(err)
		r.RetryAfter = e.RetryAfter
		return r
	}
	switch e.Status {
	case http.StatusTooManyRequests:
		return answer(e.Status, codeTooMany, e.Reason)
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		reason := "Maestro, which keeps management clusters and work, does not answer; try again"
		if e.Code != remote.CodeUnreachable {
			reason = "Maestro, which keeps management clusters and work, is unavailable: " + e.Reason
		}
		r := answer(http.StatusServiceUnavailable, codeUnavailable, reason)
		r.RetryAfter = max(r.RetryAfter, time.Second)
		return r
	case http.StatusInsufficientStorage:
		return answer(e.Status, e.Code, e.Reason)
	case http.StatusNotFound:
		return answer(e.Status, codeNotFound, e.Reason)
	case http.StatusPreconditionFailed:
		return answer(e.Status, codePrecondition, e.Reason)
	case http.StatusGone:
		return answer(e.Status, codeGone, e.Reason)
	case http.StatusRequestEntityTooLarge:
		return answer(e.Status, rest.CodeTooLarge, e.Reason)
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMethodNotAllowed:
		// Maestro refuses the Platform API; the caller can do nothing.
		return answer(http.StatusBadGateway, e.Code, "Maestro refuses the Platform API: "+e.Reason)
	}
	if e.Status >= 400 && e.Status < 500 {
		return answer(e.Status, e.Code, e.Reason)
	}
	return answer(http.StatusBadGateway, e.Code, "Maestro failed: "+e.Reason)
}

// replaceStatus replaces an error with one status by as, and returns other errors
// as they are. An empty code in as keeps the code of the error.
func replaceStatus(err error, status int, as *rest.Error) error {
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != status {
		return err
	}
	r := as.Because(err)
	if r.Code == "" {
		r.Code = e.Code
	}
	return r
}

// noWork returns the answer when there is no such work.
func noWork(id string) *rest.Error {
	return rest.Errorf(http.StatusNotFound, codeNotFound, "there is no work %s; GET /api/v0/work lists those there are",
		quote(id))
}

// versionMismatch returns the answer to a write whose If-Match names another
// version.
func versionMismatch(what noun) *rest.Error {
	return rest.Errorf(http.StatusPreconditionFailed, codePrecondition,
		"the %s has changed since the version in If-Match; GET it, and decide again", what)
}
