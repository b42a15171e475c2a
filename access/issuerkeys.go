package access

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"

	"github.com/go-jose/go-jose/v4"
)

// IssuerKeys verifies signatures of an OpenID Connect issuer whose tokens another API of the region
// takes. It knows nothing of claims. Several goroutines may call its methods.
type IssuerKeys struct{ keys *issuerKeys }

// NewIssuerKeys returns the keys of an issuer. roots verify the certificate of the issuer, nil: the
// system's. Run must run.
func NewIssuerKeys(issuer string, roots *x509.CertPool, log *slog.Logger) *IssuerKeys {
	return &IssuerKeys{newIssuerKeys(OIDCOptions{Issuer: issuer, Roots: roots, Log: log})}
}

// Run reads the keys of the issuer again and again, until ctx ends, and returns its cause.
func (k *IssuerKeys) Run(ctx context.Context) error { return k.keys.run(ctx) }

// Payload returns the claims of a token that a published key of the issuer has signed. The claims
// are not checked.
func (k *IssuerKeys) Payload(ctx context.Context, token string) ([]byte, error) {
	payload, problem, err := k.keys.payload(ctx, token)
	if problem != "" {
		return nil, errors.New(problem)
	}
	return payload, err
}

// payload returns the claims of a signed token. problem names the defect of the token, "" for a
// valid one; err is the reason why a key is missing.
func (k *issuerKeys) payload(ctx context.Context, token string) (payload []byte, problem string, err error) {
	signed, err := jose.ParseSignedCompact(token, oidcAlgorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, "it is not a token that is signed with a key pair", nil
	}
	header := signed.Signatures[0].Protected
	if problem := headerProblem(header); problem != "" {
		return nil, problem, nil
	}
	key, err := k.find(ctx, header.KeyID)
	if err != nil {
		return nil, "", err
	}
	if key.Algorithm != "" && key.Algorithm != header.Algorithm {
		return nil, "its algorithm is not that of the key " + quoted(header.KeyID), nil
	}
	if payload, err = signed.Verify(key); err != nil {
		return nil, "its signature is not of the key " + quoted(header.KeyID), nil
	}
	return payload, "", nil
}
