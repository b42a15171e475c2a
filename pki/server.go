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
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/internal/rest"
)

// maxSignBody bounds a signing request: a P-256 request is under 1 KiB.
const maxSignBody = 64 << 10

// A Server is the region's signing service:
//
//	POST /v1/sign  {"csr": PEM, "token": text?} -> {"certificate": PEM, "identity": name}
//	               the certificate is followed by that of its issuing CA; "roots" has the roots that
//	               the region trusts, and their cross certificates, as PEM
//	GET  /v1/ca    the certificates of the roots that the region trusts as PEM, for anyone
//	GET  /v1/crl   the revocation lists as PEM, see [CA.CRL], for anyone
//	POST /v1/confirm  {"roots": [fingerprint]}? -> {"roots": PEM, "renew": bool}
//	                  the holder of a certificate confirms that it has arrived, and names the roots that
//	                  it trusts; it shall trust the roots in the answer. 204 for a request without a body
//	GET  /v1/audit    the CA's audit records, for the Platform API
//
// A request to sign is authenticated by a join token, or without one by the
// client certificate of the connection, which is renewed under the same name.
// For renewals only, the service accepts certificates that expired within
// [RenewalGrace]. It refuses a csr whose subject is not the name that it would sign.
//
// A certificate is superseded when the one that renewed it was used here: confirmed, or
// renewed in turn. A superseded certificate that is used for one of these again revokes
// its line: all certificates that follow from the same join token.
//
// With ?after=NUMBER the service waits until the list has another number, at most
// crlWait, so that a server learns of a revocation at once.
//
// Errors are {"kind":"Error", "code", "reason"}.
type Server struct {
	ca      *CA
	failed  *failures
	waiting chan struct{} // holds a token for each request that waits for a new revocation list

	superseded prometheus.Counter
	look       time.Duration // between two looks of serveCRL at the CA's directory
	gathered   atomic.Int64  // the last cursor of the reader of the audit: it has the records before that

	mu           sync.Mutex
	serving      *tls.Certificate // the service's own certificate, see certificate
	servingSince time.Time        // issuersChanged when it was issued
	servingRoots *caRoots         // those of that time
}

// NewServer returns a signing service of ca.
func NewServer(ca *CA) *Server {
	return &Server{ca: ca, failed: newFailures(), waiting: make(chan struct{}, crlWaiting),
		look: crlLook,
		superseded: prometheus.NewCounter(prometheus.CounterOpts{Name: "pki_superseded_certificates_used_total",
			Help: "Certificates that were used after their renewal. Each revoked its line: somebody has a copy of a key."})}
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
			s.logAlarm(r, log, err)
			return err
		}
		log.LogAttrs(r.Context(), slog.LevelInfo, "certificate issued",
			slog.String("identity", string(answer.Identity)), slog.String("remote", r.RemoteAddr))
		return rest.WriteJSON(w, http.StatusOK, answer)
	})
	mux.Handle("POST /v1/confirm", func(w http.ResponseWriter, r *http.Request) error {
		answer, err := s.confirm(r)
		if err != nil {
			if e, ok := errors.AsType[*rest.Error](err); ok && e.Status != http.StatusTooManyRequests {
				s.failed.add(r.RemoteAddr)
			}
			s.logAlarm(r, log, err)
			return err
		}
		if answer == nil {
			w.WriteHeader(http.StatusNoContent)
			return nil
		}
		return rest.WriteJSON(w, http.StatusOK, answer)
	})
	mux.Handle("GET /v1/audit", s.serveAudit)
	return rest.Observe(rest.Options{Log: log}, mux)
}

// certificateHolder returns the holder of the client certificate of a request as an applicant, if
// the certificate may be renewed.
func (s *Server) certificateHolder(r *http.Request) (applicant, error) {
	if len(r.TLS.PeerCertificates) == 0 {
		return applicant{}, ErrNoPeer
	}
	cert := r.TLS.PeerCertificates[0]
	name, root, err := s.ca.renewable(r.TLS.PeerCertificates)
	return applicant{name: name, validity: s.ca.validity(), by: cert, root: root, source: hostOf(r.RemoteAddr)}, err
}

// logAlarm logs and counts that a superseded certificate was used.
func (s *Server) logAlarm(r *http.Request, log *slog.Logger, err error) {
	e, ok := errors.AsType[*supersededError](err)
	if !ok {
		return
	}
	s.superseded.Inc()
	log.LogAttrs(r.Context(), slog.LevelError,
		"ALARM: a certificate was used after its renewal, so somebody has a copy of its key; its line is revoked",
		slog.String("identity", string(e.name)), slog.String("remote", r.RemoteAddr), slog.Int("keys", e.revoked),
		slog.String("next", "find the copy, then make a new join token"))
}

// Check is a readiness check: the CA's directory can be read, the revocation list is
// fresh, and there is an issuing CA for each role. It also removes expired join tokens, so
// that readiness checks keep the directory clean.
func (s *Server) Check(context.Context) error {
	_, _, err := s.ca.CRL()
	errs := []error{s.ca.sweepTokens(), err}
	for _, role := range Roles {
		_, err := s.ca.issuerOf(role, time.Now())
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

const (
	// crlWait is how long a request waits for a new list. It is below
	// the write timeout of rest.Server.
	crlWait = 20 * time.Second
	// crlLook is the interval at which a waiting request reads the CA's directory: another
	// process may revoke there without contacting this one.
	crlLook = 250 * time.Millisecond
	// crlWaiting bounds the waiting requests; further ones get the present list at once.
	crlWaiting = 256
)

// serveCRL answers with the revocation list, after a wait for a new one if asked for.
func (s *Server) serveCRL(w http.ResponseWriter, r *http.Request) error {
	after := r.URL.Query().Get("after")
	enough := time.NewTimer(crlWait)
	defer enough.Stop()
	look := time.NewTicker(s.look)
	defer look.Stop()
	stop := rest.Stopping(r.Context())
	last := true // without a free place the present list is the answer
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
// may present a certificate. TLS only verifies that the client has its key; the handler
// verifies the certificate, since TLS would refuse an expired one also for a renewal.
// So [PeerName] returns ErrNoPeer for every client of this service.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequestClientCert,
		GetCertificate:         s.certificate,
		SessionTicketsDisabled: true,
	}
}

// certificate returns the service's own certificate, which it issues itself. The key lives in memory only. It issues
// another one when the certificate is due for renewal, when an issuing CA was made or revoked, since the
// certificate's may be revoked, and when the roots have changed. When that fails, it returns the one that it has until
// its expiry.
func (s *Server) certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	changed, err := s.ca.issuersChanged()
	roots := s.ca.roots()
	if err == nil && s.serving != nil && now.Before(renewAt(s.serving.Leaf)) && changed.Equal(s.servingSince) &&
		roots == s.servingRoots {
		return s.serving, nil
	}
	var next *tls.Certificate
	if err == nil {
		next, err = s.issueCertificate()
	}
	if err != nil && s.serving != nil && now.Before(s.serving.Leaf.NotAfter) {
		return s.serving, nil
	}
	if err != nil {
		return nil, err
	}
	s.serving, s.servingSince, s.servingRoots = next, changed, roots
	return next, nil
}

// issueCertificate makes a key and issues the service's own certificate for it.
func (s *Server) issueCertificate() (*tls.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	signer, err := s.ca.ownIssuer(time.Now())
	if err != nil {
		return nil, err
	}
	chain, err := signer.sign(&key.PublicKey, applicant{name: ServiceName(pkiServer), validity: s.ca.validity()})
	if err != nil {
		return nil, err
	}
	return newTLSCertificate(chain, key), nil
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
	// Roots are the roots that the holder shall trust, and their cross certificates, as PEM.
	Roots string `json:"roots,omitempty"`
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

// sign authenticates a request and issues its certificate. It validates the request
// first, so that no token is redeemed for a request that cannot be signed.
func (s *Server) sign(r *http.Request) (SignResponse, error) {
	holder, shown := s.certificateHolder(r)
	if err := s.limitFailures(r, shown); err != nil {
		return SignResponse{}, err
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
	name, chain, err := s.ca.grant(csr, func() (applicant, error) {
		switch {
		case req.Token != "":
			name, err := s.ca.redeem(req.Token, hash, want)
			return applicant{name: name, validity: s.ca.validity()}, err
		case shown == nil:
			holder, shown = s.certificateHolder(r) // again with the CA locked: it may have been revoked since
		}
		if shown == nil && want != "" && want != holder.name {
			return applicant{}, fmt.Errorf("%w: the certificate is that of %q, not of %q", ErrWrongName, holder.name, want)
		}
		return holder, shown
	})
	if err != nil {
		return SignResponse{}, refuse(err)
	}
	roots, err := s.ca.trustPEM()
	if err != nil {
		return SignResponse{}, err
	}
	return SignResponse{Certificate: string(encodeChain(chain)), Identity: name, Roots: roots}, nil
}

// limitFailures returns an error for a request without a valid certificate from an address from which too many requests
// have failed. shown is the error of certificateHolder.
func (s *Server) limitFailures(r *http.Request, shown error) error {
	if shown == nil || s.failed.allow(r.RemoteAddr) {
		return nil
	}
	e := rest.Errorf(http.StatusTooManyRequests, "too-many-failures",
		"too many requests from this address failed; try again later")
	e.RetryAfter = 5 * failurePace
	return e
}

// refuse maps an error of grant to its REST error.
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
		{ErrRevoked, http.StatusForbidden, codeRevoked, "`atoll mc allow` and a new join token let it join again"},
		{ErrTooOld, http.StatusForbidden, "certificate-too-old", "make a join token"},
		{ErrSuperseded, http.StatusForbidden, codeSuperseded, "find out who has a copy of its key, then make a join token"},
		{errUsedKey, http.StatusForbidden, "key-used", "make a new key"},
		{errTooMany, http.StatusTooManyRequests, "too-many-certificates", "try again later"},
	} {
		if errors.Is(err, r.kind) {
			return rest.Errorf(r.status, r.code, "%v; %s", err, r.advice).Because(err)
		}
	}
	if isCertificateError(err) {
		return rest.Errorf(http.StatusForbidden, "invalid-certificate",
			"the client certificate is not one of this region's; make a join token").Because(err)
	}
	return err
}

// isCertificateError reports whether err is x509's error for a certificate that cannot
// be verified.
func isCertificateError(err error) bool {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return true
	}
	_, ok := errors.AsType[x509.CertificateInvalidError](err)
	return ok || errors.Is(err, ErrWrongIssuer)
}
