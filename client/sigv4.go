package client

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// signedService is the service in the signature: that of Amazon API Gateway, so that the same client
// works with a region in AWS.
const signedService = "execute-api"

// maxSignedBody is the largest body that a region accepts; the client does not send a larger one.
const maxSignedBody = 4 << 20

// Credentials are a key pair and the region of the signatures.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string // of temporary credentials only
	Region          string
}

// String hides the secret, because structs are logged by mistake.
func (c Credentials) String() string {
	return fmt.Sprintf("credentials of %s for %s", c.AccessKeyID, c.Region)
}

// GoString hides the secret from %#v.
func (c Credentials) GoString() string { return c.String() }

// validate returns an error that names the variables of the environment when a required member is empty.
func (c Credentials) validate() error {
	switch {
	case c.AccessKeyID == "" || c.SecretAccessKey == "":
		return errors.New(
			"no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for example by 'eval $(atoll env)'")
	case c.Region == "":
		return errors.New("no region to sign for; set AWS_REGION, for example by 'eval $(atoll env)'")
	}
	return nil
}

// Sign signs a request by AWS Signature Version 4, for the given body. It sets headers of req,
// replaces an earlier signature, and does not change req.Body. The region accepts the signature for
// 15 minutes from now, and for one change only: a mutation that is sent again is signed again, with
// another date or another value of a signed header.
func Sign(req *http.Request, body []byte, creds Credentials, now time.Time) error {
	if err := creds.validate(); err != nil {
		return fmt.Errorf("signing %s %s: %w", req.Method, req.URL.Path, err)
	}
	sum := sha256.Sum256(body)
	hash := hex.EncodeToString(sum[:])
	for _, h := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
		req.Header.Del(h)
	}
	req.Header.Set("X-Amz-Content-Sha256", hash)
	err := v4.NewSigner().SignHTTP(req.Context(), aws.Credentials{
		AccessKeyID: creds.AccessKeyID, SecretAccessKey: creds.SecretAccessKey, SessionToken: creds.SessionToken,
	}, req, hash, signedService, creds.Region, now.UTC())
	if err != nil {
		return fmt.Errorf("signing %s %s: %w", req.Method, req.URL.Path, err)
	}
	return nil
}

// signWithInvocationID signs a request as Sign does, after it has set the header Amz-Sdk-Invocation-Id to a random
// text. A signature's date has seconds, and a region accepts each signature for one change: the header makes the
// signatures of two equal requests in one second differ. AWS's SDKs send and sign the same header.
func signWithInvocationID(req *http.Request, body []byte, creds Credentials, now time.Time) error {
	req.Header.Set("Amz-Sdk-Invocation-Id", rand.Text())
	return Sign(req, body, creds, now)
}

// SigningTransport signs each request and sends it by Base. It reads the whole body into memory,
// because the signature covers its hash. After a redirect it signs the request for the new host.
type SigningTransport struct {
	Credentials Credentials
	Base        http.RoundTripper // default http.DefaultTransport
	Now         func() time.Time  // default time.Now
}

// RoundTrip implements http.RoundTripper.
func (t *SigningTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := readBody(req)
	if err != nil {
		return nil, fmt.Errorf("signing %s %s: %w", req.Method, req.URL.Path, err)
	}
	signed := req.Clone(req.Context()) // a RoundTripper must not change its request
	signed.ContentLength = int64(len(body))
	signed.TransferEncoding = nil
	signed.Body, signed.GetBody = nil, nil
	if len(body) > 0 {
		signed.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
		signed.Body, _ = signed.GetBody()
	}
	now := time.Now
	if t.Now != nil {
		now = t.Now
	}
	if err := signWithInvocationID(signed, body, t.Credentials, now()); err != nil {
		return nil, err
	}
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	return base.RoundTrip(signed)
}

// CloseIdleConnections closes the idle connections of Base; http.Client calls it.
func (t *SigningTransport) CloseIdleConnections() {
	if c, ok := t.Base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// readBody reads and closes the request's body.
func readBody(req *http.Request) ([]byte, error) {
	if req.Body == nil || req.Body == http.NoBody {
		return nil, nil
	}
	defer req.Body.Close()
	body, err := io.ReadAll(io.LimitReader(req.Body, maxSignedBody+1))
	if err != nil {
		return nil, fmt.Errorf("reading the body: %w", err)
	}
	if len(body) > maxSignedBody {
		return nil, fmt.Errorf("the body is larger than the %d bytes that a region takes", maxSignedBody)
	}
	return body, nil
}
