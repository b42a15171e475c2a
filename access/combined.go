package access

import (
	"net/http"
	"strings"

	"atoll.dev/cluster"
)

// CombinedIdentifier identifies the caller by the proof that a request has: a signature, a bearer token, or the
// headers of the API Gateway. It refuses a request with two proofs, whether or not the region is configured for
// both: the two may be of different callers.
type CombinedIdentifier struct {
	Signatures *Verifier
	Gateway    *Gateway         // nil: no API Gateway is in front of the region
	Bearers    []BearerVerifier // of the token of "Authorization: Bearer TOKEN"; each verifies another form
}

// BearerVerifier verifies one form of bearer tokens.
type BearerVerifier interface {
	// Takes reports whether a token has the form that this verifier verifies.
	Takes(token string) bool
	// Prove returns the identity that a token proves, without reading the body. Its errors are *rest.Error.
	Prove(r *http.Request, token string) (Identity, error)
}

// Accounts answers questions about the region's accounts from memory.
type Accounts interface {
	// IsPrivileged reports whether an account is privileged. The error is ErrNotReady or ErrTooOld.
	IsPrivileged(account cluster.Account) (bool, error)
	// IsProvisioned reports whether the region knows that it has an account.
	IsProvisioned(account cluster.Account) bool
}

var _ Identifier = (*CombinedIdentifier)(nil)

// Identify implements Identifier.
func (c *CombinedIdentifier) Identify(r *http.Request) (Identity, []byte, error) {
	m, ok := messageOf(r)
	if !ok {
		return c.Signatures.Identify(r) // which refuses it
	}
	token, isBearer := bearerToken(m.header)
	isGateway := claimsGateway(m.header)
	if !isGateway && !isBearer {
		return c.Signatures.Identify(r)
	}
	params, err := signatureParams(m.query)
	switch {
	case err != nil:
		return Identity{}, nil, err
	case len(params) > 0, isGateway && hasAuthorization(m.header), len(m.header.Values("Authorization")) > 1:
		return Identity{}, nil, refuse(AmbiguousIdentity,
			"the request proves an identity in more than one way; send either a signature, or a token, or come through "+
				"the gateway")
	}
	var id Identity
	if isGateway {
		id, err = c.Gateway.prove(r)
	} else {
		id, err = c.proveBearer(r, token)
	}
	if err != nil {
		return Identity{}, nil, err
	}
	if err := keepConnection(r); err != nil {
		return id, nil, err
	}
	body, err := readBody(r, senderProven)
	if err == nil && r.ContentLength != 0 { // the secret, the link or the account may have changed while the body arrived
		if isGateway {
			id, err = c.Gateway.prove(r)
		} else {
			id, err = c.proveBearer(r, token)
		}
	}
	if err != nil {
		return id, nil, err
	}
	return id, body, nil
}

// proveBearer verifies a token by the verifier that takes it.
func (c *CombinedIdentifier) proveBearer(r *http.Request, token string) (Identity, error) {
	for _, verifier := range c.Bearers {
		if verifier.Takes(token) {
			return verifier.Prove(r, token)
		}
	}
	return Identity{}, refuse(UnsupportedAlgorithm,
		"this region takes no bearer token of this form; sign the request with AWS Signature Version 4")
}

// bearerToken returns the token of the request's first Authorization header that is not empty.
func bearerToken(h http.Header) (token string, ok bool) {
	for _, value := range h.Values("Authorization") {
		scheme, rest, _ := strings.Cut(value, " ")
		if strings.EqualFold(scheme, "Bearer") {
			return strings.TrimSpace(rest), true
		}
	}
	return "", false
}

// hasAuthorization reports whether a request has an Authorization header with a value. A gateway that
// has verified a signature removes it, or leaves an empty one.
func hasAuthorization(h http.Header) bool {
	for _, value := range h.Values("Authorization") {
		if strings.TrimSpace(value) != "" {
			return true
		}
	}
	return false
}

// privileged returns whether an account is privileged, for the identity that a way has proved.
func privileged(accounts Accounts, account cluster.Account) (bool, error) {
	is, err := accounts.IsPrivileged(account)
	if err != nil {
		return false, refuse(KeysNotReady, "the region cannot read its accounts; try again").Because(err)
	}
	return is, nil
}
