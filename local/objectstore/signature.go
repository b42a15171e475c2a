package objectstore

import (
	"context"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// maxSkew is how far the time of a signature may be from the server's.
const maxSkew = 15 * time.Minute

const signatureTime = "20060102T150405Z"

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/, ]+)/\d{8}/([^/, ]+)/s3/aws4_request, ?` +
	`SignedHeaders=([^, ]+), ?Signature=[0-9a-f]{64}$`)

// verify checks that the server's key pair signed the request. It signs the same request with AWS's own signer and
// compares. It returns the hash that the body must have.
func (s *Server) verify(r *http.Request) (bodyHash string, refused *failure) {
	sent := r.Header.Get("Authorization")
	claim := authorization.FindStringSubmatch(sent)
	if claim == nil {
		return "", fail(http.StatusForbidden, "AccessDenied",
			"every request needs a header Authorization with Signature Version 4")
	}
	accessKey, region, names := claim[1], claim[2], strings.Split(claim[3], ";")
	if accessKey != s.accessKey {
		return "", fail(http.StatusForbidden, "InvalidAccessKeyId", "the access key is not the one of this store")
	}
	at, err := time.Parse(signatureTime, r.Header.Get("X-Amz-Date"))
	if err != nil {
		return "", fail(http.StatusForbidden, "AccessDenied", "the header X-Amz-Date is missing or is no time")
	}
	if skew := time.Since(at); skew > maxSkew || skew < -maxSkew {
		return "", fail(http.StatusForbidden, "RequestTimeTooSkewed", "the time of the signature is too far from now")
	}
	bodyHash = r.Header.Get("X-Amz-Content-Sha256")
	if sum, err := hex.DecodeString(bodyHash); err != nil || len(sum) != 32 {
		return "", fail(http.StatusForbidden, "AccessDenied", "the header X-Amz-Content-Sha256 is not the hash of the body")
	}
	for _, name := range []string{"host", "x-amz-content-sha256", "x-amz-date"} {
		if !slices.Contains(names, name) {
			return "", fail(http.StatusForbidden, "AccessDenied", "the signature does not cover the header "+name)
		}
	}
	target, err := url.ParseRequestURI(r.RequestURI)
	if err != nil {
		return "", fail(http.StatusBadRequest, "InvalidURI", "the path of the request cannot be decoded")
	}
	target.Scheme, target.Host = "http", r.Host
	again := &http.Request{Method: r.Method, URL: target, Host: r.Host, Header: http.Header{}}
	for _, name := range names {
		switch name {
		case "host":
		case "content-length":
			again.ContentLength = r.ContentLength
		default:
			again.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	pair := aws.Credentials{AccessKeyID: s.accessKey, SecretAccessKey: s.secretKey}
	err = v4.NewSigner().SignHTTP(context.WithoutCancel(r.Context()), pair, again, bodyHash, "s3", region, at,
		func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }) // S3's signatures have the path as it is sent
	if err != nil {
		return "", fail(http.StatusForbidden, "AccessDenied", "the request cannot be signed")
	}
	want := again.Header.Get("Authorization")
	if subtle.ConstantTimeCompare([]byte(signatureOf(sent)), []byte(signatureOf(want))) != 1 {
		return "", fail(http.StatusForbidden, "SignatureDoesNotMatch", "the signature is not one of this store's key pair")
	}
	return bodyHash, nil
}

func signatureOf(header string) string { return header[strings.LastIndexByte(header, '=')+1:] }
