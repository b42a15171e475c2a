package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

var testCredentials = Credentials{AccessKeyID: "AKIAABCDEFGHIJKLMNOP", SecretAccessKey: "SECRET", Region: "atoll-1"}

func TestSignIsRepeatable(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	sign := func(r *http.Request) string {
		t.Helper()
		if err := Sign(r, []byte("{}"), testCredentials, now); err != nil {
			t.Fatal(err)
		}
		return r.Header.Get("Authorization")
	}
	r, err := http.NewRequest("POST", "https://api.example.com/api/v0/work?b=2&a=1", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	first := sign(r)
	for _, part := range []string{
		"AWS4-HMAC-SHA256 Credential=AKIAABCDEFGHIJKLMNOP/20260301/atoll-1/execute-api/aws4_request, ",
		"SignedHeaders=content-length;host;x-amz-content-sha256;x-amz-date, ",
	} {
		if !strings.Contains(first, part) {
			t.Errorf("%s lacks %s", first, part)
		}
	}
	if second := sign(r); second != first {
		t.Errorf("signed again: %s, before: %s", second, first)
	}
	if body, _ := io.ReadAll(r.Body); string(body) != "{}" {
		t.Errorf("Sign took the body: %q is left", body)
	}
}

func TestTheTransportSignsWithoutChangingTheRequest(t *testing.T) {
	var got *http.Request
	var gotBody []byte
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		gotBody, _ = io.ReadAll(r.Body)
	}))
	defer srv.Close()
	transport := &SigningTransport{Credentials: testCredentials, Base: &http.Transport{}}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	// A reader of unknown length would be sent in chunks, whose length no
	// signature covers.
	req, err := http.NewRequestWithContext(context.Background(), "PUT", srv.URL+"/x",
		io.MultiReader(strings.NewReader("bo"), strings.NewReader("dy")))
	if err != nil {
		t.Fatal(err)
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if string(gotBody) != "body" || got.ContentLength != 4 || got.Header.Get("Authorization") == "" {
		t.Errorf("sent %q, %d bytes, headers %v", gotBody, got.ContentLength, got.Header)
	}
	if len(req.Header) != 0 {
		t.Errorf("the caller's request got headers: %v", req.Header)
	}
}

func TestTheTransportRefusesInvalidRequests(t *testing.T) {
	never := roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("sent") })
	for name, tc := range map[string]struct {
		creds Credentials
		body  io.Reader
		want  string
	}{
		"no credentials": {Credentials{Region: "r"}, nil, "AWS_ACCESS_KEY_ID"},
		"no region":      {Credentials{AccessKeyID: "a", SecretAccessKey: "b"}, nil, "AWS_REGION"},
		"large body":     {testCredentials, bytes.NewReader(make([]byte, maxSignedBody+1)), "larger than"},
		"broken body":    {testCredentials, io.MultiReader(strings.NewReader("x"), broken{}), "reading the body"},
	} {
		req, err := http.NewRequest("POST", "https://api.example.com/", tc.body)
		if err != nil {
			t.Fatal(err)
		}
		_, err = (&SigningTransport{Credentials: tc.creds, Base: never}).RoundTrip(req)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCredentialsDoNotShowTheirSecret(t *testing.T) {
	for _, s := range []string{fmt.Sprint(testCredentials), fmt.Sprintf("%+v", testCredentials),
		fmt.Sprintf("%#v", testCredentials), fmt.Sprintf("%v", &testCredentials)} {
		if strings.Contains(s, testCredentials.SecretAccessKey) {
			t.Error(s)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
