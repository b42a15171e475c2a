package access

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/access/policy"
	"atoll.dev/internal/rest"
)

// Identifier finds out who sends a request.
type Identifier interface {
	// Identify returns the proven identity of the sender and the body, which it
	// has read. Its errors are *rest.Error; beside an error it may return the
	// identity that the request claims (AccessKeyID), for the log. Several
	// goroutines may call it.
	Identify(r *http.Request) (Identity, []byte, error)
}

// Options configure a Router.
type Options struct {
	Identifier Identifier
	Policy     Policy                // default PrivilegedOnly
	Resources  Resources             // default: the resources that the paths name
	Region     string                // the region's name, for policies
	Bodies     BodyLimits            // of the memory for bodies
	Limiter    *Limiter              // nil: identified callers have no limits
	Signatures Signatures            // nil: a signature may be used again
	Validity   Validity              // nil: a watch lasts until its credential expires
	Denials    Denials               // gets refused requests; nil: the log alone has them
	Log        *slog.Logger          // default slog.Default()
	Metrics    prometheus.Registerer // when set, it gets access_denied_total by code
}

// Router routes the requests of a front. A handler is registered together with
// the action that a caller needs; a route without an action cannot exist. For
// each request the Router
//
//  1. lets a public route through, without identity, if the request has the
//     route's method and exactly its path, not an encoded form of it;
//  2. identifies the sender of everything else, over the request as it was sent;
//     and refuses a sender over its limits, and a mutation whose signature was used before;
//  3. removes the signature and every header by which a caller could claim an
//     identity, so that no handler can use or log them;
//  4. finds the route, and decides by it: policy first, then audience;
//  5. uses the signature of an allowed mutation, so that nobody can send it again;
//  6. calls the handler with the Identity and the Authority in the context and the
//     body in memory;
//  7. ends an open watch when the credential of its caller ends.
//
// A request that no route matches is answered 404 or 405 only to a caller whom
// the policy allows that.
//
// A Router runs inside rest.Observe, which writes its errors and gives requests
// their ids.
type Router struct {
	identifier Identifier
	policy     Policy
	resources  Resources
	region     string
	refusals   *refusalLog
	denied     *prometheus.CounterVec
	bodies     *bodyMemory
	signatures Signatures
	validity   Validity
	used       *recentSignatures
	limiter    *Limiter
	denials    Denials
	byPattern  map[string]Route
	classes    map[string]Class // by pattern
	mux        *rest.Mux
	routes     []Route
	public     map[string]bool // "METHOD path"

	customerMux *rest.Mux // the routes of mux without those for operators
}

// NewRouter returns a Router without routes. It panics without an Identifier,
// and when its metric is registered already.
func NewRouter(o Options) *Router {
	if o.Identifier == nil {
		panic("access: a Router needs an Identifier")
	}
	if o.Policy == nil {
		o.Policy = PrivilegedOnly{}
	}
	if o.Resources == nil {
		o.Resources = byPath{}
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	denied := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "access_denied_total", Help: "Requests that were refused before a handler, by code.",
	}, []string{"code"})
	if o.Metrics != nil {
		o.Metrics.MustRegister(denied)
	}
	return &Router{identifier: o.Identifier, policy: o.Policy, resources: o.Resources, region: o.Region,
		refusals: newRefusalLog(o.Log), denied: denied, bodies: newBodyMemory(o.Bodies), limiter: o.Limiter,
		denials: o.Denials, byPattern: map[string]Route{},
		signatures: o.Signatures, validity: o.Validity, used: newRecentSignatures(), classes: map[string]Class{},
		mux: rest.NewMux(), customerMux: rest.NewMux(), public: map[string]bool{}}
}

// Handle registers a handler, with the escalations of its route's action. It panics
// when the route lacks an action, a kind of resource or an audience, and on a bad or
// conflicting pattern.
func (rt *Router) Handle(route Route, h rest.Handler, escalations ...Escalation) {
	route.validate()
	for _, e := range escalations {
		e.validate(route)
	}
	rt.routes = append(rt.routes, route)
	rt.byPattern[route.pattern()] = route
	rt.classes[route.pattern()] = classOf(route)
	if route.Audience == Public {
		rt.public[route.pattern()] = true
	}
	decided := func(w http.ResponseWriter, r *http.Request) error {
		caller, identified := FromContext(r.Context())
		switch {
		case identified:
			allowed, grant, e := rt.authorize(r, caller, route, escalations)
			if e != nil {
				rt.record(r, caller, e, grant.Policies...)
				return e
			}
			if err := rt.useOnce(w, allowed, caller, classOf(route)); err != nil {
				rt.record(r, caller, asRefusal(err))
				return err
			}
			r = allowed
		case route.Audience != Public:
			return refuse(MissingAuthentication, "sign the request with AWS Signature Version 4")
		}
		err := h(w, r)
		if e, ok := errors.AsType[*rest.Error](err); ok && identified {
			rt.deny(r, caller, e, nil) // the handler decided on a second action, or a service behind refused
		}
		return err
	}
	rt.mux.Handle(route.pattern(), decided)
	if route.Audience != Operators {
		rt.customerMux.Handle(route.pattern(), decided)
	}
}

// authorize decides about the action of a route and its escalations. It returns the request with the
// Grant and the Authority in its context. With an error, the Grant names the policies that forbid it.
func (rt *Router) authorize(r *http.Request, caller Identity, route Route, escalations []Escalation) (
	*http.Request, Grant, *rest.Error) {
	q := Question{Caller: caller, Action: route.Action, Audience: route.Audience,
		Resource: rt.resources.Identify(r, caller, route), Context: contextOf(r, caller, rt.region, time.Now()),
		Complete: func(ctx context.Context, of policy.Resource) (policy.Resource, error) {
			return rt.resources.Complete(ctx, caller, of)
		}}
	grant, e := decide(r.Context(), rt.policy, q)
	for _, escalation := range escalations {
		if e == nil && escalation.isRequested(r) {
			if escalation.Audience == Operators && isForCustomers(r) {
				return nil, Grant{}, errNotHere(escalation.Parameter)
			}
			q.Action, q.Audience = escalation.Action, escalation.Audience
			if a, _ := policy.Lookup(string(q.Action)); a.On == policy.Account {
				q.Resource = policy.Resource{Kind: a.On, ID: string(q.Resource.Account), Account: q.Resource.Account}
			}
			var more Grant
			if more, e = decide(r.Context(), rt.policy, q); e != nil {
				grant = more
			}
		}
	}
	if e != nil {
		return nil, grant, e
	}
	ctx := context.WithValue(r.Context(), grantKey{}, grant)
	return r.WithContext(context.WithValue(ctx, authorityKey{}, Authority{rt.policy, caller, q.Context})), grant, nil
}

// Routes returns the registered routes in the order of their registration.
func (rt *Router) Routes() []Route { return rt.routes }

func (rt *Router) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if m, ok := messageOf(r); ok && rt.public[r.Method+" "+m.path] {
		refuseBody(w, r) // no public route reads one
		rt.muxOf(r).ServeHTTP(w, withoutClaims(r, nil))
		return
	}
	r, lease := rt.bodies.lease(w, r)
	defer lease.release()
	caller, body, err := rt.identifier.Identify(r)
	if err == nil && caller.Account == "" {
		err = refuse(MissingAuthentication, "sign the request with AWS Signature Version 4")
	}
	if err == nil {
		err = keepConnection(r)
	}
	if err != nil {
		if r.ContentLength != 0 {
			// A sender without a proven identity gets no time for the rest of its body.
			lease.shorten(refusedBodyTimeout)
		}
		rt.refuse(w, r, caller, asRefusal(err))
		return
	}
	proof := caller.Proof
	caller.Proof = Proof{}
	if proof != (Proof{}) {
		proof.Account = caller.Account
	}
	class := rt.class(r)
	if isMutation(r.Method) && rt.used.contains(proof.Signature) {
		rt.limiter.show(w.Header(), caller.Account, class) // a replay takes no token
		rt.refuse(w, r, caller, signatureUsed())
		return
	}
	if err := rt.limiter.take(w.Header(), caller.Account, class); err != nil {
		rt.refuse(w, r, caller, asRefusal(err))
		return
	}
	end, err := rt.limiter.begin(caller.Account, class)
	if err != nil {
		rt.refuse(w, r, caller, asRefusal(err))
		return
	}
	defer end()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	watch := newWatchLease()
	defer watch.end()
	r = r.WithContext(rest.OnWatchOpen(ctx, func() {
		end()
		watch.open(rt.validity, caller, cancel)
	}))
	if !rt.matches(r) {
		q := Question{Caller: caller, Context: contextOf(r, caller, rt.region, time.Now())}
		if _, e := decide(r.Context(), rt.policy, q); e != nil {
			rt.refuse(w, r, caller, e)
			return
		}
		if !isClean(r.URL.Path) { // also /clusters/%2e%2e, in which http.ServeMux sees a name
			rest.Fail(w, r, rest.Errorf(http.StatusNotFound, "not-found", "there is nothing at a path with . or .. or //"))
			return
		}
	}
	caller.RequestID = rest.OperationID(r.Context())
	ctx = context.WithValue(withIdentity(r.Context(), caller), proofKey{}, proof)
	rt.muxOf(r).ServeHTTP(w, withoutClaims(r, body).WithContext(ctx))
}

// class returns the class of a request. A request without a route has a class, too.
func (rt *Router) class(r *http.Request) Class {
	if class, ok := rt.classes[rt.muxOf(r).Route(r)]; ok {
		return class
	}
	return classOf(Route{Method: r.Method})
}

// matches reports whether a request reaches a registered handler. http.ServeMux
// also matches a path that it redirects to its clean form.
func (rt *Router) matches(r *http.Request) bool {
	return isClean(r.URL.Path) && rt.muxOf(r).Route(r) != ""
}

// isClean reports whether a path, decoded, has no segment that is empty, . or .. except an empty one at its end. A
// service behind this one could take such a segment of an id for another place.
func isClean(decoded string) bool {
	clean := path.Clean(decoded)
	if strings.HasSuffix(decoded, "/") && clean != "/" {
		clean += "/"
	}
	return clean == decoded
}

func (rt *Router) refuse(w http.ResponseWriter, r *http.Request, caller Identity, e *rest.Error) {
	rt.record(r, caller, e)
	rest.Fail(w, r, e)
}

// withoutClaims returns the request for handlers: without signature, without
// headers that claim an identity, and with body, unless it is nil, in place of
// the body that was read.
func withoutClaims(r *http.Request, body []byte) *http.Request {
	clean := r.WithContext(r.Context())
	clean.Header = make(http.Header, len(r.Header))
	for name, values := range r.Header {
		if !claimsIdentity(name) {
			clean.Header[name] = values
		}
	}
	if kept := withoutParams(r.URL.RawQuery); kept != r.URL.RawQuery {
		u := *r.URL
		u.RawQuery = kept
		clean.URL = &u
		clean.RequestURI = u.RequestURI()
	}
	if body != nil {
		clean.Body = io.NopCloser(bytes.NewReader(body))
		clean.ContentLength = int64(len(body))
		clean.TransferEncoding = nil
	}
	clean.Trailer = nil // not signed
	return clean
}

// claimsIdentity reports whether a caller could claim an identity by a header.
// That includes all x-amz-* headers, more than the five that API Gateway sets,
// because no handler reads any of them.
func claimsIdentity(name string) bool {
	// Some servers behind us take _ for -.
	n := strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return n == "authorization" || strings.HasPrefix(n, "x-amz-") || strings.HasPrefix(n, "x-atoll-")
}

// withoutParams removes the parameters of a presigned request from a query.
func withoutParams(raw string) string {
	var kept []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(part, "=")
		if n, err := url.QueryUnescape(name); err == nil && strings.HasPrefix(n, "X-Amz-") {
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, "&")
}
