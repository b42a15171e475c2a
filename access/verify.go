package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"atoll.dev/access/policy"
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

	// MaxPresigned is the longest validity of a presigned request; default 15 minutes.
	MaxPresigned time.Duration

	// PresignedMethods are the methods that a presigned request may have; default GET.
	// Whoever reads the URL of a presigned request may send it.
	PresignedMethods []string

	// Used, unless nil, is called with each key that has signed a request. It must not block.
	Used func(accessKeyID string, at time.Time)
}

// Verify returns the key pair that signed r, and the body of r, which it has read.
// Its errors are *rest.Error. It checks, in this order, the claim, its scope, its
// date and its headers; the key; the signature, when the request declares the hash
// of its body; then it reads the body and checks its hash, and the state of the key
// again. So it reads no body for an unknown key, and none for a wrong signature over a
// declared hash.
func (v *Verifier) Verify(r *http.Request) (Key, []byte, error) {
	_, key, body, err := v.verify(r)
	return key, body, err
}

// Identify implements Identifier.
func (v *Verifier) Identify(r *http.Request) (Identity, []byte, error) {
	c, key, body, err := v.verify(r)
	if err != nil {
		var claimed Identity
		if c != nil {
			claimed.AccessKeyID = c.keyID
		}
		return claimed, nil, err
	}
	if v.Used != nil {
		v.Used(key.AccessKeyID, v.now())
	}
	return Identity{
		Principal: key.Principal, Account: key.Account,
		AccessKeyID: key.AccessKeyID, Privileged: key.Privileged,
		Evidence: Evidence{Method: c.method(), Credential: key.AccessKeyID, Session: sessionOf(key.Principal),
			Until: c.until(key)},
		Proof: Proof{Signature: c.signature, ValidUntil: c.validUntil()},
	}, body, nil
}

// until returns when the claim proves nothing more: at the end of temporary credentials, and of a presigned
// request, which anybody who reads its URL may have sent. Zero: it has no such end.
func (c *signatureClaim) until(key Key) time.Time {
	if !c.presigned || !key.Expires.IsZero() && key.Expires.Before(c.validUntil()) {
		return key.Expires
	}
	return c.validUntil()
}

// method returns the way by which the claim proves an identity.
func (c *signatureClaim) method() Method {
	if c.presigned {
		return ByPresigned
	}
	return BySignature
}

// sessionOf returns the name of an assumed role's session; "" for other principals.
func sessionOf(principal policy.Principal) string {
	if policy.RoleOf(principal) == "" {
		return ""
	}
	return string(principal[strings.LastIndexByte(string(principal), '/')+1:])
}

// verify also returns the claim, for the log and the proof; nil when there is none.
func (v *Verifier) verify(r *http.Request) (c *signatureClaim, key Key, body []byte, err error) {
	m, ok := messageOf(r)
	if !ok {
		return nil, Key{}, nil, refuse(InvalidTarget,
			"the request target is not a path; send the path and query only, and the host in the Host header")
	}
	if c, err = parseClaim(m.header, m.query); err != nil {
		return nil, Key{}, nil, err
	}
	for _, err := range []error{c.checkScope(v.Region), v.checkPresigned(c, m.method), c.checkTime(v.now(), m.method),
		c.checkHeaders(m), c.checkUnsignedPayload(r)} {
		if err != nil {
			return c, Key{}, nil, err
		}
	}
	key, known, err := v.lookup(c.keyID)
	if err != nil {
		return c, Key{}, nil, err
	}
	if !known {
		key = Key{Secret: decoySecret}
	}
	hash := c.hashBeforeBody(r)
	if hash == "" && known {
		if body, err = readBody(r, senderUnproven); err != nil {
			return c, Key{}, nil, err
		}
		hash = hashOf(body)
	}
	err = v.check(m, c, key, hash) // also of an unknown key, so that it takes the same time
	if !known {
		err = unknownKey(c.keyID)
	}
	if err != nil {
		return c, Key{}, nil, err
	}
	if err := keepConnection(r); err != nil {
		return c, Key{}, nil, err
	}
	if body == nil {
		if body, err = readBody(r, senderProven); err != nil {
			return c, Key{}, nil, err
		}
	} else if lease, ok := r.Context().Value(bodyLeaseKey{}).(*bodyLease); ok {
		lease.prove()
	}
	if err := c.checkPayload(body); err != nil {
		return c, Key{}, nil, err
	}
	if key, err = v.confirm(c, key); err != nil {
		return c, Key{}, nil, err
	}
	return c, key, body, nil
}

// lookup returns the present key pair of an access key id. Its errors are *rest.Error.
func (v *Verifier) lookup(id string) (key Key, known bool, err error) {
	key, known, err = v.Keys.Lookup(id)
	switch {
	case errors.Is(err, ErrTooOld):
		return Key{}, false, keysTooOld().Because(err)
	case err != nil:
		return Key{}, false, refuse(KeysNotReady,
			"the region has not read its key pairs yet, so it cannot identify the signer; try again").Because(err)
	}
	return key, known, nil
}

// confirm returns the present state of the key that has signed. An operator may have changed the key, or
// its account, while the body arrived.
func (v *Verifier) confirm(c *signatureClaim, signed Key) (Key, error) {
	key, known, err := v.lookup(c.keyID)
	switch {
	case err != nil:
		return Key{}, err
	case !known, key.Principal != signed.Principal, key.Account != signed.Account:
		return Key{}, unknownKey(c.keyID)
	}
	return key, v.checkState(c, key)
}

func unknownKey(id string) *rest.Error {
	return refuse(UnknownKey, "nobody in this region has the access key id %s; see 'atoll key list'", quoted(id))
}

// checkState refuses a key that is disabled or has expired.
func (v *Verifier) checkState(c *signatureClaim, key Key) error {
	switch {
	case key.Disabled:
		// Only a caller who has the secret gets this error.
		return refuse(DisabledKey, "the access key %s is disabled; use another", quoted(c.keyID))
	case !key.Expires.IsZero() && !v.now().Before(key.Expires):
		return expired(key.Expires)
	}
	return nil
}

func (v *Verifier) now() time.Time {
	if v.Now != nil {
		return v.Now()
	}
	return time.Now()
}

// check refuses a request that the key has not signed, a session token that is not the key's, and a key that is
// disabled or has expired.
func (v *Verifier) check(m message, c *signatureClaim, key Key, payloadHash string) error {
	isRight := matches(c, key.Secret, canonicalRequests(m, c, payloadHash))
	switch {
	case !isRight:
		if n, ok := c.missingHeader(m); ok {
			return refuse(MissingHeader,
				"SignedHeaders names %s, which the request does not have; send it, and see that no proxy removes it",
				quoted(n))
		}
		return refuse(WrongSignature, "%s", wrongSignature(m))
	case !tokenMatches(c, key):
		return refuse(UnexpectedToken,
			"the session token is not one of this access key; send the token that came with the key, or none")
	}
	return v.checkState(c, key)
}

// decoySecret has the length of a real secret, so that an unknown key takes the
// same time.
const decoySecret = "0000000000000000000000000000000000000000"

// matches reports whether the claimed signature is that of one of the forms. Its
// time does not depend on how much of a signature is right.
func matches(c *signatureClaim, secret string, forms []string) bool {
	key := deriveSigningKey(secret, c.scope)
	right := 0
	for _, f := range forms {
		right |= subtle.ConstantTimeCompare(computeSignature(key, c, f), c.signature[:])
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

func tokenMatches(c *signatureClaim, key Key) bool {
	if !c.hasToken {
		return key.SessionToken == ""
	}
	return key.SessionToken != "" && subtle.ConstantTimeCompare([]byte(c.token), []byte(key.SessionToken)) == 1
}

// hashBeforeBody returns the payload hash of the canonical request when it is known
// before the body is read: it is declared, or there is no body. Otherwise it returns "".
func (c *signatureClaim) hashBeforeBody(r *http.Request) string {
	if c.payloadHash == "" && (r.ContentLength == 0 || r.Body == nil || r.Body == http.NoBody) {
		return hashOf(nil)
	}
	return c.payloadHash
}

func hashOf(body []byte) string {
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:])
}

// checkUnsignedPayload refuses a body that the signature does not cover.
func (c *signatureClaim) checkUnsignedPayload(r *http.Request) error {
	if c.payloadHash == unsignedPayload && r.ContentLength != 0 {
		return refuse(UnsignedPayload,
			"a request with a body must sign it; send its SHA-256 in x-amz-content-sha256, or leave that header out")
	}
	return nil
}

// checkPayload refuses a body that is not the declared one.
func (c *signatureClaim) checkPayload(body []byte) error {
	switch {
	case c.payloadHash == unsignedPayload && len(body) > 0:
		return refuse(UnsignedPayload, "a request with a body must sign it; send its SHA-256 in x-amz-content-sha256")
	case c.payloadHash != "" && c.payloadHash != unsignedPayload && c.payloadHash != hashOf(body):
		return refuse(PayloadMismatch,
			"x-amz-content-sha256 is not the hash of the body that arrived; send the body that was signed")
	}
	return nil
}
