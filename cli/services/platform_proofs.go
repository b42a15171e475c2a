package services

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/internal/certfile"
)

// proofFlags are the flags of `atoll platform` about the ways to prove an identity.
type proofFlags struct {
	presigned time.Duration
	gateway   []string
	sts       access.STSOptions
	stsCA     string
	oidc      access.OIDCOptions
	oidcCA    string
}

func (f *proofFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.presigned, "presigned-for", 15*time.Minute,
		"longest validity of a presigned request; everybody who reads its URL can send it until then")
	cmd.Flags().StringSliceVar(&f.gateway, "gateway-secret-file", nil,
		"file with the secret of the API Gateway in front of the region, read again each second; a second file lets "+
			"the secret change without a gap")
	cmd.Flags().StringSliceVar(&f.sts.Hosts, "sts-host", nil,
		"host of AWS STS, such as sts.eu-west-1.amazonaws.com: take presigned sts:GetCallerIdentity tokens that name it")
	cmd.Flags().StringVar(&f.sts.Audience, "sts-audience", "",
		"required value of the signed header x-k8s-aws-id of a token (default the region's name)")
	cmd.Flags().StringVar(&f.stsCA, "sts-ca", "", "PEM file of the CA of STS (default the system's CAs)")
	cmd.Flags().StringVar(&f.oidc.Issuer, "oidc-issuer", "",
		"URL of an OpenID Connect issuer: take its tokens from people whose identity is linked to an account")
	cmd.Flags().StringSliceVar(&f.oidc.Clients, "oidc-client-id", nil,
		"client of the issuer whose tokens this region takes; each region needs one of its own")
	cmd.Flags().StringSliceVar(&f.oidc.Audiences, "oidc-audience", nil,
		"further audience, such as that of access tokens for this region")
	cmd.Flags().StringVar(&f.oidc.SubjectClaim, "oidc-subject-claim", "sub",
		"claim that names a person for ever, and is never given to somebody else; no e-mail address")
	cmd.Flags().StringVar(&f.oidcCA, "oidc-ca", "", "PEM file of the CA of the issuer (default the system's CAs)")
}

// newIdentifier returns the identifier that the flags describe. The caller must call run, unless it is nil, for as
// long as the caller uses the identifier.
func (f *proofFlags) newIdentifier(region string, keys *access.KeyStore, log *slog.Logger) (i access.Identifier,
	run func(context.Context) error, err error) {
	identifier := &access.CombinedIdentifier{Signatures: &access.Verifier{Region: region, Keys: keys, Used: keys.RecordUse,
		MaxPresigned: f.presigned}}
	if len(f.gateway) > 0 {
		var err error
		if identifier.Gateway, err = access.NewGateway(f.gateway, keys, log); err != nil {
			return nil, nil, fmt.Errorf("--gateway-secret-file: %w", err)
		}
	}
	if len(f.sts.Hosts) > 0 {
		sts, err := f.newSTS(region, keys)
		if err != nil {
			return nil, nil, err
		}
		identifier.Bearers = append(identifier.Bearers, sts)
	}
	if f.oidc.Issuer == "" && len(f.oidc.Clients)+len(f.oidc.Audiences) > 0 {
		return nil, nil, errors.New("--oidc-client-id and --oidc-audience need --oidc-issuer")
	}
	if f.oidc.Issuer != "" {
		oidc, err := f.newOIDC(keys, log)
		if err != nil {
			return nil, nil, err
		}
		identifier.Bearers, run = append(identifier.Bearers, oidc), oidc.Run
	}
	return identifier, run, nil
}

// newOIDC returns the verifier of tokens of an issuer that the flags describe.
func (f *proofFlags) newOIDC(keys *access.KeyStore, log *slog.Logger) (*access.OIDC, error) {
	o := f.oidc
	o.Links, o.Log = keys, log
	var err error
	if o.Roots, err = readRoots(f.oidcCA); err != nil {
		return nil, fmt.Errorf("--oidc-ca: %w", err)
	}
	oidc, err := access.NewOIDC(o)
	if err != nil {
		return nil, fmt.Errorf("--oidc-issuer: %w", err)
	}
	return oidc, nil
}

// readRoots returns the certificates of a PEM file; nil, which stands for those of the system, without a file.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	return certfile.ReadPool(file)
}

// newSTS returns the verifier of tokens of AWS STS that the flags describe.
func (f *proofFlags) newSTS(region string, keys *access.KeyStore) (*access.STS, error) {
	o := f.sts
	o.Accounts, o.Audience = keys, cmp.Or(o.Audience, region)
	var err error
	if o.Roots, err = readRoots(f.stsCA); err != nil {
		return nil, fmt.Errorf("--sts-ca: %w", err)
	}
	return access.NewSTS(o)
}
