package clm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/golang-jwt/jwt/v5"

	"atoll.dev/api/audit"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// Caller is the identity and the rights of the sender of a request.
type Caller struct {
	Name string // for created_by and the like; a caller without a name may only read
	// Nameless is the reason for an empty Name, nil if it is not known.
	Nameless error
	// Holder names the holder of the caller's token by its claims: unlike Name, no header changes it. It is ""
	// for a caller without token.
	Holder  string
	Account cluster.Account
	// System is true for the region's own services.
	System bool
	// Service is true for the region's own services that do not call on behalf of a principal.
	Service bool
	// Reporter is true for callers that may only read and report statuses.
	Reporter bool
	// Tenancy restricts the resources that the caller may see, and is the tenancy of those
	// that it creates. It is nil for the system, and for all callers when tenancy is off:
	// they see all resources.
	Tenancy map[string]string
	// Partial is true if Tenancy lacks a dimension. The caller sees the resources that have
	// its own dimensions.
	Partial bool
	// RequestID is the request id of the caller, "" if it has none.
	RequestID string
	// Proof is how the caller proved its identity. A front names its own caller's proof, action and decision.
	Proof audit.Request
}

// Identifier identifies the caller of a request. Its error is a *rest.Error with
// status 400, 401, 403 or 503.
type Identifier func(*http.Request) (Caller, error)

// Anonymous is the name of callers without identity.
const Anonymous = "system@hyperfleet.local"

// Tenancy determines the tenant of a caller. CLM trusts the headers of the region's
// services, by their certificates, and of anonymous callers where a gateway sets them: on
// a server without token issuers, or on a trusting listener. The tenant of a token's
// holder comes from the token's claims only; its headers are ignored.
type Tenancy struct {
	Enabled bool `yaml:"enabled"`
	// SystemHeader is the header whose value "true" makes the caller the system.
	SystemHeader string `yaml:"system_header"`
	// SystemClaim is the path of the claim whose value SystemValue (default true) makes
	// the holder of a token the system. A list must contain the value.
	SystemClaim string      `yaml:"system_claim"`
	SystemValue string      `yaml:"system_value"`
	Dimensions  []Dimension `yaml:"dimensions"`
}

// Dimension is one part of a tenancy.
type Dimension struct {
	Header string `yaml:"header"`
	// Claim is the path of the claim with the value: the claim's name, or names of
	// members with dots between them.
	Claim    string `yaml:"claim"`
	Key      string `yaml:"key"`
	Required bool   `yaml:"required"`
}

// Identity identifies the callers of a server by certificate or token.
type Identity struct {
	// MayCall reports whether a service of the region may call, by the name in its
	// certificate. Nil: none may.
	MayCall func(peer string) bool
	// OnlyReports reports whether a service that may call is a Reporter. Nil: none is.
	OnlyReports func(peer string) bool
	// Tokens verifies bearer tokens of callers without certificate; nil: the server
	// accepts no tokens.
	Tokens *Tokens
	// Open admits callers without certificate and token, as Anonymous, if they connect
	// without TLS, that is to a plain listener on loopback.
	Open bool
	// Trusting treats anonymous callers that name no tenant as the system, for a second
	// listener beside the one for callers with an identity.
	Trusting bool
	Tenancy  Tenancy
}

// source is where the tenancy of a caller may come from.
type source struct {
	claims jwt.MapClaims // of the caller's token, nil if it has none
	header http.Header   // nil: the caller's headers are not trusted
}

// Identify implements Identifier.
func (id *Identity) Identify(r *http.Request) (Caller, error) {
	c, from, err := id.authenticate(r)
	if err != nil || !id.Tenancy.Enabled {
		return c, err
	}
	return id.Tenancy.withTenant(c, from)
}

// authenticate returns the caller without tenancy, and the source of its tenancy.
func (id *Identity) authenticate(r *http.Request) (Caller, source, error) {
	if peer, err := pki.PeerName(r.TLS); err == nil {
		if id.MayCall == nil || !id.MayCall(string(peer)) {
			return Caller{}, source{}, rest.Errorf(http.StatusForbidden, codeForbidden, "%s may not call CLM", peer)
		}
		c := Caller{Name: string(peer), System: peer.IsService(), Reporter: id.OnlyReports != nil && id.OnlyReports(
			string(peer)), Proof: audit.Request{Proof: audit.ByCertificate, ProofID: string(peer)}}
		if !c.System {
			return c, source{}, nil
		}
		c.Service = true // unless the headers name the principal for whom the service calls
		if p := r.Header.Get("X-Atoll-Principal"); p != "" {
			c.Name, c.Service = p, false
		}
		c.Account, c.RequestID = cluster.Account(r.Header.Get("X-Atoll-Account")), r.Header.Get("X-Atoll-Request-Id")
		if proof, ok := audit.ParseRequest(r.Header.Get(audit.Header)); ok && peer == platformName {
			c.Proof = proof
		}
		return c, source{header: r.Header}, nil
	}
	open := id.Open && r.TLS == nil
	if id.Tokens != nil {
		token, err := id.Tokens.verify(r.Context(), r.Header)
		if !open || !errors.Is(err, errNoToken) {
			c := Caller{Name: token.name, Nameless: token.nameless, Holder: token.holder,
				Proof: audit.Request{Proof: audit.ByToken, ProofID: token.holder}}
			return c, source{claims: token.claims}, err
		}
	}
	if !open {
		return Caller{}, source{}, rest.Errorf(http.StatusUnauthorized, codeNoIdentity,
			"a client certificate of the region's CA is needed")
	}
	c := Caller{Name: Anonymous, System: id.Trusting && id.Tenancy.Enabled}
	if id.Tokens != nil && !id.Trusting {
		return c, source{}, nil
	}
	return c, source{header: r.Header}, nil
}

// tenantValue matches valid values of a tenancy.
var tenantValue = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// withTenant returns the caller with its tenancy. A service of the region that names no
// tenant is the system. Another caller that SystemHeader or SystemClaim makes the system
// may only read and report; a tenant that it names is ignored.
func (t Tenancy) withTenant(c Caller, from source) (Caller, error) {
	if !c.System && t.isSystem(from) {
		c.System, c.Reporter = true, true
		return c, nil
	}
	tenancy := map[string]string{}
	var missing []string
	for _, d := range t.Dimensions {
		value := d.value(from)
		switch {
		case value == "" && d.Required:
			missing = append(missing, d.source(from))
		case value == "":
		case !tenantValue.MatchString(value):
			return c, rest.Errorf(http.StatusForbidden, codeForbidden, "%s has a value that no tenant can have",
				d.source(from))
		default:
			tenancy[d.Key] = value
		}
	}
	switch {
	case c.System && len(tenancy) == 0:
	case len(missing) > 0:
		return c, rest.Errorf(http.StatusForbidden, codeForbidden, "the request does not say whose it is; missing: %s",
			strings.Join(missing, ", "))
	default:
		c.System, c.Tenancy, c.Partial = false, tenancy, len(tenancy) < len(t.Dimensions)
	}
	return c, nil
}

func (t Tenancy) isSystem(from source) bool {
	if from.header != nil {
		return t.SystemHeader != "" && strings.EqualFold(strings.TrimSpace(from.header.Get(t.SystemHeader)), "true")
	}
	if t.SystemClaim == "" || from.claims == nil {
		return false
	}
	wanted := cmp.Or(t.SystemValue, "true")
	claim := claimAt(from.claims, t.SystemClaim)
	if list, ok := claim.([]any); ok {
		return slices.ContainsFunc(list, func(v any) bool { return claimText(v) == wanted })
	}
	return claimText(claim) == wanted
}

// value returns a caller's value of a dimension, "" if it has none.
func (d Dimension) value(from source) string {
	if from.header != nil {
		return strings.TrimSpace(from.header.Get(d.Header))
	}
	if d.Claim == "" {
		return ""
	}
	return claimText(claimAt(from.claims, d.Claim))
}

// source names the header or claim that must have a dimension's value, for an error.
func (d Dimension) source(from source) string {
	switch {
	case from.header != nil:
		return "the header " + d.Header
	case d.Claim == "":
		return "a claim for " + d.Key +
			" (server.tenant.dimensions[].claim names none; headers of token holders are not believed)"
	}
	return "the claim " + d.Claim
}

// claimAt returns the claim at a path, which is its name, or names of members with dots
// between them; nil if there is none.
func claimAt(claims map[string]any, path string) any {
	if v, ok := claims[path]; ok {
		return v
	}
	first, rest, below := strings.Cut(path, ".")
	members, ok := claims[first].(map[string]any)
	if !below || !ok {
		return nil
	}
	return claimAt(members, rest)
}

// claimText returns a claim as text, "" if it is neither text, number nor bool.
func claimText(v any) string {
	switch v := v.(type) {
	case string:
		return strings.TrimSpace(v)
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}

type callerKey struct{}

// withCaller returns a context with the caller, which the store records as the author of
// changes. requestID is the id for callers that have none of their own. request is that of auditedRequest.
func withCaller(ctx context.Context, c Caller, requestID string, request string) context.Context {
	if c.RequestID != "" {
		requestID = c.RequestID
	}
	ctx = store.WithActor(ctx, store.Actor{Principal: c.Name, Account: string(c.Account), RequestID: requestID,
		Audit: request})
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// sees reports whether the caller may see resources of a tenancy.
func (c Caller) sees(tenancy map[string]string) bool {
	if c.Tenancy == nil || maps.Equal(c.Tenancy, tenancy) {
		return true
	}
	if !c.Partial || len(c.Tenancy) == 0 {
		return false
	}
	for key, value := range c.Tenancy {
		if tenancy[key] != value {
			return false
		}
	}
	return true
}
