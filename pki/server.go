package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"atoll.dev/internal/rest"
)

// maxSignBody bounds a signing request: a P-256 request is under 1 KiB.
const maxSignBody = 64 << 10

// A Server is the region's signing service:
//
//	POST /v1/sign  {"csr": PEM, "token": text?} -> {"certificate": PEM, "identity": name}
//	GET  /v1/ca    the CA's certificate as PEM, for anyone
//	GET  /v1/crl   the revocation list as PEM, for anyone
//
// A request to sign is authenticated by a join token, or without one by the
// client certificate of the connection, which is renewed under the same name.
// This one question is why the service takes certificates that have expired,
// for [RenewalGrace]; nothing else here looks at certificates. A csr that names
// another subject than the one it would get is refused.
//
// With ?after=NUMBER the list is sent once it has another number, or after
// some seconds as it is, so that a follower learns of a revocation at once.
//
// Errors are {"kind":"Error", "code", "reason"}.
type Server struct {
	ca      *CA
	failed  *failures
	waiting chan struct{} // a place for each who waits for news of the revocation list

	mu      sync.Mutex
	serving *tls.Certificate // its own, see certificate
}

// NewServer returns a signing service of ca.
func NewServer(ca *CA) *Server {
	return &Server{ca: ca, failed: newFailures(), waiting: make(chan struct{}, crlWaiting)}
}

// Handler returns the service's HTTP API, which logs to log, or to
// slog.Default when that is nil. It must be served with the configuration of
// [Server.TLS].
func (s *Server) Handler(log *slog.Logger) http.Handler {
	if log == nil {
		log = slog.Default()
	}
	mux := rest.NewMux()
	mux.Handle("GET /v1/ca", func(w http.ResponseWriter, _ *http.Request) error {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, err := w.Write(s.ca.CertPEM())
		return err
	})
	mux.Handle("GET /v1/crl", s.serveCRL)
	mux.Handle("POST /v1/sign", func(w http.ResponseWriter, r *http.Request) error {
		answer, err := s.sign(r)
		if err != nil {
			if e, ok := errors.AsType[*rest.Error](err); ok && e.Status != http.StatusTooManyRequests {
				s.failed.add(r.RemoteAddr)
				log.LogAttrs(r.Context(), slog.LevelWarn, "certificate refused",
					slog.String("remote", r.RemoteAddr), slog.String("code", e.Code), slog.Any("error", err))
			}
			return err
		}
		log.LogAttrs(r.Context(), slog.LevelInfo, "certificate issued",
			slog.String("identity", string(answer.Identity)), slog.String("remote", r.RemoteAddr))
		return rest.WriteJSON(w, http.StatusOK, answer)
	})
	return rest.Observe(rest.Options{Log: log}, mux)
}

// Check is a readiness check: the CA's directory can be read and the revocation
// list is fresh. It removes the tokens that are forgotten, so that a server
// that is asked sweeps.
func (s *Server) Check(context.Context) error {
	_, _, err := s.ca.CRL()
	return errors.Join(s.ca.SweepTokens(), err)
}

const (
	// crlWait is how long a follower's request may wait for news. It is below
	// the write timeout of rest.Server.
	crlWait = 20 * time.Second
	// crlLook is how often the CA's directory is looked at meanwhile: whoever
	// revokes writes there and need not know this process.
	crlLook = 250 * time.Millisecond
	// crlWaiting is how many may wait at once; more are answered as it is.
	crlWaiting = 256
)

func (s *Server) serveCRL(w http.ResponseWriter, r *http.Request) error {
	after := r.URL.Query().Get("after")
	enough := time.NewTimer(crlWait)
	defer enough.Stop()
	look := time.NewTicker(crlLook)
	defer look.Stop()
	stop := rest.Stopping(r.Context())
	last := true // anybody may ask, so not all may wait
	select {
	case s.waiting <- struct{}{}:
		defer func() { <-s.waiting }()
		last = false
	default:
	}
	for {
		data, list, err := s.ca.CRL()
		if err != nil {
			return err
		}
		if last || list.Number.String() != after {
			w.Header().Set("Content-Type", "application/x-pem-file")
			w.Header().Set("Cache-Control", "no-cache")
			_, err := w.Write(data)
			return err
		}
		select {
		case <-look.C:
		case <-enough.C:
			last = true
		case <-stop.Done():
			last = true
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}
}

// TLS returns the service's own TLS configuration: the CA issues it a
// certificate for [ServiceName]("pki"), in memory and renewed in time. Clients
// may show a certificate, whose key TLS makes them prove and which the handler
// alone verifies: TLS would refuse one that has expired before it is known what
// for. So [PeerName] says of nobody here who it is.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequestClientCert,
		ClientCAs:              s.ca.Pool(),
		GetCertificate:         s.certificate,
		SessionTicketsDisabled: true,
	}
}

// certificate returns the service's own certificate, which it issues itself.
// The key lives in memory only.
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.serving != nil && time.Now().Before(renewAt(s.serving.Leaf)) {
		return s.serving, nil
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := s.ca.issue(&key.PublicKey, ServiceName("pki"))
	if err != nil {
		return nil, err
	}
	if s.serving, err = newTLSCertificate(der, key); err != nil {
		return nil, err
	}
	return s.serving, nil
}

// SignRequest is the body of POST /v1/sign.
type SignRequest struct {
	CSR   string `json:"csr"`
	Token string `json:"token,omitempty"`
}

// SignResponse is its answer.
type SignResponse struct {
	Certificate string `json:"certificate"`
	Identity    Name   `json:"identity"`
}

// parseSignRequest reads a request's body strictly.
func parseSignRequest(body []byte) (SignRequest, *x509.CertificateRequest, error) {
	var req SignRequest
	if err := rest.DecodeJSON(body, &req); err != nil {
		return SignRequest{}, nil, err
	}
	csr, err := parseCSR([]byte(req.CSR))
	switch {
	case errors.Is(err, ErrWeakKey):
		return SignRequest{}, nil, rest.Errorf(http.StatusBadRequest, "weak-key", "only ECDSA P-256 keys are signed")
	case err != nil:
		return SignRequest{}, nil, rest.Errorf(http.StatusBadRequest, "invalid-csr", "the csr %v", err)
	}
	return req, csr, nil
}

// sign does everything that a request asks for. The request is checked first,
// so that a token is spent only on what will be signed.
func (s *Server) sign(r *http.Request) (SignResponse, error) {
	holder, shown := Name(""), ErrNoPeer
	if len(r.TLS.PeerCertificates) > 0 {
		holder, shown = s.ca.holder(r.TLS.PeerCertificates[0])
	}
	if shown != nil && !s.failed.allow(r.RemoteAddr) {
		e := rest.Errorf(http.StatusTooManyRequests, "too-many-failures",
			"too many requests from this address failed; try again later")
		e.RetryAfter = 5 * failurePace
		return SignResponse{}, e
	}
	body, err := rest.ReadBody(r, maxSignBody)
	if err != nil {
		return SignResponse{}, err
	}
	req, csr, err := parseSignRequest(body)
	if err != nil {
		return SignResponse{}, err
	}
	hash, err := keyHash(csr.PublicKey)
	if err != nil {
		return SignResponse{}, err
	}
	want := Name(csr.Subject.CommonName)
	name, der, err := s.ca.grant(csr, func() (Name, error) {
		switch {
		case req.Token != "":
			return s.ca.redeem(req.Token, hash, want)
		case shown == nil:
			// Again, because it may have been revoked since.
			holder, shown = s.ca.holder(r.TLS.PeerCertificates[0])
		}
		if shown == nil && want != "" && want != holder {
			return "", fmt.Errorf("%w: the certificate is that of %q, not of %q", ErrWrongName, holder, want)
		}
		return holder, shown
	})
	if err != nil {
		return SignResponse{}, refuse(err)
	}
	return SignResponse{Certificate: string(encodeCert(der)), Identity: name}, nil
}

// refuse gives the reasons for which nothing is signed their answers.
func refuse(err error) error {
	for _, r := range []struct {
		kind   error
		status int
		code   string
		advice string
	}{
		{ErrNoPeer, http.StatusUnauthorized, "no-identity",
			"present a join token, or a client certificate of this region"},
		{ErrTokenUsed, http.StatusForbidden, "token-used", "make a new token"},
		{ErrTokenExpired, http.StatusForbidden, "token-expired", "make a new token"},
		{ErrTokenUnknown, http.StatusForbidden, "invalid-token", "make a new token"},
		{ErrWrongName, http.StatusForbidden, "wrong-name", "ask for the name that is yours"},
		{ErrRevoked, http.StatusForbidden, "revoked", "`atoll mc allow` and a new join token let it join again"},
		{ErrTooOld, http.StatusForbidden, "certificate-too-old", "make a join token"},
	} {
		if errors.Is(err, r.kind) {
			return rest.Errorf(r.status, r.code, "%v; %s", err, r.advice)
		}
	}
	if isCertificateError(err) {
		return rest.Errorf(http.StatusForbidden, "invalid-certificate",
			"the client certificate is not one of this region's; make a join token").Because(err)
	}
	return err
}

// isCertificateError reports whether err is what x509 says of a certificate
// that does not verify.
func isCertificateError(err error) bool {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok
}
