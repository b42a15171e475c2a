package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const signTimeout = 15 * time.Second

// Codes of refusals of a certificate that no retry helps.
const (
	codeRevoked    = "revoked"
	codeSuperseded = "superseded"
)

// refusal is the signing service's answer when it does not sign.
type refusal struct {
	status       int
	code, reason string
}

func (e *refusal) Error() string { return e.code + ": " + e.reason }

// isFinal reports whether a retry cannot succeed.
func (e *refusal) isFinal() bool {
	return e.status >= 400 && e.status < 500 && e.status != http.StatusTooManyRequests
}

// requestCertificate requests a certificate for key from the signing service, once, and
// returns it with what this identity must send along. It authenticates with token or, when
// token is empty, with the present certificate. It verifies the new certificate as strictly
// as one that is read from disk.
func (id *Identity) requestCertificate(ctx context.Context, key *ecdsa.PrivateKey, token string) (
	[]*x509.Certificate, error) {
	csr, err := encodeCSR(key, id.o.Name)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(SignRequest{CSR: string(csr), Token: token})
	if err != nil {
		return nil, err
	}
	status, answer, err := id.call(ctx, "/v1/sign", body, token)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, decodeRefusal(status, answer)
	}
	var signed SignResponse
	if err := json.Unmarshal(answer, &signed); err != nil {
		return nil, fmt.Errorf("reading the signing service's answer: %w", err)
	}
	chain, err := parseChain([]byte(signed.Certificate))
	if err != nil {
		return nil, fmt.Errorf("reading the signed certificate: it %w", err)
	}
	cert := chain[0]
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("the signed certificate is for another key")
	}
	if cert.Subject.CommonName != string(id.o.Name) {
		// The token is for another name; a retry cannot succeed.
		return nil, &refusal{http.StatusForbidden, "wrong-identity",
			fmt.Sprintf("the token is that of %q, not of %q", cert.Subject.CommonName, id.o.Name)}
	}
	if err := id.follow(ctx, signed.Roots, chain); err != nil { // the certificate may be below a new root
		return nil, err
	}
	if err := id.check(chain, time.Now()); err != nil {
		return nil, fmt.Errorf("checking the signed certificate: %w", err)
	}
	return chain, nil
}

// call posts a body to a path of the signing service, once, and returns its answer. Without a
// token it shows the present certificate.
func (id *Identity) call(ctx context.Context, path string, body []byte, token string) (status int, answer []byte,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(id.o.URL, "/")+path,
		bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	if req.URL.Scheme != "https" {
		return 0, nil, &refusal{http.StatusBadRequest, "bad-url", fmt.Sprintf("the signing service's URL %q is not https",
			id.o.URL)}
	}
	req.Header.Set("Content-Type", "application/json")

	tlsConfig := id.signingServiceTLS()
	if token == "" {
		tlsConfig.GetClientCertificate = id.clientCertificate
	}
	transport := &http.Transport{TLSClientConfig: tlsConfig, DialContext: id.o.dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxSignBody))
	return resp.StatusCode, answer, err
}

// decodeRefusal returns the error in an answer of the signing service.
func decodeRefusal(status int, body []byte) error {
	var e struct{ Kind, Code, Reason string }
	if err := json.Unmarshal(body, &e); err != nil || e.Kind != "Error" {
		return fmt.Errorf("the signing service answered %d %s", status, http.StatusText(status))
	}
	return &refusal{status, e.Code, e.Reason}
}
