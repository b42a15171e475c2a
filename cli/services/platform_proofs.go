package services

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
)

// proofFlags are the flags of `atoll platform` about the ways to prove an identity.
type proofFlags struct {
	presigned time.Duration
	gateway   []string
	sts       access.STSOptions
	stsCA     string
}

func (f *proofFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.presigned, "presigned-for", 15*time.Minute,
		"longest validity of a presigned request; whoever reads its URL may send it until then")
	cmd.Flags().StringSliceVar(&f.gateway, "gateway-secret-file", nil,
		"file with the secret of the API Gateway in front of the region, read again each second; a second file lets "+
			"the secret change without a gap")
	cmd.Flags().StringSliceVar(&f.sts.Hosts, "sts-host", nil,
		"host of AWS STS, such as sts.eu-west-1.amazonaws.com: take presigned sts:GetCallerIdentity tokens that name it")
	cmd.Flags().StringVar(&f.sts.Audience, "sts-audience", "",
		"what a token names in its signed header x-k8s-aws-id (default the region's name)")
	cmd.Flags().StringVar(&f.stsCA, "sts-ca", "", "PEM file of the CA of STS (default the system's CAs)")
}

// identifier returns the ways to prove an identity that the flags describe.
func (f *proofFlags) identifier(region string, keys *access.KeyStore, log *slog.Logger) (access.Identifier, error) {
	ways := &access.Ways{Signatures: &access.Verifier{Region: region, Keys: keys, Used: keys.RecordUse,
		MaxPresigned: f.presigned}}
	if len(f.gateway) > 0 {
		var err error
		if ways.Gateway, err = access.NewGateway(f.gateway, keys, log); err != nil {
			return nil, fmt.Errorf("--gateway-secret-file: %w", err)
		}
	}
	if len(f.sts.Hosts) > 0 {
		sts, err := f.newSTS(region, keys)
		if err != nil {
			return nil, err
		}
		ways.Bearers = append(ways.Bearers, sts)
	}
	return ways, nil
}

// newSTS returns the verifier of tokens of AWS STS that the flags describe.
func (f *proofFlags) newSTS(region string, keys *access.KeyStore) (*access.STS, error) {
	o := f.sts
	o.Accounts, o.Audience = keys, cmp.Or(o.Audience, region)
	if f.stsCA != "" {
		pem, err := os.ReadFile(f.stsCA)
		if err != nil {
			return nil, fmt.Errorf("--sts-ca: %w", err)
		}
		if o.Roots = x509.NewCertPool(); !o.Roots.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--sts-ca: %s has no PEM certificate", f.stsCA)
		}
	}
	return access.NewSTS(o)
}
