package rosa

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
	"atoll.dev/release"
)

// customerAPI serves customers' clusters, node pools and credentials, which the
// lifecycle manager stores. Each call names the caller's account as its tenant, so
// that resources of other accounts do not exist for the caller. That holds for
// privileged accounts as well.
type customerAPI struct {
	clm       *clmclient.Client        // nil: the region has none
	cache     *clmclient.ResourceCache // of clusters and node pools
	releases  *release.Cache
	patience  time.Duration // for a credential to be signed
	placement Placement

	credentialLifetime time.Duration          // the longest that a credential gets
	providers          []cluster.NodeProvider // that the region offers
}

// Collections of the lifecycle manager.
const (
	clusters    clmclient.Collection = "clusters"
	nodePools   clmclient.Collection = "nodepools"
	credentials clmclient.Collection = "credentials"
	versions    clmclient.Collection = "versions"
)

// defaultPatience is how long a POST of a credential waits for the certificate.
const defaultPatience = 15 * time.Second

func newCustomerAPI(clm *clmclient.Client) *customerAPI {
	return &customerAPI{clm: clm, cache: clmclient.NewResourceCache(clm, resourceCacheSize),
		releases: release.NewCache(clm), patience: defaultPatience, credentialLifetime: cluster.MaxCredentialLifetime}
}

// visibility returns whether a caller may read placements. Privileged accounts are
// those of the region's operators.
func (h *customerAPI) visibility(caller access.Identity) progress.Visibility {
	if caller.Privileged || h.placement == PlacementToCustomers {
		return progress.ShowPlacement
	}
	return progress.HidePlacement
}

// exchange is one request to the customerAPI and its answer.
type exchange struct {
	w          http.ResponseWriter
	r          *http.Request
	ctx        context.Context // names the tenant
	caller     access.Identity
	area       string // what the codes of its errors begin with
	visibility progress.Visibility
	tags       map[string]map[string]string // of clusters by id, that decisions about a list have read
}

// handlersOf returns a function that makes the handlers of one area's routes.
// The codes of an area's errors begin with its name and that of the operation:
// CLUSTERS-MGMT-CREATE-001.
func (h *customerAPI) handlersOf(area string) func(operation string, serve func(*exchange) error) rest.Handler {
	return func(operation string, serve func(*exchange) error) rest.Handler {
		return func(w http.ResponseWriter, r *http.Request) error {
			caller, _ := access.FromContext(r.Context()) // access.Router refuses a request without
			c := &exchange{w: w, r: r, caller: caller, area: area + "-" + operation, visibility: h.visibility(caller),
				ctx: clmclient.WithTenant(r.Context(), caller.Account)}
			if h.clm == nil {
				return c.unavailable(errors.New("the region has none"))
			}
			return c.translate(serve(c))
		}
	}
}

// Numbers at the end of codes; they mean the same in every area.
const (
	codeUnreadable   = "001" // the request cannot be decoded
	codeMissing      = "002" // the account has no such resource
	codeNameTaken    = "003" // another resource has the name
	codeBeingDeleted = "004" // the resource is being deleted
	codeProtected    = "005" // the cluster is protected from deletion
	codeKeyReused    = "006" // the Idempotency-Key was used for another request
	codeNotReady     = "008" // the control plane does not answer (yet)
	codeNoBackups    = "010" // the cluster has no backups (yet)
	codeRestoring    = "011" // another restore of the cluster runs
	codeNoRollback   = "012" // the cluster cannot go back to the release before
	codeOutOfOrder   = "013" // the step of the rotation is not the next one
)

// errorf returns an error with a code of the request's area.
func (c *exchange) errorf(status int, number, format string, args ...any) *rest.Error {
	return rest.Errorf(status, c.area+"-"+number, format, args...)
}

// validationError returns the answer to a request with wrong fields: 422, all of
// them in errors, the first one in reason.
func (c *exchange) validationError(p document.Problems) error {
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

// refusal returns the answer to a body that was read with err or with problems; nil
// when there are none.
func (c *exchange) refusal(problems document.Problems, err error) error {
	switch {
	case err != nil:
		return c.bodyError(err)
	case len(problems) > 0:
		return c.validationError(problems)
	}
	return nil
}

// fieldErrors gives problems the shape of the wire.
func fieldErrors(problems document.Problems) []rest.FieldError {
	fields := make([]rest.FieldError, len(problems))
	for i, p := range problems {
		fields[i] = rest.FieldError{Field: p.Field, Message: p.Message}
	}
	return fields
}

// noun is the name of a kind of resource in messages.
type noun string

const (
	nounCluster        noun = "cluster"
	nounNodePool       noun = "node pool"
	nounWork           noun = "work"
	nounResourceBundle noun = "resource bundle"
)

// notFound returns the answer when the account has no such cluster or node pool.
func (c *exchange) notFound(what noun, id string) *rest.Error {
	return c.errorf(http.StatusNotFound, codeMissing, "there is no %s %s; GET /api/v0/%ss lists those of your account",
		what, quote(id), strings.ReplaceAll(string(what), " ", ""))
}

func (c *exchange) unavailable(err error) *rest.Error {
	e := rest.Errorf(http.StatusServiceUnavailable, codeNoLifecycle,
		"the region's lifecycle manager does not answer; try again").Because(err)
	e.RetryAfter = time.Second
	return e
}

// translate gives an error of the lifecycle manager the answer of this API. An
// error that a handler has translated already stays.
func (c *exchange) translate(err error) error {
	if _, isAnswer := errors.AsType[*rest.Error](err); isAnswer {
		return err
	}
	e, ok := errors.AsType[*remote.Error](err)
	if !ok {
		return err
	}
	switch e.Status {
	case http.StatusForbidden:
		if q := e.Quota; q != nil {
			refusal := rest.Errorf(e.Status, codeQuota, "%s", e.Reason).Because(err)
			refusal.Quota = &rest.QuotaExcess{Name: q.Name, Limit: q.Limit, Used: q.Used, Asked: q.Asked}
			return refusal
		}
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
			return c.validationError(p)
		}
		return c.errorf(e.Status, codeUnreadable, "%s", e.Reason).Because(err)
	case http.StatusNotFound:
		return c.errorf(e.Status, codeMissing, "%s", e.Reason).Because(err)
	case http.StatusConflict:
		return c.errorf(e.Status, codeBeingDeleted, "%s", e.Reason).Because(err)
	case http.StatusUnprocessableEntity:
		return c.errorf(e.Status, codeKeyReused, "%s", e.Reason).Because(err)
	case http.StatusPreconditionFailed:
		return rest.Errorf(e.Status, codePrecondition,
			"the document has changed since the version in If-Match; GET it, and decide again").Because(err)
	case http.StatusGone:
		return rest.Errorf(e.Status, codeGone, "the cursor is too old; list again, and watch from there").Because(err)
	case http.StatusInsufficientStorage:
		return c.errorf(e.Status, codeNotReady, "%s", e.Reason).Because(err)
	}
	// The lifecycle manager refuses the Platform API; the caller can do nothing.
	return rest.Errorf(http.StatusBadGateway, codeNoLifecycle, "the region's lifecycle manager failed").Because(err)
}

// replaceNameConflict replaces the lifecycle manager's error for a name that
// another resource has. Other conflicts are about a deletion in progress or a
// repeated Idempotency-Key, and stay.
func replaceNameConflict(err error, as *rest.Error) error {
	if e, ok := errors.AsType[*remote.Error](err); ok && e.Code == "HYPERFLEET-CNF-001" {
		return as.Because(err)
	}
	return err
}

// readClusterID reads the id of the cluster in the path. A text that cannot be an
// id names no cluster: 404.
func (c *exchange) readClusterID() (cluster.ID, error) {
	id := c.r.PathValue("id")
	if !isID(id) {
		return "", c.notFound(nounCluster, id)
	}
	return cluster.ID(id), nil
}

// readNodePoolID reads the id of the node pool in the path. A text that cannot be
// an id names no node pool: 404.
func (c *exchange) readNodePoolID() (cluster.NodePoolID, error) {
	id := c.r.PathValue("id")
	if !isID(id) {
		return "", c.notFound(nounNodePool, id)
	}
	return cluster.NodePoolID(id), nil
}

// isID reports whether a text has the form of a resource's id: a UUID in its
// usual form.
func isID(text string) bool {
	_, err := uuid.Parse(text)
	return err == nil && len(text) == 36
}

// readPageBounds reads limit (default 50, 1 to 100) and offset.
func (c *exchange) readPageBounds() (limit, offset int, err error) {
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
			return 0, 0, c.errorf(http.StatusBadRequest, codeUnreadable, "%s=%s is not a whole number from %d to %d", p.name,
				rest.Shorten(text, 32), p.least, p.most)
		}
		*p.into = n
	}
	return limit, offset, nil
}

// readFlag reads a query parameter that is true or false; false when it is
// missing.
func (c *exchange) readFlag(name string) (bool, error) {
	text := c.r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, c.errorf(http.StatusBadRequest, codeUnreadable, "%s=%s is neither true nor false", name, quote(text))
	}
	return v, nil
}

// readBody reads the body of the request, which must be JSON.
func (c *exchange) readBody() ([]byte, error) {
	body, err := rest.ReadBody(c.r, maxBody)
	if err != nil {
		return nil, err
	}
	var any json.RawMessage
	if err := rest.DecodeJSON(body, &any); err != nil {
		return nil, c.bodyError(err)
	}
	return body, nil
}

// bodyError gives the error of a body that cannot be decoded a code of the area.
func (c *exchange) bodyError(err error) error {
	e, ok := errors.AsType[*rest.Error](err)
	if !ok {
		return c.errorf(http.StatusBadRequest, codeUnreadable, "%s", err)
	}
	again := *e
	if again.Code == rest.CodeInvalid {
		again.Code = c.area + "-" + codeUnreadable
	}
	return &again
}

// shape gives a resource the shape of the wire.
type shape[T any] func(clmclient.Resource) (T, error)

// show answers with a resource in its shape.
func show[T any](c *exchange, status int, r clmclient.Resource, to shape[T]) error {
	shown, err := to(r)
	if err != nil {
		return err
	}
	return c.write(status, r.ETag, shown)
}

// inShape returns a function that gives the object of a watch event its shape.
func inShape[T any](to shape[T]) func(object json.RawMessage) (json.RawMessage, error) {
	return func(object json.RawMessage) (json.RawMessage, error) {
		r, err := clmclient.ResourceOf(object)
		if err != nil {
			return nil, err
		}
		shown, err := to(r)
		if err != nil {
			return nil, err
		}
		return json.Marshal(shown)
	}
}

// write answers with a document. etag is the lifecycle manager's, "" for none.
func (c *exchange) write(status int, etag string, v any) error {
	if etag != "" {
		c.w.Header().Set("Etag", rest.VersionETag(etag)) // without a new version only status.upgrade.canRollBack changes
	}
	return rest.WriteJSON(c.w, status, v)
}
