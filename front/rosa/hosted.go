package rosa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster/document"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
)

// hosted serves customers' clusters, node pools and credentials, all of which
// are the lifecycle manager's. Calls about them name the caller's account as
// their tenant, so that what is another account's is not there: for privileged
// accounts, too.
type hosted struct {
	clm       *clmclient.Client // nil: the region has none
	catalogue *catalogue
	patience  time.Duration // for a credential to be signed
	placement Placement
}

// Collections of the lifecycle manager.
const (
	clusters    clmclient.Collection = "clusters"
	nodePools   clmclient.Collection = "nodepools"
	credentials clmclient.Collection = "credentials"
)

// signingTime is how long a POST of a credential waits for the certificate.
const signingTime = 15 * time.Second

func newHosted(clm *clmclient.Client) *hosted {
	return &hosted{clm: clm, catalogue: &catalogue{clm: clm}, patience: signingTime}
}

// visibility returns what a caller may read of placements. Privileged accounts are
// those of the region's operators.
func (h *hosted) visibility(who access.Identity) progress.Visibility {
	if who.Privileged || h.placement == PlacementToCustomers {
		return progress.ShowPlacement
	}
	return progress.HidePlacement
}

// exchange is one request about what is hosted.
type exchange struct {
	w          http.ResponseWriter
	r          *http.Request
	ctx        context.Context // names the tenant
	who        access.Identity
	area       string // what the codes of its errors begin with
	visibility progress.Visibility
}

// handlersOf returns a function that makes the handlers of one area's routes.
// The codes of an area's errors begin with its name and that of the operation:
// CLUSTERS-MGMT-CREATE-001.
func (h *hosted) handlersOf(area string) func(operation string, serve func(*exchange) error) rest.Handler {
	return func(operation string, serve func(*exchange) error) rest.Handler {
		return func(w http.ResponseWriter, r *http.Request) error {
			who, _ := access.FromContext(r.Context()) // access.Router refuses a request without
			c := &exchange{w: w, r: r, who: who, area: area + "-" + operation, visibility: h.visibility(who),
				ctx: clmclient.WithTenant(r.Context(), who.Account)}
			if h.clm == nil {
				return c.unavailable(errors.New("it is not configured"))
			}
			return c.explained(serve(c))
		}
	}
}

// What the numbers of codes mean, in every area.
const (
	codeBad        = "001" // the request cannot be read
	codeMissing    = "002" // there is no such thing, of this account
	codeTaken      = "003" // there is one of that name
	codeGoing      = "004" // it is being deleted
	codeProtected  = "005" // it is protected from deletion
	codeReused     = "006" // the Idempotency-Key was used for another request
	codeNotAllowed = "007"
	codeNotReady   = "008" // its control plane does not answer (yet)
)

// fail is an error with a code of this area.
func (c *exchange) fail(status int, number, format string, args ...any) *rest.Error {
	return rest.Errorf(status, c.area+"-"+number, format, args...)
}

// invalid is the answer to a request with wrong fields.
func (c *exchange) invalid(p document.Problems) error {
	area := "CLUSTERS-MGMT"
	if c.area[:9] == "NODEPOOLS" {
		area = "NODEPOOLS-MGMT"
	}
	reason := fmt.Sprintf("%s %s", p[0].Field, p[0].Message)
	if len(p) > 1 {
		reason += fmt.Sprintf("; %d fields are wrong in all, and errors names them", len(p))
	}
	e := rest.Errorf(http.StatusUnprocessableEntity, area+"-VALIDATION-001", "%s", reason)
	e.Fields = fieldErrors(p)
	return e
}

// fieldErrors gives problems the shape of the wire.
func fieldErrors(problems document.Problems) []rest.FieldError {
	fields := make([]rest.FieldError, len(problems))
	for i, p := range problems {
		fields[i] = rest.FieldError{Field: p.Field, Message: p.Message}
	}
	return fields
}

// missing is the answer when there is no such thing.
func (c *exchange) missing(what, id string) *rest.Error {
	return c.fail(http.StatusNotFound, codeMissing, "there is no %s %s; GET /api/v0/%ss lists those of your account",
		what, quote(id), map[string]string{"cluster": "cluster", "node pool": "nodepool"}[what])
}

func (c *exchange) unavailable(err error) *rest.Error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeNoLifecycle,
		"the region's lifecycle manager does not answer; try again").Because(err)
	e.RetryAfter = time.Second
	return e
}

// explained is the answer to an error of the lifecycle manager that the handler has no
// better word for.
func (c *exchange) explained(err error) error {
	if _, said := errors.AsType[*rest.Error](err); said {
		return err // in the handler's own words
	}
	e, ok := errors.AsType[*remote.Error](err)
	if !ok {
		return err
	}
	switch e.Status {
	case http.StatusTooManyRequests:
		slower := rest.Errorf(e.Status, codeTooMany, "%s", e.Reason).Because(err)
		slower.RetryAfter = max(e.RetryAfter, time.Second)
		return slower
	case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		again := c.unavailable(err)
		again.RetryAfter = max(e.RetryAfter, time.Second)
		return again
	case http.StatusBadRequest:
		if len(e.Fields) > 0 {
			var p document.Problems
			for _, f := range e.Fields {
				p.Add(f.Field, "%s", f.Message)
			}
			return c.invalid(p)
		}
		return c.fail(e.Status, codeBad, "%s", e.Reason).Because(err)
	case http.StatusNotFound:
		return c.fail(e.Status, codeMissing, "%s", e.Reason).Because(err)
	case http.StatusConflict:
		return c.fail(e.Status, codeGoing, "%s", e.Reason).Because(err)
	case http.StatusUnprocessableEntity:
		return c.fail(e.Status, codeReused, "%s", e.Reason).Because(err)
	case http.StatusPreconditionFailed:
		return rest.Errorf(e.Status, codePrecondition,
			"it is not of the version that If-Match names any more; GET it, and decide again").Because(err)
	case http.StatusGone:
		return rest.Errorf(e.Status, codeGone, "the cursor is too old; list again, and watch from there").Because(err)
	case http.StatusInsufficientStorage:
		return c.fail(e.Status, codeNotReady, "%s", e.Reason).Because(err)
	}
	// The lifecycle manager does not accept us; the caller can do nothing about it.
	return rest.Errorf(http.StatusBadGateway, codeNoLifecycle, "the region's lifecycle manager failed").Because(err)
}

// taken replaces the answer to the one conflict that is about a name. Others are
// about what is being deleted, or was made by the same Idempotency-Key.
func taken(err error, as *rest.Error) error {
	if e, ok := errors.AsType[*remote.Error](err); ok && e.Code == "HYPERFLEET-CNF-001" {
		return as.Because(err)
	}
	return err
}

// id reads an id of the path. What cannot be one, does not exist.
func (c *exchange) id(what string) (string, error) {
	id := c.r.PathValue("id")
	if _, err := uuid.Parse(id); err != nil || len(id) != 36 {
		return "", c.missing(what, id)
	}
	return id, nil
}

// bounds reads limit and offset, strictly.
func (c *exchange) bounds() (limit, offset int, err error) {
	limit = 50
	for _, p := range []struct {
		name        string
		into        *int
		least, most int
	}{{"limit", &limit, 1, 100}, {"offset", &offset, 0, 1 << 30}} {
		text := c.r.URL.Query().Get(p.name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < p.least || n > p.most {
			return 0, 0, c.fail(http.StatusBadRequest, codeBad, "%s=%s is not a whole number from %d to %d", p.name,
				rest.Shorten(text, 32), p.least, p.most)
		}
		*p.into = n
	}
	return limit, offset, nil
}

// flag reads a parameter that is true or false.
func (c *exchange) flag(name string) (bool, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, c.fail(http.StatusBadRequest, codeBad, "%s=%s is neither true nor false", name, quote(text))
	}
	return v, nil
}

// body reads the request's body, which must be JSON.
func (c *exchange) body() ([]byte, error) {
	body, err := rest.ReadBody(c.r, maxBody)
	if err != nil {
		return nil, err
	}
	var any json.RawMessage
	if err := rest.DecodeJSON(body, &any); err != nil {
		return nil, c.unreadable(err)
	}
	return body, nil
}

// unreadable is the answer to a body that cannot be read.
func (c *exchange) unreadable(err error) error {
	e, ok := errors.AsType[*rest.Error](err)
	if !ok {
		return c.fail(http.StatusBadRequest, codeBad, "%s", err)
	}
	again := *e
	if again.Code == rest.CodeInvalid {
		again.Code = c.area + "-" + codeBad
	}
	return &again
}

// answer shows one document, with its version.
func (c *exchange) answer(status int, etag string, v any) error {
	if etag != "" {
		c.w.Header().Set("Etag", rest.VersionETag(etag)) // what is shown here changes with the version only
	}
	return rest.WriteJSON(c.w, status, v)
}
