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

	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// Caller is who sent a request.
type Caller struct {
	Name string // goes into created_by and its like; a caller without a name only reads
	// Nameless says why Name is "", nil if that is not known.
	Nameless error
	Account  string
	// System says that the caller is one of the region's own services.
	System bool
	// Service says that the caller is one of the region's own services and calls for itself.
	Service bool
	// Reporter says that the caller may read and report statuses, and nothing
	// else.
	Reporter bool
	// Tenancy is what the caller may see and what it makes. It is nil for the
	// system, and for all when tenancy is off: they see everything.
	Tenancy map[string]string
	// Partial says that the caller has not all dimensions of a tenancy. It sees
	// whatever has those that it has.
	Partial bool
	// RequestID is the caller's own, "" if it has none.
	RequestID string
}

// Identifier finds out who sent a request. Its error is a *rest.Error with
// status 400, 401 or 403.
type Identifier func(*http.Request) (Caller, error)

// Anonymous is the name of callers of a server that knows no others.
const Anonymous = "system@hyperfleet.local"

// Tenancy says whose a caller is. Headers are believed of the region's services,
// by their certificates, and of callers without identity where nobody has one: a
// gateway stands before those. The holder of a token is whose the token's claims
// say, whatever its headers say.
type Tenancy struct {
	Enabled bool `yaml:"enabled"`
	// SystemHeader says by "true" that the caller is the system.
	SystemHeader string `yaml:"system_header"`
	// SystemClaim is the way to a claim that says by SystemValue (default true) that
	// the holder of a token is the system. A list must contain the value.
	SystemClaim string      `yaml:"system_claim"`
	SystemValue string      `yaml:"system_value"`
	Dimensions  []Dimension `yaml:"dimensions"`
}

// Dimension is one part of a tenancy.
type Dimension struct {
	Header string `yaml:"header"`
	// Claim is the way to the claim of a token that has the value: the claim's name,
	// or names of members with dots between them.
	Claim    string `yaml:"claim"`
	Key      string `yaml:"key"`
	Required bool   `yaml:"required"`
}

// Identity says how a server knows its callers.
type Identity struct {
	// MayCall decides which of the region's services may call at all, by their
	// certificates. Nil: none.
	MayCall func(peer string) bool
	// OnlyReports says of one that may call that it is a Reporter. Nil: none is.
	OnlyReports func(peer string) bool
	// Tokens verifies bearer tokens of callers without certificate; nil: there
	// are none.
	Tokens *Tokens
	// Open lets callers with neither in, as Anonymous, if they come without TLS,
	// which is to a plain listener on loopback.
	Open bool
	// Trusting takes those that name no tenant for the system, for a listener that
	// is beside the one for callers with an identity.
	Trusting bool
	Tenancy  Tenancy
}

// source is what is known of a caller besides its name: by what it proved itself.
type source struct {
	claims jwt.MapClaims // of its token, nil if it has none
	header http.Header   // nil: its headers are not believed
}

// Identify implements Identifier.
func (id *Identity) Identify(r *http.Request) (Caller, error) {
	c, from, err := id.known(r)
	if err != nil || !id.Tenancy.Enabled {
		return c, err
	}
	return id.Tenancy.tenant(c, from)
}

func (id *Identity) known(r *http.Request) (Caller, source, error) {
	if peer, err := pki.PeerName(r.TLS); err == nil {
		if id.MayCall == nil || !id.MayCall(string(peer)) {
			return Caller{}, source{}, rest.Errorf(http.StatusForbidden, codeForbidden, "%s may not call CLM", peer)
		}
		c := Caller{Name: string(peer), System: peer.IsService(), Reporter: id.OnlyReports != nil && id.OnlyReports(
			string(peer))}
		if !c.System {
			return c, source{}, nil
		}
		// On whose behalf it calls.
		c.Service = true
		if p := r.Header.Get("X-Atoll-Principal"); p != "" {
			c.Name, c.Service = p, false
		}
		c.Account, c.RequestID = r.Header.Get("X-Atoll-Account"), r.Header.Get("X-Atoll-Request-Id")
		return c, source{header: r.Header}, nil
	}
	open := id.Open && r.TLS == nil
	if id.Tokens != nil {
		who, err := id.Tokens.verify(r.Context(), r.Header)
		if !open || !errors.Is(err, errNoToken) {
			return Caller{Name: who.name, Nameless: who.nameless}, source{claims: who.claims}, err
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

// tenantValue is the form of a value of a tenancy.
var tenantValue = regexp.MustCompile(`^[A-Za-z0-9._-]{1,63}$`)

// tenant adds whose a caller is. A service of the region that names no tenant is
// the system itself. Another caller that is the system only reads and reports,
// whatever tenant it names.
func (t Tenancy) tenant(c Caller, from source) (Caller, error) {
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

// source names where a dimension's value has to be.
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

// claimAt finds a claim by its name, or by the names of members with dots
// between them.
func claimAt(claims map[string]any, way string) any {
	if v, ok := claims[way]; ok {
		return v
	}
	first, rest, below := strings.Cut(way, ".")
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

// withCaller makes what the request changes be recorded as its caller's.
func withCaller(ctx context.Context, c Caller, requestID string) context.Context {
	if c.RequestID != "" {
		requestID = c.RequestID
	}
	ctx = store.WithActor(ctx, store.Actor{Principal: c.Name, Account: c.Account, RequestID: requestID})
	return context.WithValue(ctx, callerKey{}, c)
}

func callerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerKey{}).(Caller)
	return c
}

// sees reports whether the caller may see what has a tenancy.
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
