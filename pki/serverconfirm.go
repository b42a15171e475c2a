package pki

import (
	"errors"
	"net/http"
	"time"

	"atoll.dev/internal/rest"
)

// ConfirmRequest is the body of POST /v1/confirm.
type ConfirmRequest struct {
	// Roots are the fingerprints of the roots that the holder trusts.
	Roots []string `json:"roots"`
}

// ConfirmResponse is its answer.
type ConfirmResponse struct {
	Roots string `json:"roots"` // as in SignResponse
	// Renew: the certificate is below a root that is replaced, so the holder shall renew it now.
	Renew bool `json:"renew,omitempty"`
}

// confirm records that the holder of the shown certificate uses it, and which roots it trusts. A request without
// one, or with one that is not of this CA, is refused before it locks the CA. The answer is nil for a request
// without a body.
func (s *Server) confirm(r *http.Request) (*ConfirmResponse, error) {
	holder, shown := s.certificateHolder(r)
	if err := s.limitFailures(r, shown); err != nil {
		return nil, err
	}
	if shown != nil && !errors.Is(shown, ErrRevoked) {
		return nil, refuse(shown)
	}
	body, err := rest.ReadBody(r, maxSignBody)
	if err != nil {
		return nil, err
	}
	var req ConfirmRequest
	if len(body) > 0 {
		if err := rest.DecodeJSON(body, &req); err != nil {
			return nil, err
		}
	}
	_, err = s.ca.confirm(func() (applicant, error) { return s.certificateHolder(r) }, req.Roots)
	if err != nil {
		return nil, refuse(err)
	}
	if len(body) == 0 {
		return nil, nil
	}
	roots, err := s.ca.trustPEM()
	if err != nil {
		return nil, err
	}
	return &ConfirmResponse{Roots: roots, Renew: s.ca.shouldRenew(holder, time.Now())}, nil
}
