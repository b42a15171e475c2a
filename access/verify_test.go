package access

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"atoll.dev/client"
	"atoll.dev/internal/rest"
)

// signedRequest returns a request that package client has signed.
func signedRequest(t *testing.T, body string, at time.Time, creds client.Credentials) *http.Request {
	t.Helper()
	r := request(t, "POST", "/api/v0/work?a=1", body)
	if err := client.Sign(r, []byte(body), creds, at); err != nil {
		t.Fatal(err)
	}
	return r
}

var creds = client.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, Region: testRegion}

func TestWhatOurClientSignsVerifies(t *testing.T) {
	for _, body := range []string{"", "{}"} {
		if key, got, err := verifyWire(t, testVerifier(), signedRequest(t, body, testTime, creds)); err != nil ||
			key.AccessKeyID != testID || string(got) != body {
			t.Errorf("%q: %v %q %v", body, key.AccessKeyID, got, err)
		}
	}
}

// Each fault has its own code.
func TestFaultsOfTheHeaderForm(t *testing.T) {
	edit := func(old, new string) func(*http.Request) {
		return func(r *http.Request) {
			a := r.Header.Get("Authorization")
			if !strings.Contains(a, old) {
				t.Fatalf("%s lacks %s", a, old)
			}
			r.Header.Set("Authorization", strings.Replace(a, old, new, 1))
		}
	}
	set := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, tc := range []struct {
		name     string
		edit     func(*http.Request)
		code     Code
		typ      string
		wantText string
	}{
		{"no signature", func(r *http.Request) { r.Header.Del("Authorization") }, MissingAuthentication, missingToken,
			"not signed"},
		{"two headers", func(r *http.Request) { r.Header.Add("Authorization", "x") }, AmbiguousSignature, incomplete,
			"more than one"},
		{"header and query", func(r *http.Request) { r.URL.RawQuery += "&X-Amz-Signature=x" }, AmbiguousSignature,
			incomplete, "more than one"},
		{"basic", set("Authorization", "Basic Zm9vOmJhcg=="), UnsupportedAlgorithm, incomplete, "'Basic'"},
		{"bearer", set("Authorization", "Bearer x"), UnsupportedAlgorithm, incomplete, "'Bearer'"},
		{"ECDSA", edit("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), UnsupportedAlgorithm, incomplete,
			"AWS4-HMAC-SHA256"},
		{"no credential", edit("Credential=", "Credentials="), IncompleteSignature, incomplete, "Credential="},
		{"empty signature", func(r *http.Request) {
			a := r.Header.Get("Authorization")
			r.Header.Set("Authorization", a[:strings.Index(a, "Signature=")+10])
		}, IncompleteSignature, incomplete, "lacks Signature"},
		{"short signature", func(r *http.Request) {
			r.Header.Set("Authorization", strings.TrimSuffix(r.Header.Get("Authorization"),
				r.Header.Get("Authorization")[len(r.Header.Get("Authorization"))-2:]))
		}, IncompleteSignature, incomplete, "64 hexadecimal"},
		{"credential of four parts", edit("/execute-api/", "/"), IncompleteSignature, incomplete, "KEYID/DATE/REGION"},
		{"terminator", edit("aws4_request", "aws5_request"), WrongTerminator, invalid, "'aws5_request'"},
		{"service", edit("/execute-api/", "/s3/"), WrongService, invalid, "'s3'"},
		{"region", edit("/atoll-1/", "/us-east-1/"), WrongRegion, invalid, "this is atoll-1"},
		{"date", edit("/20260301/", "/20260228/"), WrongDate, invalid, "20260301"},
		{"no date", func(r *http.Request) { r.Header.Del("X-Amz-Date") }, InvalidDate, incomplete, "0 X-Amz-Date"},
		{"two dates", func(r *http.Request) { r.Header.Add("X-Amz-Date", "20260301T120000Z") }, InvalidDate, incomplete,
			"2 X-Amz-Date"},
		{"other date form", set("X-Amz-Date", "Sun, 01 Mar 2026 12:00:00 GMT"), InvalidDate, incomplete,
			"20150830T123600Z"},
		{"host not signed", edit("host;", ""), UnsignedHeader, invalid, "host"},
		{"date not signed", edit(";x-amz-date", ""), UnsignedHeader, invalid, "x-amz-date"},
		{"x-amz header not signed", set("X-Amz-Account-Id", "000000000000"), UnsignedHeader, invalid,
			"'x-amz-account-id'"},
		{"upper case header", edit("host;", "Host;"), IncompleteSignature, incomplete, "lower case"},
		{"header twice", edit("host;", "host;host;"), IncompleteSignature, incomplete, "different"},
		{"signed header gone", edit("host;", "host;x-gone;"), MissingHeader, invalid, "'x-gone'"},
		{"payload hash of another body", set("X-Amz-Content-Sha256", strings.Repeat("0", 64)), WrongSignature, invalid,
			"body"},
		{"body of another hash", func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("[]")) }, PayloadMismatch,
			invalid, "not the hash"},
		{"payload hash is none", set("X-Amz-Content-Sha256", "abc"), PayloadMismatch, invalid, "64 hexadecimal"},
		{"unsigned payload", set("X-Amz-Content-Sha256", unsignedPayload), UnsignedPayload, invalid, "must sign it"},
		{"streaming", set("X-Amz-Content-Sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"), UnsignedPayload, invalid,
			"hash of the body"},
		{"two payload hashes", func(r *http.Request) { r.Header.Add("X-Amz-Content-Sha256", "x") }, AmbiguousSignature,
			incomplete, "more than once"},
		{"other key", edit(testID, otherID), UnknownKey, unrecognized, "'" + otherID + "'"},
		{"other signature", edit("Signature=", "Signature="), "", "", ""},
		{"absolute target", func(r *http.Request) { r.RequestURI = "https://api.example.com/" }, InvalidTarget,
			incomplete, "not a path"},
		{"star", func(r *http.Request) { r.RequestURI = "*" }, InvalidTarget, incomplete, "not a path"},
		{"other method", func(r *http.Request) { r.Method = "PUT" }, WrongSignature, invalid, "secret access key"},
		{"other host", func(r *http.Request) { r.Host = "evil.example.com" }, WrongSignature, invalid, "host"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := signedRequest(t, "{}", testTime, creds)
			tc.edit(r)
			_, _, err := testVerifier().Verify(r)
			if tc.code == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			checkRefusal(t, err)
			e := err.(*rest.Error)
			if Code(e.Code) != tc.code || e.Type != tc.typ || e.Status != http.StatusForbidden ||
				!strings.Contains(e.Reason, tc.wantText) {
				t.Errorf("got %d %s %s: %s", e.Status, e.Code, e.Type, e.Reason)
			}
		})
	}
}

func TestFaultsOfThePresignedForm(t *testing.T) {
	param := func(name, value string) func(url.Values) { return func(q url.Values) { q.Set(name, value) } }
	drop := func(name string) func(url.Values) { return func(q url.Values) { q.Del(name) } }
	for _, tc := range []struct {
		name string
		edit func(url.Values)
		code Code
	}{
		{"as signed", func(url.Values) {}, ""},
		{"no algorithm", drop(paramAlgorithm), IncompleteSignature},
		{"no credential", drop(paramCredential), IncompleteSignature},
		{"no date", drop(paramDate), IncompleteSignature},
		{"no signed headers", drop(paramSignedHeaders), IncompleteSignature},
		{"no signature", drop(paramSignature), IncompleteSignature},
		{"other algorithm", param(paramAlgorithm, "AWS4-ECDSA-P256-SHA256"), UnsupportedAlgorithm},
		{"longer expiry", param(paramExpires, "600"), WrongSignature},
		{"no expiry", drop(paramExpires), WrongSignature},
		{"expiry of 0", param(paramExpires, "0"), InvalidExpiry},
		{"expiry of 8 days", param(paramExpires, "691200"), InvalidExpiry},
		{"expiry of words", param(paramExpires, "soon"), InvalidExpiry},
		{"expiry overflow", param(paramExpires, "9223372036854775807"), InvalidExpiry},
		{"host not signed", param(paramSignedHeaders, "accept"), UnsignedHeader},
		{"twice", func(q url.Values) { q.Add(paramDate, q.Get(paramDate)) }, AmbiguousSignature},
		{"token", param(paramToken, "x"), WrongSignature},
		{"more", param("more", "1"), WrongSignature},
		{"unsigned payload", param(paramPayloadHash, unsignedPayload), UnsignedPayload},
	} {
		r := request(t, "POST", "/api/v0/work?a=1&"+paramExpires+"=60", "{}")
		r = sdkPresign(t, r, "{}", testTime)
		q := r.URL.Query()
		tc.edit(q)
		r.URL.RawQuery = q.Encode()
		if _, _, err := testVerifier().Verify(r); codeOf(err) != tc.code {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestTheClockDecides(t *testing.T) {
	presigned := func(expires time.Duration) *http.Request {
		target := "/x"
		if expires > 0 {
			target += "?" + paramExpires + "=" + strconv.Itoa(int(expires.Seconds()))
		}
		return sdkPresign(t, request(t, "GET", target, ""), "", testTime)
	}
	header := func() *http.Request { return signedRequest(t, "{}", testTime, creds) }
	read := func() *http.Request {
		r := request(t, "GET", "/x", "")
		forge(t, r, creds)
		return r
	}
	for _, tc := range []struct {
		name string
		r    *http.Request
		now  time.Duration
		code Code
	}{
		{"15 minutes early", read(), -15 * time.Minute, ""},
		{"too early", read(), -15*time.Minute - time.Second, SignatureInFuture},
		{"a mutation, 5 minutes early", header(), -5 * time.Minute, ""},
		{"a mutation, too early", header(), -5*time.Minute - time.Second, SignatureInFuture},
		{"15 minutes late", header(), 15 * time.Minute, ""},
		{"too late", header(), 15*time.Minute + time.Second, SignatureExpired},
		{"presigned early", presigned(time.Minute), -15 * time.Minute, ""},
		{"presigned too early", presigned(time.Minute), -15*time.Minute - time.Second, SignatureInFuture},
		{"presigned, last second", presigned(time.Minute), time.Minute, ""},
		{"presigned, expired", presigned(time.Minute), time.Minute + time.Second, SignatureExpired},
		{"presigned, longest", presigned(15 * time.Minute), 15 * time.Minute, ""},
		{"presigned, longer than the longest", presigned(15*time.Minute + time.Second), 0, InvalidExpiry},
		{"presigned without expiry", presigned(0), 15 * time.Minute, ""},
		{"presigned without expiry, late", presigned(0), 15*time.Minute + time.Second, SignatureExpired},
	} {
		v := testVerifier()
		v.Now = func() time.Time { return testTime.Add(tc.now).In(time.FixedZone("", 3600)) }
		if _, _, err := v.Verify(tc.r); codeOf(err) != tc.code {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

func TestSessionTokensAreRefusedUnlessTheKeyHasOne(t *testing.T) {
	for _, tc := range []struct {
		has, sent string
		code      Code
	}{
		{"", "", ""}, {"", "t", UnexpectedToken}, {"t", "t", ""}, {"t", "", UnexpectedToken},
		{"t", "u", UnexpectedToken},
	} {
		keys := testKeys()
		key := keys[testID]
		key.SessionToken = tc.has
		keys[testID] = key
		c := creds
		c.SessionToken = tc.sent
		v := testVerifier()
		v.Keys = keys
		if _, _, err := v.Verify(signedRequest(t, "{}", testTime, c)); codeOf(err) != tc.code {
			t.Errorf("key has %q, request %q: %v", tc.has, tc.sent, err)
		}
	}
}

func TestADisabledKeyIsCalledSoOnlyToItsOwner(t *testing.T) {
	keys := testKeys()
	key := keys[testID]
	key.Disabled = true
	keys[testID] = key
	v := testVerifier()
	v.Keys = keys
	if _, _, err := v.Verify(signedRequest(t, "", testTime, creds)); codeOf(err) != DisabledKey {
		t.Errorf("owner: %v", err)
	}
	c := creds
	c.SecretAccessKey = "guess"
	if _, _, err := v.Verify(signedRequest(t, "", testTime, c)); codeOf(err) != WrongSignature {
		t.Errorf("somebody else: %v", err)
	}
}

type noKeys struct{}

func (noKeys) Lookup(string) (Key, bool, error) { return Key{}, false, errors.New("never filled") }

func TestWithoutKeyPairsNobodyIsCalledUnknown(t *testing.T) {
	v := testVerifier()
	v.Keys = noKeys{}
	_, _, err := v.Verify(signedRequest(t, "", testTime, creds))
	if e, ok := err.(*rest.Error); !ok || e.Status != http.StatusServiceUnavailable || e.RetryAfter == 0 {
		t.Errorf("got %v", err)
	}
}

// An unknown key and a wrong signature take the same steps. The test counts
// allocations, which need no clock.
func TestAnUnknownKeyCostsWhatAWrongSignatureDoes(t *testing.T) {
	cost := func(id string) float64 {
		c := client.Credentials{AccessKeyID: id, SecretAccessKey: "wrong", Region: testRegion}
		v := testVerifier()
		r := signedRequest(t, "", testTime, c)
		return testing.AllocsPerRun(200, func() {
			if _, _, err := v.Verify(r); err == nil {
				t.Fatal("verified")
			}
		})
	}
	unknown, wrong := cost(otherID), cost(testID)
	if diff := unknown - wrong; diff < -8 || diff > 8 { // the reasons differ in length
		t.Errorf("an unknown key costs %v allocations, a wrong signature %v", unknown, wrong)
	}
	if unknown < 50 {
		t.Errorf("only %v allocations: was anything verified?", unknown)
	}
}
