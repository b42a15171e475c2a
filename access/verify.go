package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"io"
	"net/http"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// MaxBody is the largest body of a signed request. The signature covers the body,
// so that it is read and hashed before a handler runs.
const MaxBody = 4 << 20

// Verifier verifies the signatures of requests to one region. Several goroutines
// may call its methods.
type Verifier struct {
	Region string
	Keys   Keys
	Now    func() time.Time // default time.Now
}

// Verify returns the key pair that signed r, and the body of r, which it has read.
// Its errors are *rest.Error. It checks the claim, its scope, its date and its
// headers, and after that the body and the signature; an unknown key costs as much
// as a wrong signature.
func (v *Verifier) Verify(r *http.Request) (Key, []byte, error) {
	_, key, body, err := v.verify(r)
	return key, body, err
}

// Identify implements Identifier.
func (v *Verifier) Identify(r *http.Request) (Identity, []byte, error) {
	claimed, key, body, err := v.verify(r)
	if err != nil {
		return Identity{AccessKeyID: claimed}, nil, err
	}
	return Identity{
		Principal: key.Principal, Account: cluster.Account(key.Account),
		AccessKeyID: key.AccessKeyID, Privileged: key.Privileged,
	}, body, nil
}

// verify also returns the access key id that the request claims, for the log.
func (v *Verifier) verify(r *http.Request) (claimed string, key Key, body []byte, err error) {
	m, ok := messageOf(r)
	if !ok {
		return "", Key{}, nil, refuse(InvalidTarget,
			"the request target is not a path; send the path and query only, and the host in the Host header")
	}
	c, err := parseClaim(m.header, m.query)
	if err != nil {
		return "", Key{}, nil, err
	}
	now := time.Now
	if v.Now != nil {
		now = v.Now
	}
	for _, err := range []error{c.checkScope(v.Region), c.checkTime(now()), c.checkHeaders(m)} {
		if err != nil {
			return c.keyID, Key{}, nil, err
		}
	}
	key, known, err := v.Keys.Lookup(c.keyID)
	if err != nil {
		return c.keyID, Key{}, nil, refuse(KeysNotReady,
			"the region has not read its key pairs yet, so it cannot tell who signed; try again").Because(err)
	}
	if !known {
		key = Key{Secret: decoySecret}
	}
	body, err = readBody(r)
	if err != nil {
		return c.keyID, Key{}, nil, err
	}
	payloadHash, err := c.checkPayload(body)
	if err != nil {
		return c.keyID, Key{}, nil, err
	}
	right := matches(c, key.Secret, canonicalRequests(m, c, payloadHash))
	switch {
	case !known:
		return c.keyID, Key{}, nil, refuse(UnknownKey,
			"nobody in this region has the access key id %s; see 'atoll key list'", quoted(c.keyID))
	case !right:
		if n, ok := c.missingHeader(m); ok {
			return c.keyID, Key{}, nil, refuse(MissingHeader,
				"SignedHeaders names %s, which the request does not have; send it, and see that no proxy removes it",
				quoted(n))
		}
		return c.keyID, Key{}, nil, refuse(WrongSignature, "%s", wrongSignature(m))
	case !tokenMatches(c, key):
		return c.keyID, Key{}, nil, refuse(UnexpectedToken,
			"the session token is not one of this access key; send the token that came with the key, or none")
	case key.Disabled:
		// Only a caller who has the secret gets this error.
		return c.keyID, Key{}, nil, refuse(DisabledKey, "the access key %s is disabled; use another", quoted(c.keyID))
	}
	return c.keyID, key, body, nil
}

// decoySecret has the length of a real secret, so that an unknown key takes the
// same time.
const decoySecret = "0000000000000000000000000000000000000000"

// matches reports whether the claimed signature is that of one of the forms. Its
// time does not depend on how much of a signature is right.
func matches(c *claim, secret string, forms []string) bool {
	key := signingKey(secret, c.scope)
	right := 0
	for _, f := range forms {
		right |= subtle.ConstantTimeCompare(signature(key, c, f), c.signature[:])
	}
	return right == 1
}

// wrongSignature returns a message with the usual mistakes, and never the right
// signature.
func wrongSignature(m message) string {
	s := "the signature is not that of this request by this key; check the secret access key, and that the request " +
		"is sent exactly as it was signed: method, host, path, query, signed headers and body"
	for i := 0; i+3 <= len(m.path); i++ {
		if m.path[i:i+3] == "%25" {
			return s + "; a path with %25 must be signed encoded twice, as AWS's signers do"
		}
	}
	return s
}

func tokenMatches(c *claim, key Key) bool {
	if !c.hasToken {
		return key.SessionToken == ""
	}
	return key.SessionToken != "" && subtle.ConstantTimeCompare([]byte(c.token), []byte(key.SessionToken)) == 1
}

func readBody(r *http.Request) ([]byte, error) {
	tooLarge := refuse(BodyTooLarge, "the request body is larger than %d bytes; send less", MaxBody)
	if r.ContentLength > MaxBody {
		rest.Drain(r)
		return nil, tooLarge
	}
	if r.Body == nil {
		return nil, nil
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	switch {
	case len(body) > MaxBody:
		rest.Drain(r)
		return nil, tooLarge
	case err != nil:
		return nil, refuse(BodyIncomplete, "the request body ended early; send it whole").Because(err)
	}
	return body, nil
}

// checkPayload returns the payload hash that the canonical request has.
func (c *claim) checkPayload(body []byte) (string, error) {
	if c.payloadHash == unsignedPayload {
		if len(body) > 0 {
			return "",
				refuse(UnsignedPayload,
					"a request with a body must sign it; send its SHA-256 in x-amz-content-sha256, or leave that "+
						"header out")
		}
		return unsignedPayload, nil
	}
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	if c.payloadHash != "" && c.payloadHash != hash {
		return "",
			refuse(PayloadMismatch,
				"x-amz-content-sha256 is not the hash of the body that arrived; send the body that was signed")
	}
	return hash, nil
}
