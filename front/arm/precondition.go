package arm

import (
	"net/http"
	"strings"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// preconditions are the entity tags that a request names.
type preconditions struct{ match, noneMatch string }

func preconditionsOf(h http.Header) preconditions {
	return preconditions{h.Get("If-Match"), h.Get("If-None-Match")}
}

// check refuses a request whose conditions the resource does not meet; have is nil if none exists.
func (c preconditions) check(have *resource) error {
	switch {
	case c.match != "" && (have == nil || c.match != "*" && !hasTag(c.match, have.etag())),
		c.noneMatch != "" && have != nil && (c.noneMatch == "*" || hasTag(c.noneMatch, have.etag())):
		return preconditionFailed()
	}
	return nil
}

// translateStale turns the store's error about a stale version into the answer 412 when the request has an
// If-Match. It returns all other errors as they are.
func (c preconditions) translateStale(err error) error {
	if fault, known := store.FaultOf(err); known && fault == rest.FaultStale && c.match != "" && c.match != "*" {
		return preconditionFailed()
	}
	return err
}

func hasTag(header, tag string) bool {
	for one := range strings.SplitSeq(header, ",") {
		if strings.TrimSpace(one) == tag {
			return true
		}
	}
	return false
}

func preconditionFailed() error {
	return rest.Errorf(http.StatusPreconditionFailed, codePrecondition,
		"The condition in the request header was not met; GET the resource, and decide again.")
}
