package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
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
//
// A request to sign is authenticated by a join token, or without one by the
// client certificate of the connection, which is renewed under the same name.
// Errors are {"kind":"Error", "code", "reason"}.
type Server struct {
	ca     *CA
	failed *failures

	mu      sync.Mutex
	serving *tls.Certificate // its own, see certificate
}

// NewServer returns a signing service of ca.
func NewServer(ca *CA) *Server { return &Server{ca: ca, failed: newFailures()} }

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

// Check is a readiness check: the CA's directory can be read. It removes the
// tokens that have expired, so that a server that is asked sweeps.
func (s *Server) Check(context.Context) error { return s.ca.SweepTokens() }

// TLS returns the service's own TLS configuration: the CA issues it a
// certificate for [ServiceName]("pki"), in memory and renewed in time. Clients
// may show a certificate of the region's, and need none for a join token.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.VerifyClientCertIfGiven,
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
	peer, peerErr := PeerName(r.TLS)
	if peerErr != nil && !s.failed.allow(r.RemoteAddr) {
		e := rest.Errorf(http.StatusTooManyRequests, "too-many-failures", "too many requests from this address failed; try again later")
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
	name := peer
	switch {
	case req.Token != "":
		if name, err = s.redeem(req.Token, csr); err != nil {
			return SignResponse{}, err
		}
	case peerErr != nil:
		return SignResponse{}, rest.Errorf(http.StatusUnauthorized, "no-identity", "present a join token or a client certificate of this region")
	}
	cert, err := s.ca.Sign([]byte(req.CSR), name)
	return SignResponse{Certificate: string(cert), Identity: name}, err
}

func (s *Server) redeem(token string, csr *x509.CertificateRequest) (Name, error) {
	hash, err := keyHash(csr.PublicKey)
	if err != nil {
		return "", err
	}
	name, err := s.ca.redeem(token, hash)
	switch {
	case errors.Is(err, ErrTokenUsed):
		return "", rest.Errorf(http.StatusForbidden, "token-used", "%v; make a new one", ErrTokenUsed)
	case errors.Is(err, ErrTokenUnknown):
		return "", rest.Errorf(http.StatusForbidden, "invalid-token", "%v; make a new one", ErrTokenUnknown).Because(err)
	}
	return name, err
}
