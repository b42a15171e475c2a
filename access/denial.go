package access

import (
	"cmp"
	"net"
	"net/http"

	"atoll.dev/api/audit"
	"atoll.dev/internal/rest"
)

// Denial is a refused request, for the audit.
type Denial struct {
	Caller    Identity // without a proven identity it has the AccessKeyID that the request claims, if any
	Action    Action   // "" for a request that no route matches
	Kind      ResourceKind
	ID        string // of the resource; "" for a collection
	Owner     string // the account of the resource, as far as the request shows it
	Method    string
	Route     string // the pattern of the path
	Code      string
	Status    int
	Policies  []string // that forbid it
	RequestID string
	Source    string
	UserAgent string
}

// Denials records refused requests. Record must not block; several goroutines call it.
type Denials interface{ Record(Denial) }

// deny records a refusal for the audit, if it is one: a request over a limit, or that cannot be carried out, is none.
func (rt *Router) deny(r *http.Request, caller Identity, e *rest.Error, policies []string) {
	if rt.denials == nil || e.Status != http.StatusForbidden && e.Status != http.StatusUnauthorized {
		return
	}
	route := rt.byPattern[rt.mux.Route(r)]
	d := Denial{Caller: caller, Action: route.Action, Kind: route.Kind, Method: r.Method, Route: route.Path, Code: e.Code,
		Status: e.Status, Policies: policies, RequestID: rest.OperationID(r.Context()), Source: SourceOf(r, caller),
		UserAgent: r.UserAgent(), Owner: string(caller.Account)}
	if route.ID != "" {
		d.ID = r.PathValue(route.ID)
	}
	rt.denials.Record(d)
}

// SourceOf returns the address of a sender without its port: the address that a gateway has proved, or else that of the
// TCP connection.
func SourceOf(r *http.Request, caller Identity) string {
	if caller.SourceIP.IsValid() {
		return caller.SourceIP.String()
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// ProvedBy returns how the sender proved its identity, and by which credential, for the audit. An Identifier that gives
// no Evidence verifies signatures.
func (id Identity) ProvedBy() (method, credential string) {
	method = cmp.Or(string(id.Evidence.Method), audit.BySignature)
	return method, cmp.Or(id.Evidence.Credential, id.AccessKeyID, id.Evidence.Subject)
}
