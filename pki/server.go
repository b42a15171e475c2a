package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// maxSignBody bounds a signing request: a P-256 request is under 1 KiB.
const maxSignBody = 64 << 10

// ServerOptions configure a [Server].
type ServerOptions struct {
	// CA signs. Required.
	CA *CA
	// AllowRenewal, when set, is asked before a certificate is renewed; an error
	// refuses it. It is where a deleted consumer is cut off.
	AllowRenewal func(context.Context, Name) error
	// Logger takes one line for each certificate issued or refused; nil means
	// slog.Default.
	Logger *slog.Logger
}

// A Server is the region's signing service:
//
//	POST /v1/sign  {"csr": PEM, "token": text?} -> {"kind":"Certificate", "certificate": PEM, "ca": PEM}
//	GET  /v1/ca    the CA's certificate as PEM, for anyone
//
// A request to sign is authenticated by a join token, or without one by the
// client certificate of the connection, which is renewed under the same name.
// Errors are {"kind":"Error", "code", "reason"}.
type Server struct {
	ca      *CA
	allow   func(context.Context, Name) error
	log     *slog.Logger
	failed  *failures
	selfTLS selfCertificate
}

// NewServer returns a signing service.
func NewServer(o ServerOptions) *Server {
	if o.CA == nil {
		panic("pki: NewServer without a CA")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	s := &Server{ca: o.CA, allow: o.AllowRenewal, log: o.Logger, failed: newFailures()}
	s.selfTLS.ca = o.CA
	return s
}

// Handler returns the service's HTTP API. It must be served over TLS with the
// configuration of [Server.TLS].
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/ca", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/x-pem-file")
		_, _ = w.Write(s.ca.CertPEM()) // the client went away: nothing to do
	})
	mux.HandleFunc("POST /v1/sign", func(w http.ResponseWriter, r *http.Request) {
		name, cert, err := s.sign(w, r)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		s.log.LogAttrs(r.Context(), slog.LevelInfo, "certificate issued",
			slog.String("identity", string(name)), slog.String("remote", r.RemoteAddr))
		writeJSON(w, http.StatusOK, signResponse{Kind: "Certificate", Certificate: string(cert), CA: string(s.ca.CertPEM())})
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, &apiError{http.StatusNotFound, "not-found", "there is no such resource"})
	})
	return mux
}

// TLS returns the service's own TLS configuration: the CA issues it a
// certificate for [ServiceName]("pki"), in memory and renewed in time. Clients
// may show a certificate of the region's, and need none for a join token.
func (s *Server) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.VerifyClientCertIfGiven,
		ClientCAs:              s.ca.Pool(),
		GetCertificate:         s.selfTLS.get,
		SessionTicketsDisabled: true,
	}
}

// Serve serves on l until ctx is done, and then finishes what it has begun.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{
		Handler:           s.Handler(),
		TLSConfig:         s.TLS(),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    8 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	done := make(chan error, 1)
	go func() { done <- srv.ServeTLS(l, "", "") }()
	sweep := time.NewTicker(time.Minute)
	defer sweep.Stop()
	for {
		select {
		case err := <-done:
			return fmt.Errorf("serving the signing service: %w", err)
		case <-sweep.C:
			if err := s.ca.SweepTokens(); err != nil {
				s.log.LogAttrs(ctx, slog.LevelWarn, "join tokens not swept", slog.Any("error", err))
			}
		case <-ctx.Done():
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			err := srv.Shutdown(stop)
			<-done
			return err
		}
	}
}

type signRequest struct {
	CSR   string `json:"csr"`
	Token string `json:"token,omitempty"`
}

type signResponse struct {
	Kind        string `json:"kind"`
	Certificate string `json:"certificate"`
	CA          string `json:"ca"`
}

// apiError is an answer to a request that is not served, and its body.
type apiError struct {
	status       int
	code, reason string
}

func (e *apiError) Error() string { return e.code + ": " + e.reason }

func (e *apiError) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]string{"kind": "Error", "code": e.code, "reason": e.reason})
}

// parseSignRequest reads a request's body strictly.
func parseSignRequest(body []byte) (signRequest, *x509.CertificateRequest, error) {
	var req signRequest
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return signRequest{}, nil, &apiError{http.StatusBadRequest, "malformed", "the body is not a signing request: " + err.Error()}
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return signRequest{}, nil, &apiError{http.StatusBadRequest, "malformed", "the body has something after the signing request"}
	}
	csr, err := parseCSR([]byte(req.CSR))
	switch {
	case errors.Is(err, ErrWeakKey):
		return signRequest{}, nil, &apiError{http.StatusUnprocessableEntity, "weak-key", "only ECDSA P-256 keys are signed"}
	case err != nil:
		return signRequest{}, nil, &apiError{http.StatusBadRequest, "bad-csr", "the csr " + err.Error()}
	}
	return req, csr, nil
}

// sign does everything that a request asks for. The request is checked first,
// so that a token is spent only on what will be signed.
func (s *Server) sign(w http.ResponseWriter, r *http.Request) (Name, []byte, error) {
	peer, peerErr := PeerName(r.TLS)
	if peerErr != nil && !s.failed.allow(r.RemoteAddr) {
		w.Header().Set("Retry-After", "5")
		return "", nil, &apiError{http.StatusTooManyRequests, "too-many-failures", "too many requests from this address failed"}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxSignBody))
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return "", nil, &apiError{http.StatusRequestEntityTooLarge, "too-large", fmt.Sprintf("the body is larger than %d bytes", maxSignBody)}
	}
	if err != nil {
		return "", nil, &apiError{http.StatusBadRequest, "malformed", "the body did not arrive"}
	}
	req, csr, err := parseSignRequest(body)
	if err != nil {
		return "", nil, err
	}
	name := peer
	switch {
	case req.Token != "":
		hash, err := keyHash(csr.PublicKey)
		if err != nil {
			return "", nil, err
		}
		if name, err = s.ca.redeem(req.Token, hash); err != nil {
			return "", nil, err
		}
	case peerErr != nil:
		return "", nil, &apiError{http.StatusUnauthorized, "unauthenticated", "neither a join token nor a client certificate was presented"}
	case s.allow != nil:
		if err := s.allow(r.Context(), name); err != nil {
			return "", nil, &apiError{http.StatusForbidden, "renewal-refused", err.Error()}
		}
	}
	cert, err := s.ca.Sign([]byte(req.CSR), name)
	return name, cert, err
}

// refuse is the one place that turns an error into an answer.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	answer, ok := errors.AsType[*apiError](err)
	switch {
	case ok:
	case errors.Is(err, ErrTokenUsed):
		answer = &apiError{http.StatusConflict, "token-used", ErrTokenUsed.Error()}
	case errors.Is(err, ErrTokenUnknown):
		answer = &apiError{http.StatusUnauthorized, "token-unknown", ErrTokenUnknown.Error()}
	default:
		// Only the operator may see what broke inside.
		answer = &apiError{http.StatusInternalServerError, "internal", "the signing service has a fault; its log says which"}
	}
	level := slog.LevelInfo
	if answer.status >= http.StatusInternalServerError {
		level = slog.LevelError
	} else if answer.status != http.StatusTooManyRequests {
		s.failed.add(r.RemoteAddr)
	}
	s.log.LogAttrs(r.Context(), level, "request refused", slog.String("path", r.URL.Path),
		slog.String("remote", r.RemoteAddr), slog.Int("status", answer.status), slog.Any("error", err))
	writeJSON(w, answer.status, answer)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client went away: nothing to do
}
