package access

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"atoll.dev/internal/rest"
	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const (
	testRegion = "atoll-1"
	testID     = "AKIAABCDEFGHIJKLMNOP"
	testSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
	otherID    = "AKIAAAAAAAAAAAAAAAAA"
)

var testTime = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fixedKeys implements Keys by a map.
type fixedKeys map[string]Key

func (k fixedKeys) Lookup(id string) (Key, bool, error) {
	key, ok := k[id]
	return key, ok, nil
}

func testKeys() fixedKeys {
	key := Key{
		AccessKeyID: testID, Secret: testSecret,
		Account: "123456789012", Principal: "arn:aws:iam::123456789012:user/admin", Privileged: true,
	}
	return fixedKeys{testID: key}
}

func testVerifier() *Verifier {
	return &Verifier{Region: testRegion, Keys: testKeys(), Now: func() time.Time { return testTime },
		PresignedMethods: methods}
}

// wire returns the bytes that a client sends for a request.
func wire(t interface{ Fatal(...any) }, r *http.Request) []byte {
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// received parses wire bytes as net/http's server does.
func received(b []byte) (*http.Request, error) {
	return http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
}

func request(t interface{ Fatal(...any) }, method, target, body string) *http.Request {
	r, err := http.NewRequest(method, "https://api.example.com"+target, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func sdkSign(t interface{ Fatal(...any) }, r *http.Request, body string, at time.Time) {
	sdkSignWith(t, r, body, "", at)
}

// sdkSignWith signs with a session token, "" for none.
func sdkSignWith(t interface{ Fatal(...any) }, r *http.Request, body, token string, at time.Time) {
	sum := sha256.Sum256([]byte(body))
	err := v4.NewSigner().SignHTTP(context.Background(), aws.Credentials{AccessKeyID: testID,
		SecretAccessKey: testSecret, SessionToken: token},
		r, hex.EncodeToString(sum[:]), service, testRegion, at)
	if err != nil {
		t.Fatal(err)
	}
}

func sdkPresign(t interface{ Fatal(...any) }, r *http.Request, body string, at time.Time) *http.Request {
	return sdkPresignWith(t, r, body, "", at)
}

// sdkPresignWith presigns with a session token, "" for none.
func sdkPresignWith(t interface{ Fatal(...any) }, r *http.Request, body, token string, at time.Time) *http.Request {
	sum := sha256.Sum256([]byte(body))
	u, header, err := v4.NewSigner().PresignHTTP(context.Background(), aws.Credentials{AccessKeyID: testID,
		SecretAccessKey: testSecret, SessionToken: token},
		r, hex.EncodeToString(sum[:]), service, testRegion, at)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := http.NewRequest(r.Method, u, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for k, vs := range header {
		if k == "Host" || k == "Content-Length" {
			continue
		}
		signed.Header[k] = vs
	}
	return signed
}

// verifyWire verifies a request after it went over a wire.
func verifyWire(t interface{ Fatal(...any) }, v *Verifier, r *http.Request) (Key, []byte, error) {
	got, err := received(wire(t, r))
	if err != nil {
		t.Fatal(err)
	}
	return v.Verify(got)
}

func codeOf(err error) Code {
	if e, ok := errors.AsType[*rest.Error](err); ok {
		return Code(e.Code)
	}
	if err != nil {
		return Code("not a *rest.Error: " + err.Error())
	}
	return ""
}

// AWS's published test suite for Signature Version 4, all of it: the request, what is
// signed, and the signature. The suite's get-header-value-multiline sends one header in three lines and
// signs it with commas; net/http reads such lines as one with spaces (RFC 9112), so the test sends three
// headers. The tests of path normalization are in
// TestPathsAreNotNormalized, and those of session tokens in TestSessionTokensOfAWSTestSuite.
func TestAWSTestSuite(t *testing.T) {
	const host = "Host:example.amazonaws.com\n"
	const date = "X-Amz-Date:20150830T123600Z\n"
	for _, tc := range []struct {
		name, request, signedHeaders, signature string
	}{
		{"get-vanilla", "GET / HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"get-vanilla-empty-query-key", "GET /?Param1=value1 HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"a67d582fa61cc504c4bae71f336f98b97f1ea3c7a6bfe1b6e45aec72011b9aeb"},
		{"get-vanilla-query-order-key-case", "GET /?Param2=value2&Param1=value1 HTTP/1.1\n" + host + date + "\n",
			"host;x-amz-date",
			"b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
		{"get-vanilla-query-unreserved",
			"GET /?-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz=-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
		{"get-vanilla-utf8-query", "GET /?ሴ=bar HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04"},
		{"get-unreserved", "GET /-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz HTTP/1.1\n" + host +
			date + "\n", "host;x-amz-date",
			"07ef7494c76fa4850883e2b006601f940f8a34d404d0cfa977f52a65bbf5f24f"},
		{"get-utf8", "GET /ሴ HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
		{"get-header-key-duplicate", "GET / HTTP/1.1\n" + host +
			"My-Header1:value2\nMy-Header1:value2\nMy-Header1:value1\n" + date + "\n", "host;my-header1;x-amz-date",
			"c9d5ea9f3f72853aea855b47ea873832890dbdd183b4468f858259531a5138ea"},
		{"get-header-value-trim", "GET / HTTP/1.1\n" + host + "My-Header1: value1\nMy-Header2: \"a   b   c\"\n" + date +
			"\n", "host;my-header1;my-header2;x-amz-date",
			"acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
		{"get-header-value-multiline", "GET / HTTP/1.1\n" + host +
			"My-Header1:value1\nMy-Header1:value2\nMy-Header1:value3\n" + date + "\n",
			"host;my-header1;x-amz-date", "ba17b383a53190154eb5fa66a1b836cc297cc0a3d70a5d00705980573d8ff790"},
		{"get-header-value-order", "GET / HTTP/1.1\n" + host +
			"My-Header1:value4\nMy-Header1:value1\nMy-Header1:value3\nMy-Header1:value2\n" + date + "\n",
			"host;my-header1;x-amz-date", "08c7e5a9acfcfeb3ab6b2185e75ce8b1deb5e634ec47601a50643f830c755c01"},
		{"get-vanilla-query", "GET / HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
		{"get-vanilla-query-order-key", "GET /?Param1=value2&Param1=Value1 HTTP/1.1\n" + host + date + "\n",
			"host;x-amz-date", "eedbc4e291e521cf13422ffca22be7d2eb8146eecf653089df300a15b2382bd1"},
		{"get-vanilla-query-order-value", "GET /?Param1=value2&Param1=value1 HTTP/1.1\n" + host + date + "\n",
			"host;x-amz-date", "5772eed61e12b33fae39ee5e7012498b51d56abc0abb7c60486157bd471c4694"},
		{"post-header-key-case", "POST / HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
		{"post-vanilla-empty-query-value", "POST /?Param1=value1 HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
		{"post-vanilla-query", "POST /?Param1=value1 HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"28038455d6de14eafc1f9222cf5aa6f1a96197d7deb8263271d420d138af7f11"},
		{"post-x-www-form-urlencoded-parameters", "POST / HTTP/1.1\n" +
			"Content-Type:application/x-www-form-urlencoded; charset=utf8\n" + host + "Content-Length: 13\n" + date +
			"\nParam1=value1", "content-type;host;x-amz-date",
			"1a72ec8f64bd914b0e42e42607c7fbce7fb2c7465f63e3092b3b0d39fa77a6fe"},
		{"post-vanilla", "POST / HTTP/1.1\n" + host + date + "\n", "host;x-amz-date",
			"5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
		{"post-header-key-sort", "POST / HTTP/1.1\n" + host + "My-Header1:value1\n" + date + "\n",
			"host;my-header1;x-amz-date",
			"c5410059b04c1ee005303aed430f6e6645f61f4dc9e1461ec8f8916fdf18852c"},
		{"post-header-value-case", "POST / HTTP/1.1\n" + host + "My-Header1:VALUE1\n" + date + "\n",
			"host;my-header1;x-amz-date",
			"cdbc9802e29d2942e5e10b5bccfdd67c5f22c7c4e8ae67b53629efa58b974b7d"},
		{"post-x-www-form-urlencoded", "POST / HTTP/1.1\nContent-Type:application/x-www-form-urlencoded\n" + host +
			"Content-Length: 13\n" + date + "\nParam1=value1", "content-type;host;x-amz-date",
			"ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			right, forms := matchesSuite(t, tc.request, tc.signedHeaders, tc.signature)
			if !right {
				t.Errorf("the signature does not match; canonical requests:\n%s", strings.Join(forms, "\n--\n"))
			}
		})
	}
}

// matchesSuite reports whether a signature of AWS's test suite is that of a request.
func matchesSuite(t *testing.T, sent, signedHeaders, signature string) (right bool, forms []string) {
	t.Helper()
	r, err := received([]byte(sent))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization",
		"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders="+signedHeaders+
			", Signature="+signature)
	m, ok := messageOf(r)
	if !ok {
		t.Fatal("no message")
	}
	c, err := parseClaim(m.header, m.query)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	forms = canonicalRequests(m, c, hashOf(body))
	if matches(c, testSecret+"x", forms) {
		t.Error("the signature matches another secret")
	}
	return matches(c, testSecret, forms), forms
}

// The suite's normalize-path: its signatures are of the clean path. Like S3 and AWS's SDK for Go, the
// region takes the path as it was sent: a signature of a clean path is not one of a path that means
// another thing to a proxy. A request that was sent clean is accepted.
func TestPathsAreNotNormalized(t *testing.T) {
	const rest = " HTTP/1.1\nHost:example.amazonaws.com\nX-Amz-Date:20150830T123600Z\n\n"
	const root = "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
	for _, tc := range []struct{ name, path, clean, signature string }{
		{"get-relative", "/example/..", "/", root},
		{"get-relative-relative", "/example1/example2/../..", "/", root},
		{"get-slash", "//", "/", root},
		{"get-slash-dot-slash", "/./", "/", root},
		{"get-slash-pointless-dot", "/./example", "/example",
			"ef75d96142cf21edca26f06005da7988e4f8dc83a165a80865db7089db637ec5"},
		{"get-slashes", "//example//", "/example/", "9a624bd73a37c9a373b5312afbebe7a714a789de108f0bdfe846570885f57e84"},
		{"get-space", "/example%20space/", "/example%20space/",
			"652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"},
	} {
		for path, want := range map[string]bool{tc.path: tc.path == tc.clean, tc.clean: true} {
			if right, forms := matchesSuite(t, "GET "+path+rest, "host;x-amz-date", tc.signature); right != want {
				t.Errorf("%s, sent as %s: %v; canonical requests:\n%s", tc.name, path, right,
					strings.Join(forms, "\n--\n"))
			}
		}
	}
}

// The suite's post-sts-token: the token is signed, or added after signing. The region refuses the second
// form, because any x-amz-* header must be signed.
func TestSessionTokensOfAWSTestSuite(t *testing.T) {
	const token = "AQoDYXdzEPT//////////wEXAMPLEtc764bNrC9SAPBSM22wDOk4x4HIZ8j4FZTwdQWLWsKWHGBuFqwAeMicRXmxfp" +
		"SPfIeoIYRqTflfKD8YUuwthAx7mSEI/qkPpKPi/kMcGdQrmGdeehM4IC1NtBmUpp2wUE8phUZampKsburEDy0KPkyQ" +
		"DYwT7WZ0wq5VSXDvp75YU9HFvlRd8Tx6q6fE8YQcHNVXAkiY9q6d+xo0rKwT38xVqr7ZD0u0iPPkUL64lIZbqBAz+s" +
		"cqKmlzm8FDrypNC9Yjc8fPOLn9FX9KSYvKTr4rvx3iSIlTJabIQwj2ICCR/oLxBA=="
	const sent = "POST / HTTP/1.1\nHost:example.amazonaws.com\nX-Amz-Date:20150830T123600Z\n" +
		"X-Amz-Security-Token:" + token + "\n\n"
	right, forms := matchesSuite(t, sent, "host;x-amz-date;x-amz-security-token",
		"85d96828115b5dc0cfc3bd16ad9e210dd772bbebba041836c64533a82be05ead")
	if !right {
		t.Errorf("post-sts-header-before; canonical requests:\n%s", strings.Join(forms, "\n--\n"))
	}
	right, _ = matchesSuite(t, sent, "host;x-amz-date", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b")
	if !right {
		t.Error("post-sts-header-after")
	}
	r, err := received([]byte(sent))
	if err != nil {
		t.Fatal(err)
	}
	m, _ := messageOf(r)
	c := &signatureClaim{signedHeaders: []string{"host", "x-amz-date"}}
	if err := c.checkHeaders(m); codeOf(err) != UnsignedHeader {
		t.Errorf("a token that is not signed: %v", err)
	}
}

// The example in AWS's documentation of how a signing key is derived.
func TestSigningKeyOfAWSDocumentation(t *testing.T) {
	got := hex.EncodeToString(deriveSigningKey("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", scope{"20150830", "us-east-1",
		"iam", terminator}))
	if want := "c4afb1cc5771d871763a393e44b703571b55cc28424d1a5e86da6ed3c154a4b9"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

var targets = []string{
	"/",
	"/prod/api/v0/management_clusters",
	"/prod/api/v0/management_clusters?page=2&size=50",
	"/api/v0/work?size=50&page=2",
	"/api/v0/work?a=2&a=1&b",
	"/api/v0/work?search=" + url.QueryEscape("name like 'a%' and labels.x = 'ü+ß'"),
	"/api/v0/work?é=1&z=2&~=3&a-b=4&a%20b=5",
	"/api/v0/work/a%20b",
	"/api/v0/work/a%2Fb",
	"/api/v0/work/a%252Fb",
	"/api/v0/work/ü",
	"/api/v0/work/a:b@c;d,e=f$g&h+i!j*k'l(m)",
	"/api/v0//work/../x/./y/",
	"/api/v0/work?x=%2f&y=+&z=a%2Bb",
}

func TestWhatAWSsSDKSigns(t *testing.T) {
	for _, target := range targets {
		for _, body := range []string{"", `{"name":"x"}`} {
			t.Run(fmt.Sprintf("%s %d", target, len(body)), func(t *testing.T) {
				r := request(t, "POST", target, body)
				r.Header.Set("Content-Type", "application/json")
				sdkSign(t, r, body, testTime)
				key, got, err := verifyWire(t, testVerifier(), r)
				if err != nil || key.AccessKeyID != testID || string(got) != body {
					t.Errorf("header form: %v %q %v", key.AccessKeyID, got, err)
				}
				r = sdkPresign(t, request(t, "POST", target, body), body, testTime)
				key, got, err = verifyWire(t, testVerifier(), r)
				if err != nil || key.AccessKeyID != testID || string(got) != body {
					t.Errorf("presigned form: %v %q %v", key.AccessKeyID, got, err)
				}
			})
		}
	}
}

// signAs signs a canonical path and query that a client computes in its own way.
func signAs(path, query string) string {
	empty := sha256.Sum256(nil)
	c := &signatureClaim{date: testTime, scope: scope{testTime.Format(dateFormat), testRegion, service, terminator}}
	canonical := "GET\n" + path + "\n" + query + "\nhost:api.example.com\nx-amz-date:" + testTime.Format(timeFormat) +
		"\n\nhost;x-amz-date\n" + hex.EncodeToString(empty[:])
	return fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=host;x-amz-date, Signature=%x",
		testID, c.scope, computeSignature(deriveSigningKey(testSecret, c.scope), c, canonical))
}

// What clients sign that are not in the tests: curl before 8.11 the path as
// sent, curl before 8.1 the query as sent, botocore the query sorted but not
// encoded again, awscurl's path encoded once more.
func TestWhatOtherClientsSign(t *testing.T) {
	for _, path := range []string{"/api/v0/work/a%20b", "/api/v0/work/a%2520b"} {
		for query, want := range map[string]Code{
			"b=2%2f+x&a=1&c":     "",
			"a=1&b=2%2F%20x&c=":  "",
			"a=1&b=2%2f+x&c=":    "",
			"a=1&b=2%2F%20x":     WrongSignature,
			"a=1&b=2%2F%2Bx&c=":  WrongSignature,
			"a=1&b=2%252F%20x&c": WrongSignature,
		} {
			r := request(t, "GET", "/api/v0/work/a%20b?b=2%2f+x&a=1&c", "")
			r.Header.Set("X-Amz-Date", testTime.Format(timeFormat))
			r.Header.Set("Authorization", signAs(path, query))
			if _, _, err := verifyWire(t, testVerifier(), r); codeOf(err) != want {
				t.Errorf("%s %s: %v", path, query, err)
			}
		}
	}
}

// A path as sent must not be accepted where it is AWS's form of another path.
func TestOnePathIsNotSignedForAnother(t *testing.T) {
	// AWS's form of /a%2Fb is /a%252Fb. Its signer meant /a%2Fb.
	authorization := signAs("/a%252Fb", "")
	for path, want := range map[string]Code{"/a%2Fb": "", "/a%252Fb": WrongSignature} {
		r := request(t, "GET", path, "")
		r.Header.Set("X-Amz-Date", testTime.Format(timeFormat))
		r.Header.Set("Authorization", authorization)
		_, _, err := verifyWire(t, testVerifier(), r)
		if codeOf(err) != want {
			t.Errorf("%s: %v", path, err)
		}
		if want != "" && !strings.Contains(err.Error(), "%25") {
			t.Errorf("the reason does not help: %v", err)
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)
