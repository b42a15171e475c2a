package access

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// message has the parts of a request that can be signed, as they were sent.
type message struct {
	method           string
	host             string
	path, query      string // exactly as sent
	header           http.Header
	contentLength    int64
	transferEncoding []string
}

// messageOf returns the parts of a request that can be signed. ok is false when the request's
// target is not a path with an optional query, such as * or a whole URL.
func messageOf(r *http.Request) (m message, ok bool) {
	target := r.RequestURI
	if target == "" { // the request did not come from a server, as in tests
		target = r.URL.RequestURI()
	}
	if !strings.HasPrefix(target, "/") {
		return message{}, false
	}
	path, query, _ := strings.Cut(target, "?")
	return message{
		method: r.Method, host: r.Host, path: path, query: query, header: r.Header,
		contentLength: r.ContentLength, transferEncoding: r.TransferEncoding,
	}, true
}

// headerValue returns the canonical value of a header by its name in lower case:
// the values joined by commas, without space around them, and with single spaces
// inside.
func (m message) headerValue(name string) (string, bool) {
	if name == "host" {
		return m.host, true
	}
	values, ok := m.header[http.CanonicalHeaderKey(name)]
	if !ok {
		// net/http keeps some headers elsewhere.
		switch {
		case name == "content-length" && m.contentLength >= 0:
			return strconv.FormatInt(m.contentLength, 10), true
		case name == "transfer-encoding" && len(m.transferEncoding) > 0:
			return strings.Join(m.transferEncoding, ","), true
		}
		return "", false
	}
	trimmed := make([]string, len(values))
	for i, v := range values {
		trimmed[i] = joinSpaces(strings.Trim(v, " \t"))
	}
	return strings.Join(trimmed, ","), true
}

// joinSpaces replaces each run of spaces by one space.
func joinSpaces(s string) string {
	for strings.Contains(s, "  ") {
		s = strings.ReplaceAll(s, "  ", " ")
	}
	return s
}

// canonicalRequests returns the forms of a request that its signer may have
// signed, without repetition. They differ in the path and the query:
//
//   - AWS's form: the path as sent, encoded once more; the query decoded,
//     sorted and encoded again. Signers differ in whether they sort before or
//     after encoding.
//   - As sent: curl before 8.1 signs path and query so, and curl before 8.11
//     the path.
//
// All forms of one request mean the same, and no form of one request is a form
// of a request that means something else. So a signature that is accepted in
// several forms still allows one request only: a query in every form decodes to
// the same parameters, and a path as sent is accepted only without %25. A path
// with %25 would be ambiguous: curl's signature of /a%252Fb, the name "a%2Fb",
// could be sent again with /a%2Fb, the name "a/b".
func canonicalRequests(m message, c *signatureClaim, payloadHash string) []string {
	paths := []string{encodePath(m.path)}
	if !strings.Contains(m.path, "%25") {
		paths = append(paths, m.path)
	}
	raw := m.query
	if c.presigned {
		raw = withoutSignature(raw)
	}
	queries := append(sortedQueries(raw), raw)

	var headers strings.Builder
	for _, n := range c.signedHeaders {
		v, _ := m.headerValue(n)
		headers.WriteString(n)
		headers.WriteByte(':')
		headers.WriteString(v)
		headers.WriteByte('\n')
	}
	tail := headers.String() + "\n" + strings.Join(c.signedHeaders, ";") + "\n" + payloadHash

	var forms []string
	for _, p := range paths {
		for _, q := range queries {
			f := m.method + "\n" + p + "\n" + q + "\n" + tail
			if !slices.Contains(forms, f) {
				forms = append(forms, f)
			}
		}
	}
	return forms
}

// queryPairs yields names and values as they were sent. A parameter without = has
// an empty value; empty parameters are left out.
func queryPairs(raw string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for part := range strings.SplitSeq(raw, "&") {
			if part == "" {
				continue
			}
			name, value, _ := strings.Cut(part, "=")
			if !yield(name, value) {
				return
			}
		}
	}
}

// unescapeQuery decodes a name or a value of a query; ok is false when it is malformed.
func unescapeQuery(s string) (decoded string, ok bool) {
	u, err := url.QueryUnescape(s)
	return u, err == nil
}

// sortedQueries returns three sorted forms of a query: encoded again and sorted by
// the encoded text (AWS's documents), encoded again and sorted by the decoded text
// (AWS's SDK for Go), and as sent (botocore). They differ beyond ASCII. A query
// that cannot be decoded has no form.
func sortedQueries(raw string) []string {
	var sent, decoded []param
	for name, value := range queryPairs(raw) {
		n, ok1 := unescapeQuery(name)
		v, ok2 := unescapeQuery(value)
		if !ok1 || !ok2 {
			return nil
		}
		sent = append(sent, param{name, value})
		decoded = append(decoded, param{n, v})
	}
	slices.SortFunc(sent, param.compare)
	slices.SortFunc(decoded, param.compare)
	encoded := make([]param, len(decoded))
	for i, p := range decoded {
		encoded[i] = param{encode(p.name), encode(p.value)}
	}
	byDecoded := joinParams(encoded)
	slices.SortFunc(encoded, param.compare)
	return []string{joinParams(encoded), byDecoded, joinParams(sent)}
}

// param is a query parameter.
type param struct{ name, value string }

func (p param) compare(q param) int {
	return cmp.Or(strings.Compare(p.name, q.name), strings.Compare(p.value, q.value))
}

func joinParams(params []param) string {
	var b strings.Builder
	for i, p := range params {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(p.name + "=" + p.value)
	}
	return b.String()
}

// withoutSignature returns a query without X-Amz-Signature: a signature does not cover
// itself.
func withoutSignature(raw string) string {
	var kept []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(part, "=")
		if n, ok := unescapeQuery(name); ok && n == paramSignature {
			continue
		}
		kept = append(kept, part)
	}
	return strings.Join(kept, "&")
}

const upperHex = "0123456789ABCDEF"

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' ||
		c == '~'
}

// encode encodes a text by AWS's URI encoding.
func encode(s string) string { return encodeExcept(s, 0) }

// encodePath encodes all bytes but slashes.
func encodePath(s string) string { return encodeExcept(s, '/') }

// encodeExcept encodes a text by AWS's URI encoding, but not the byte kept; 0 for none.
func encodeExcept(s string, kept byte) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if isUnreserved(c) || c == kept && kept != 0 {
			b.WriteByte(c)
			continue
		}
		b.Write([]byte{'%', upperHex[c>>4], upperHex[c&15]})
	}
	return b.String()
}

// deriveSigningKey derives the key for a scope from a secret.
func deriveSigningKey(secret string, s scope) []byte {
	k := hmacSHA256([]byte("AWS4"+secret), s.date)
	k = hmacSHA256(k, s.region)
	k = hmacSHA256(k, s.service)
	return hmacSHA256(k, s.terminator)
}

// computeSignature computes the signature of a canonical request.
func computeSignature(key []byte, c *signatureClaim, canonicalRequest string) []byte {
	sum := sha256.Sum256([]byte(canonicalRequest))
	return hmacSHA256(key, algorithm+"\n"+c.date.Format(timeFormat)+"\n"+c.scope.String()+"\n"+hex.EncodeToString(sum[:]))
}

func hmacSHA256(key []byte, data string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(data))
	return h.Sum(nil)
}
