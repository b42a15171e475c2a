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
	sum := sha256.Sum256([]byte(body))
	err := v4.NewSigner().SignHTTP(context.Background(), aws.Credentials{AccessKeyID: testID,
		SecretAccessKey: testSecret},
		r, hex.EncodeToString(sum[:]), service, testRegion, at)
	if err != nil {
		t.Fatal(err)
	}
}

func sdkPresign(t interface{ Fatal(...any) }, r *http.Request, body string, at time.Time) *http.Request {
	sum := sha256.Sum256([]byte(body))
	u, header, err := v4.NewSigner().PresignHTTP(context.Background(), aws.Credentials{AccessKeyID: testID,
		SecretAccessKey: testSecret},
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

// AWS's published test suite for Signature Version 4: the request, what is
// signed, and the signature. Its tests of path normalization are left out, as
// AWS's SDK for Go does not normalize, nor do we.
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
			r, err := received([]byte(tc.request))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization",
				"AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders="+
					tc.signedHeaders+", Signature="+tc.signature)
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
			forms := canonicalRequests(m, c, hashOf(body))
			if !matches(c, testSecret, forms) {
				t.Errorf("the signature does not match; canonical requests:\n%s", strings.Join(forms, "\n--\n"))
			}
			if matches(c, testSecret+"x", forms) {
				t.Error("the signature matches another secret")
			}
		})
	}
}

// The example in AWS's documentation of how a signing key is derived.
func TestSigningKeyOfAWSDocumentation(t *testing.T) {
	got := hex.EncodeToString(signingKey("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", scope{"20150830", "us-east-1",
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
	c := &claim{date: testTime, scope: scope{testTime.Format(dateFormat), testRegion, service, terminator}}
	canonical := "GET\n" + path + "\n" + query + "\nhost:api.example.com\nx-amz-date:" + testTime.Format(timeFormat) +
		"\n\nhost;x-amz-date\n" + hex.EncodeToString(empty[:])
	return fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=host;x-amz-date, Signature=%x",
		testID, c.scope, signature(signingKey(testSecret, c.scope), c, canonical))
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
