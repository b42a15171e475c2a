package clm

import (
	"context"
	"errors"
	"maps"
	"net/http"

	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// Caller is who sent a request.
type Caller struct {
	Name    string // goes into created_by and its like
	Account string
	// System says that the caller is one of the region's own services.
	System bool
	// Reporter says that the caller may read and report statuses, and nothing
	// else.
	Reporter bool
	// Tenancy is what the caller may see and what it makes. It is nil for the
	// system, and for all when tenancy is off: they see everything.
	Tenancy map[string]string
	// RequestID is the caller's own, "" if it has none.
	RequestID string
}

// Identifier finds out who sent a request. Its error is a *rest.Error with
// status 400, 401 or 403.
type Identifier func(*http.Request) (Caller, error)

// Anonymous is the name of callers of a server that knows no others.
const Anonymous = "system@hyperfleet.local"

// Tenancy says which headers name a caller's tenant. They are believed of the
// region's services, and of callers whose token a gateway has seen before.
type Tenancy struct {
	Enabled bool `yaml:"enabled"`
	// SystemHeader, when a request has it, says that the caller is the system.
	SystemHeader string      `yaml:"system_header"`
	Dimensions   []Dimension `yaml:"dimensions"`
}

// Dimension is one part of a tenancy.
type Dimension struct {
	Header   string `yaml:"header"`
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

// Identify implements Identifier.
func (id *Identity) Identify(r *http.Request) (Caller, error) {
	c, err := id.known(r)
	if err != nil || !id.Tenancy.Enabled {
		return c, err
	}
	return id.tenant(c, r.Header)
}

func (id *Identity) known(r *http.Request) (Caller, error) {
	if peer, err := pki.PeerName(r.TLS); err == nil {
		if id.MayCall == nil || !id.MayCall(string(peer)) {
			return Caller{}, rest.Errorf(http.StatusForbidden, codeForbidden, "%s may not call CLM", peer)
		}
		c := Caller{Name: string(peer), System: peer.IsService(), Reporter: id.OnlyReports != nil && id.OnlyReports(string(peer))}
		if c.System {
			// On whose behalf it calls.
			if p := r.Header.Get("X-Atoll-Principal"); p != "" {
				c.Name = p
			}
			c.Account, c.RequestID = r.Header.Get("X-Atoll-Account"), r.Header.Get("X-Atoll-Request-Id")
		}
		return c, nil
	}
	open := id.Open && r.TLS == nil
	if id.Tokens != nil {
		name, err := id.Tokens.verify(r.Context(), r.Header)
		if !open || !errors.Is(err, errNoToken) {
			return Caller{Name: name}, err
		}
	}
	if !open {
		return Caller{}, rest.Errorf(http.StatusUnauthorized, codeNoIdentity, "a client certificate of the region's CA is needed")
	}
	return Caller{Name: Anonymous, System: id.Trusting && id.Tenancy.Enabled}, nil
}

// tenant adds what the headers say of a caller's tenant. A caller of the system
// that names none is the system itself.
func (id *Identity) tenant(c Caller, header http.Header) (Caller, error) {
	tenancy := map[string]string{}
	var missing []string
	for _, d := range id.Tenancy.Dimensions {
		if v := header.Get(d.Header); v != "" {
			tenancy[d.Key] = v
		} else if d.Required {
			missing = append(missing, d.Header)
		}
	}
	system := c.System || id.Tenancy.SystemHeader != "" && header.Get(id.Tenancy.SystemHeader) != ""
	switch {
	case system && len(tenancy) == 0:
		// Who only says in a header that it is the system is an adapter at most.
		c.System, c.Reporter = true, c.Reporter || !c.System
	case len(missing) > 0:
		return c, rest.Errorf(http.StatusForbidden, codeForbidden, "the request does not say whose it is; %v is missing", missing)
	default:
		c.System, c.Tenancy = false, tenancy
	}
	return c, nil
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

// sees says whether the caller may see what has a tenancy.
func (c Caller) sees(tenancy map[string]string) bool {
	return c.Tenancy == nil || maps.Equal(c.Tenancy, tenancy)
}
