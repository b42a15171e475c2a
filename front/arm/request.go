package arm

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// Parts of the paths of this resource provider, as answers show them.
const (
	namespace       = "Microsoft.RedHatOpenShift"
	clustersSegment = "hcpOpenShiftClusters"
	poolsSegment    = "nodePools"
)

// maxBody bounds a request's body.
const maxBody = 4 << 20

// request has the parts of a request that the middleware has read.
type request struct {
	header  http.Header // of the answer
	path    string      // with the case in which the client sent it
	base    string      // scheme and host of the URLs in the answer
	version version

	subscription subscription // filled in when the sender is identified
	resource     *resource    // that the path names; nil: none exists, or the path names none
	parent       *resource    // the cluster of the node pool that the path names
}

type requestKey struct{}

// requestOf returns the request that a context belongs to, nil outside of one.
func requestOf(ctx context.Context) *request {
	q, _ := ctx.Value(requestKey{}).(*request)
	return q
}

// prepareRequest is the outermost handler. It sets the request ids of the answer, finds the host for the
// URLs in the answer, and makes the path lower case, because names in Azure are compared without case.
func (f *front) prepareRequest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r = r.Clone(r.Context())
		id := uuid.NewString()
		r.Header.Set("X-Ms-Request-Id", id)
		w.Header().Set("X-Ms-Request-Id", id)
		if client := r.Header.Get("X-Ms-Client-Request-Id"); len(client) <= 256 &&
			strings.EqualFold(r.Header.Get("X-Ms-Return-Client-Request-Id"), "true") {
			w.Header().Set("X-Ms-Client-Request-Id", client)
		}
		q := &request{header: w.Header(), path: r.URL.Path, base: f.baseOf(r)}
		r.URL.Path, r.URL.RawPath = strings.ToLower(r.URL.Path), ""
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, q)))
	})
}

// baseOf returns scheme and host of the URLs in answers: those of the Referer, which is ARM's public URL,
// if its host is permitted, and otherwise those of the request.
func (f *front) baseOf(r *http.Request) string {
	if u, err := url.Parse(r.Referer()); err == nil && (u.Scheme == "https" || u.Scheme == "http") &&
		slices.Contains(f.referers, strings.ToLower(u.Host)) {
		return u.Scheme + "://" + u.Host
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// exchange is one request to a handler and its answer.
type exchange struct {
	*request
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context // names the tenant and the actor of calls to the lifecycle manager

	// unsealSecret decrypts the private key in the operation that this request begins; "" when it has none.
	unsealSecret string
}

// withVersion returns a handler that reads the api-version of a request, and refuses a request without a
// known one.
func (f *front) withVersion(serve func(*exchange) error) rest.Handler {
	return f.withSubscription(func(x *exchange) error {
		name := x.r.URL.Query().Get("api-version")
		if name == "" {
			return rest.Errorf(http.StatusBadRequest, codeInvalidParameter,
				"The request is missing required parameter 'api-version'.")
		}
		known := false
		if x.version, known = parseVersion(name); !known {
			return rest.Errorf(http.StatusBadRequest, codeInvalidResourceType, "The resource type '%s/%s' could not be "+
				"found in the namespace for api version '%s'. The supported api-versions are '%s'.", namespace,
				clustersSegment, name, strings.Join(versions, ","))
		}
		return serve(x)
	})
}

// withSubscription returns a handler that calls serve with the exchange of a request. The calls of serve to
// the lifecycle manager are for the account of the subscription.
func (f *front) withSubscription(serve func(*exchange) error) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		q := requestOf(r.Context())
		x := &exchange{request: q, w: w, r: r, ctx: f.contextFor(r.Context(), q.subscription.Account, r.Header)}
		return serve(x)
	}
}

// observed returns a handler that reports to the engine how long serve takes, so that work on operations gives way to
// requests. The body of the request was read before: a slow client does not count.
func (f *front) observed(serve func(*exchange) error) func(*exchange) error {
	return func(x *exchange) error {
		begun := time.Now()
		defer func() { f.engine.ObserveRequest(x.subscription.ID, time.Since(begun)) }()
		return serve(x)
	}
}

// contextFor returns a context for calls to the lifecycle manager on behalf of a caller of ARM.
func (f *front) contextFor(ctx context.Context, account cluster.Account, h http.Header) context.Context {
	principal, id := string(principalOf(account, h.Get("X-Ms-Client-Object-Id"))), rest.OperationID(ctx)
	ctx = store.WithActor(ctx, store.Actor{Principal: principal, Account: string(account), RequestID: id})
	return remote.WithActor(clmclient.WithTenant(ctx, account), remote.Actor{Principal: principal,
		Account: string(account), RequestID: id})
}

// readBody reads a JSON object.
func (x *exchange) readBody() (map[string]any, error) {
	if media, _, _ := mime.ParseMediaType(x.r.Header.Get("Content-Type")); media != "application/json" {
		return nil, rest.Errorf(http.StatusUnsupportedMediaType, codeUnsupportedMedia,
			"The content media type '%s' is not supported. Only 'application/json' is supported.", media)
	}
	data, err := rest.ReadBody(x.r, maxBody)
	if err != nil {
		return nil, err
	}
	var body map[string]any
	if err := decodeNumbers(data, &body); err != nil || body == nil {
		return nil, rest.Errorf(http.StatusBadRequest, codeInvalidContent,
			"The request content was invalid and could not be deserialized.").Because(err)
	}
	return body, nil
}

// writeJSON answers with a status and a JSON body.
func (x *exchange) writeJSON(status int, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return rest.WriteJSON(x.w, status, data)
}

// systemDataOf returns the sender of a request as Azure's gateway names him.
func systemDataOf(h http.Header) map[string]any {
	var data map[string]any
	if json.Unmarshal([]byte(h.Get("X-Ms-Arm-Resource-System-Data")), &data) != nil {
		return nil
	}
	known := map[string]any{}
	for _, name := range []string{"createdBy", "createdByType", "createdAt", "lastModifiedBy", "lastModifiedByType",
		"lastModifiedAt"} {
		if value, isText := data[name].(string); isText {
			known[name] = value
		}
	}
	return known
}

// retryAfter is how long a client waits before it asks again about an operation.
const retryAfter = 10 * time.Second
