package services

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
)

// proofFlags are the flags of `atoll platform` about the ways to prove an identity.
type proofFlags struct {
	presigned time.Duration
	gateway   []string
}

func (f *proofFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.presigned, "presigned-for", 15*time.Minute,
		"longest validity of a presigned request; whoever reads its URL may send it until then")
	cmd.Flags().StringSliceVar(&f.gateway, "gateway-secret-file", nil,
		"file with the secret of the API Gateway in front of the region, read again each second; a second file lets "+
			"the secret change without a gap")
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
	return ways, nil
}
