package services

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// platformService is `atoll platform`.
type platformService struct {
	addr      string
	dsn       string
	sealKey   string
	region    string
	clmURL    string
	placement string
	maestro   maestroclient.Options
	identity  identityFlags
}

// Platform returns the command of the Platform API.
func Platform() *cobra.Command {
	f := &platformService{}
	cmd := serviceCommand("platform", "The Platform API, for customers and operators",
		`Verifies AWS Signature Version 4 and translates the Platform API to
the region's own services.`, f)
	addIdentityFlags(cmd, &f.identity)
	cmd.Flags().StringVar(&f.addr, "listen", "127.0.0.1:8443", "address of the API")
	cmd.Flags().StringVar(&f.region, "region", "", "the region's name, as signatures must name it")
	cmd.Flags().StringVar(&f.dsn, "dsn", "", "PostgreSQL database of the Platform API alone")
	cmd.Flags().StringVar(&f.sealKey, "seal-key", "", "file of the key that seals secrets at rest; made on first use")
	cmd.Flags().StringVar(&f.maestro.HTTP, "maestro-http", "", "URL of Maestro's REST API")
	cmd.Flags().StringVar(&f.maestro.GRPC, "maestro-grpc", "", "address of Maestro's gRPC API")
	cmd.Flags().StringVar(&f.clmURL, "clm", "",
		"URL of the lifecycle manager, to which management clusters are made known")
	cmd.Flags().StringVar(&f.placement, "placement-shown-to", string(rosa.PlacementToOperators),
		"who reads which management cluster hosts a cluster: operators (privileged accounts), or customers, too")
	for _, name := range []string{"region", "dsn", "seal-key", "maestro-http", "maestro-grpc"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}

func (f *platformService) start(ctx context.Context, s *System) error {
	switch rosa.Placement(f.placement) {
	case rosa.PlacementToOperators, rosa.PlacementToCustomers:
	default:
		return fmt.Errorf("--placement-shown-to %s is neither operators nor customers", f.placement)
	}
	s.identity = f.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	l, err := listen(f.addr)
	if err != nil {
		return err
	}
	identity, err := s.openIdentity(p, pki.ServiceName("platform"))
	if err != nil {
		return err
	}
	var closeKeys func()
	if s.Keys, closeKeys, err = OpenKeys(p.ctx, f.dsn, f.sealKey, s.Log); err != nil {
		return err
	}
	defer closeKeys()
	s.Ops.Check("keys", s.Keys.Ready)
	p.run(s.Keys.Run)

	f.maestro.TLS = identity.ClientTLS("maestro")
	if s.Maestro, err = maestroclient.New(f.maestro); err != nil {
		return err
	}
	defer s.Maestro.Close()
	if f.clmURL != "" {
		s.CLM, err = clmclient.New(clmclient.Options{Endpoint: f.clmURL, TLS: identity.ClientTLS("clm"),
			Timeout: 5 * time.Second, Budget: 1900 * time.Millisecond})
		if err != nil {
			return err
		}
		defer s.CLM.Close()
	}
	handler := rosa.New(rosa.Options{
		Maestro: s.Maestro, CLM: s.CLM, Identifier: &access.Verifier{Region: f.region, Keys: s.Keys},
		Directory: s.Keys.Directory(), Region: f.region, Placement: rosa.Placement(f.placement), Ops: s.Ops, Log: s.Log, Metrics: s.Ops.Registry,
	})
	s.serve(p, l, "platform", identity.ServerTLS(pki.CertificateOptional), rest.Server{Handler: handler})
	return p.wait()
}
