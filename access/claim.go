package access

import (
	"cmp"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	terminator = "aws4_request"
	service    = "execute-api"
	timeFormat = "20060102T150405Z"
	dateFormat = "20060102"

	// skew is how far the date of a request may be from the region's clock.
	skew = 15 * time.Minute
	// mutationSkew is how far the date of a mutation may be ahead of the region's clock: the
	// region remembers its signature until the signature ends.
	mutationSkew = 5 * time.Minute
	// maxExpiry of a presigned request is AWS's.
	maxExpiry = 7 * 24 * time.Hour
)

// signatureClaim has the statements of a request about its own signature, which are not verified.
type signatureClaim struct {
	presigned bool

	keyID string
	scope scope
	date  time.Time
	// expires is how long a presigned request is valid after its date.
	expires time.Duration

	signedHeaders []string // lower case, in the order that was signed
	signature     [32]byte

	token       string // session token
	hasToken    bool
	payloadHash string // x-amz-content-sha256; empty when not declared
}

// scope is the credential scope: date/region/service/terminator.
type scope struct{ date, region, service, terminator string }

func (s scope) String() string {
	return s.date + "/" + s.region + "/" + s.service + "/" + s.terminator
}

// parseClaim reads the claim of a request from its Authorization header or from its
// query, whichever has a signature.
func parseClaim(h http.Header, rawQuery string) (*signatureClaim, error) {
	params, err := signatureParams(rawQuery)
	if err != nil {
		return nil, err
	}
	header := h.Values("Authorization")
	switch {
	case len(header) == 0 && len(params) == 0:
		return nil, refuse(MissingAuthentication,
			"the request is not signed; sign it with AWS Signature Version 4 for the service %s, as curl --aws-sigv4 "+
				"does", service)
	case len(header) > 1 || len(header) == 1 && len(params) > 0:
		return nil, refuse(AmbiguousSignature,
			"the request has more than one signature; send one Authorization header, or one set of X-Amz-* query "+
				"parameters")
	case len(header) == 1:
		return parseHeaderClaim(h, header[0])
	}
	return parseQueryClaim(h, params)
}

// parseHeaderClaim reads
//
//	AWS4-HMAC-SHA256 Credential=ID/DATE/REGION/SERVICE/aws4_request, SignedHeaders=a;b, Signature=HEX
func parseHeaderClaim(h http.Header, value string) (*signatureClaim, error) {
	scheme, rest, _ := strings.Cut(value, " ")
	if scheme != algorithm {
		return nil, refuse(UnsupportedAlgorithm, "the Authorization header has the scheme %s; only %s is accepted",
			quoted(scheme), algorithm)
	}
	parts := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		name, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if _, twice := parts[name]; !ok || twice || !slices.Contains([]string{"Credential", "SignedHeaders",
			"Signature"}, name) {
			return nil, refuse(IncompleteSignature,
				"the Authorization header is not 'Credential=..., SignedHeaders=..., Signature=...' after %s",
				algorithm)
		}
		parts[name] = v
	}
	for _, name := range []string{"Credential", "SignedHeaders", "Signature"} {
		if parts[name] == "" {
			return nil, refuse(IncompleteSignature,
				"the Authorization header lacks %s; send Credential, SignedHeaders and Signature", name)
		}
	}
	c := &signatureClaim{}
	if err := c.parseParts(parts["Credential"], parts["SignedHeaders"], parts["Signature"]); err != nil {
		return nil, err
	}
	dates := h.Values("X-Amz-Date")
	if len(dates) != 1 {
		return nil,
			refuse(InvalidDate, "the request has %d X-Amz-Date headers; send one, like 20150830T123600Z, and sign it",
				len(dates))
	}
	if err := c.setDate(dates[0]); err != nil {
		return nil, err
	}
	tokens := h.Values("X-Amz-Security-Token")
	if len(tokens) > 1 {
		return nil, refuse(AmbiguousSignature, "the request has several X-Amz-Security-Token headers; send one at most")
	}
	if c.hasToken = len(tokens) == 1; c.hasToken {
		c.token = tokens[0]
	}
	return c, c.setPayloadHash(h.Values("X-Amz-Content-Sha256"))
}

// Parameters of a presigned request.
const (
	paramAlgorithm     = "X-Amz-Algorithm"
	paramCredential    = "X-Amz-Credential"
	paramDate          = "X-Amz-Date"
	paramExpires       = "X-Amz-Expires"
	paramSignedHeaders = "X-Amz-SignedHeaders"
	paramSignature     = "X-Amz-Signature"
	paramToken         = "X-Amz-Security-Token"
	paramPayloadHash   = "X-Amz-Content-Sha256"
)

var presignParams = []string{
	paramAlgorithm, paramCredential, paramDate, paramExpires,
	paramSignedHeaders, paramSignature, paramToken, paramPayloadHash,
}

// signatureParams returns the parameters of a presigned request, or none when
// the query has no signature: X-Amz-Algorithm, -Credential or -Signature.
func signatureParams(rawQuery string) (map[string]string, error) {
	found := map[string]string{}
	signed := false
	for name, value := range queryPairs(rawQuery) {
		n, ok := unescapeQuery(name)
		if !ok || !slices.Contains(presignParams, n) {
			continue
		}
		v, ok := unescapeQuery(value)
		if _, twice := found[n]; twice || !ok {
			return nil, refuse(AmbiguousSignature,
				"the query parameter %s is there twice, or is not URL-encoded; send it once", n)
		}
		found[n] = v
		signed = signed || n == paramAlgorithm || n == paramCredential || n == paramSignature
	}
	if !signed {
		return nil, nil
	}
	return found, nil
}

func parseQueryClaim(h http.Header, params map[string]string) (*signatureClaim, error) {
	for _, name := range []string{paramAlgorithm, paramCredential, paramDate, paramSignedHeaders, paramSignature} {
		if params[name] == "" {
			return nil, refuse(IncompleteSignature, "the presigned request lacks the query parameter %s", name)
		}
	}
	if a := params[paramAlgorithm]; a != algorithm {
		return nil, refuse(UnsupportedAlgorithm, "X-Amz-Algorithm is %s; only %s is accepted", quoted(a), algorithm)
	}
	c := &signatureClaim{presigned: true, expires: skew}
	if err := c.parseParts(params[paramCredential], params[paramSignedHeaders], params[paramSignature]); err != nil {
		return nil, err
	}
	if err := c.setDate(params[paramDate]); err != nil {
		return nil, err
	}
	if s, ok := params[paramExpires]; ok {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || time.Duration(n) > maxExpiry/time.Second {
			return nil, refuse(InvalidExpiry, "X-Amz-Expires is %s; send whole seconds from 1 to %d", quoted(s),
				maxExpiry/time.Second)
		}
		c.expires = time.Duration(n) * time.Second
	}
	c.token, c.hasToken = params[paramToken]
	if len(h.Values("X-Amz-Security-Token")) > 0 {
		return nil, refuse(AmbiguousSignature,
			"a presigned request carries its session token in the query; send no X-Amz-Security-Token header")
	}
	hashes := h.Values("X-Amz-Content-Sha256")
	if hash, ok := params[paramPayloadHash]; ok {
		hashes = append(slices.Clone(hashes), hash)
	}
	return c, c.setPayloadHash(hashes)
}

// parseParts reads the three parts that both forms have.
func (c *signatureClaim) parseParts(credential, signedHeaders, signature string) error {
	parts := strings.Split(credential, "/")
	if len(parts) != 5 || slices.Contains(parts, "") {
		return refuse(IncompleteSignature, "the credential is not KEYID/DATE/REGION/SERVICE/%s", terminator)
	}
	c.keyID = parts[0]
	c.scope = scope{parts[1], parts[2], parts[3], parts[4]}

	c.signedHeaders = strings.Split(signedHeaders, ";")
	seen := make(map[string]bool, len(c.signedHeaders))
	for _, n := range c.signedHeaders {
		if !isHeaderName(n) || seen[n] {
			return refuse(IncompleteSignature,
				"SignedHeaders is not a list of different header names in lower case with semicolons between them")
		}
		seen[n] = true
	}
	b, err := hex.DecodeString(signature)
	if err != nil || len(b) != len(c.signature) || strings.ToLower(signature) != signature {
		return refuse(IncompleteSignature, "the signature is not 64 hexadecimal digits in lower case")
	}
	copy(c.signature[:], b)
	return nil
}

// isHeaderName reports whether s is an HTTP token without upper case.
func isHeaderName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

func (c *signatureClaim) setDate(s string) error {
	t, err := time.Parse(timeFormat, s)
	if err != nil || t.Format(timeFormat) != s {
		return refuse(InvalidDate, "the X-Amz-Date %s is not of the form 20150830T123600Z", quoted(s))
	}
	c.date = t
	return nil
}

// Values of x-amz-content-sha256 that are not a hash.
const (
	unsignedPayload = "UNSIGNED-PAYLOAD"
	streamingPrefix = "STREAMING-"
)

func (c *signatureClaim) setPayloadHash(values []string) error {
	switch {
	case len(values) == 0:
		return nil
	case len(values) > 1:
		return refuse(AmbiguousSignature, "the request declares x-amz-content-sha256 more than once; declare it once")
	}
	v := values[0]
	b, err := hex.DecodeString(v)
	isHash := err == nil && len(b) == 32 && strings.ToLower(v) == v
	switch {
	case strings.HasPrefix(v, streamingPrefix):
		return refuse(UnsignedPayload, "x-amz-content-sha256 %s is not accepted; send the hash of the body", quoted(v))
	case !isHash && v != unsignedPayload:
		return refuse(PayloadMismatch, "x-amz-content-sha256 is not a SHA-256 in 64 hexadecimal digits in lower case")
	}
	c.payloadHash = v
	return nil
}

// checkScope refuses a credential scope of another service, region or date.
func (c *signatureClaim) checkScope(region string) error {
	day := c.date.Format(dateFormat)
	switch {
	case c.scope.terminator != terminator:
		return refuse(WrongTerminator, "the credential scope ends in %s; it must end in %s", quoted(c.scope.terminator),
			terminator)
	case c.scope.service != service:
		return refuse(WrongService, "the credential is scoped to the service %s; sign for %s", quoted(c.scope.service),
			service)
	case c.scope.region != region:
		return refuse(WrongRegion, "the credential is scoped to the region %s; this is %s: sign for it",
			quoted(c.scope.region), region)
	case c.scope.date != day:
		return refuse(WrongDate, "the credential scope has the date %s, and the request %s; sign with one date, in UTC",
			quoted(c.scope.date), day)
	}
	return nil
}

// checkTime refuses a signature that is not valid yet, or no longer.
func (c *signatureClaim) checkTime(now time.Time, method string) error {
	now = now.UTC()
	ahead := skew
	if isMutation(method) {
		ahead = mutationSkew
	}
	if c.date.Sub(now) > ahead {
		return refuse(SignatureInFuture,
			"the request is dated %s and the region's clock says %s; set the clock of the signing machine",
			c.date.Format(timeFormat), now.Format(timeFormat))
	}
	if until := c.validUntil(); now.After(until) {
		return refuse(SignatureExpired,
			"the signature of %s was valid until %s and the region's clock says %s; sign again, and see that the "+
				"signing machine's clock is right",
			c.date.Format(timeFormat), until.Format(timeFormat), now.Format(timeFormat))
	}
	return nil
}

// validUntil returns the last moment at which the signature is accepted.
func (c *signatureClaim) validUntil() time.Time {
	if c.presigned {
		return c.date.Add(c.expires)
	}
	return c.date.Add(skew)
}

// checkPresigned refuses a presigned request that is valid too long, or has a method
// that presigned requests may not have.
func (v *Verifier) checkPresigned(c *signatureClaim, method string) error {
	if !c.presigned {
		return nil
	}
	if most := cmp.Or(v.MaxPresigned, skew); c.expires > most {
		return refuse(InvalidExpiry, "X-Amz-Expires is %d; a presigned request is valid for %d seconds at most",
			c.expires/time.Second, most/time.Second)
	}
	methods := v.PresignedMethods
	if methods == nil {
		methods = []string{http.MethodGet}
	}
	if !slices.Contains(methods, method) {
		return refuse(PresignedMethod, "a presigned request may be %s only; sign this request in its Authorization header",
			strings.Join(methods, ", "))
	}
	return nil
}

// checkHeaders refuses a signature that lacks a header which must be signed.
func (c *signatureClaim) checkHeaders(m message) error {
	if !slices.Contains(c.signedHeaders, "host") {
		return refuse(UnsignedHeader, "the header host is not signed; add it to SignedHeaders")
	}
	if !c.presigned && !slices.Contains(c.signedHeaders, "x-amz-date") {
		return refuse(UnsignedHeader, "the header x-amz-date is not signed; add it to SignedHeaders")
	}
	for name := range m.header {
		if n := strings.ToLower(name); strings.HasPrefix(n, "x-amz-") && !slices.Contains(c.signedHeaders, n) {
			return refuse(UnsignedHeader, "the header %s is not signed; every x-amz-* header must be in SignedHeaders",
				quoted(n))
		}
	}
	return nil
}

// missingHeader returns a header that SignedHeaders names and the request lacks. A
// signer gives such a header the value of an empty one: curl -H 'Accept:' signs accept
// and does not send it. So a missing header is an error only if the signature is wrong.
func (c *signatureClaim) missingHeader(m message) (string, bool) {
	for _, n := range c.signedHeaders {
		if _, ok := m.headerValue(n); !ok {
			return n, true
		}
	}
	return "", false
}
