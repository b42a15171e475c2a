package services

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

func Platform(c *terminal.Session) *cobra.Command {
	var addr, dsn, sealKey, region, lifecycle, placement string
	o := maestroclient.Options{}
	id := &identityFlags{}
	cmd := serviceCommand(c, "platform", "The Platform API, for customers and operators",
		`Verifies AWS Signature Version 4 and translates the Platform API to
the region's own services.`, func(ctx context.Context, s *service) error {
			switch rosa.Placement(placement) {
			case rosa.PlacementToOperators, rosa.PlacementToCustomers:
			default:
				return fmt.Errorf("--placement-shown-to %s is neither operators nor customers", placement)
			}
			s.identity = *id
			p, err := s.begin(ctx)
			if err != nil {
				return err
			}
			l, err := listen(addr)
			if err != nil {
				return err
			}
			identity, err := s.openIdentity(p, pki.ServiceName("platform"))
			if err != nil {
				return err
			}
			keys, closeKeys, err := OpenKeys(p.ctx, dsn, sealKey, s.log)
			if err != nil {
				return err
			}
			defer closeKeys()
			s.ops.Check("keys", keys.Ready)
			p.run(keys.Run)

			o.TLS = identity.ClientTLS("maestro")
			maestro, err := maestroclient.New(o)
			if err != nil {
				return err
			}
			defer maestro.Close()
			var clm *clmclient.Client
			if lifecycle != "" {
				if clm, err = clmclient.New(clmclient.Options{
					Endpoint: lifecycle, TLS: identity.ClientTLS(
						"clm"), Timeout: 5 * time.Second, Budget: 1900 * time.Millisecond,
				}); err != nil {
					return err
				}
				defer clm.Close()
			}
			handler := rosa.New(rosa.Options{
				Maestro: maestro, CLM: clm, Identifier: &access.Verifier{Region: region,
					Keys: keys}, Placement: rosa.Placement(
					placement),
				Ops: s.ops, Log: s.log, Metrics: s.ops.Registry,
			})
			s.serve(p, l, "platform", identity.ServerTLS(false), rest.Server{Handler: handler})
			return p.wait()
		})
	addIdentity(cmd, id)
	cmd.Flags().StringVar(&addr, "listen", "127.0.0.1:8443", "address of the API")
	cmd.Flags().StringVar(&region, "region", "", "the region's name, as signatures must name it")
	cmd.Flags().StringVar(&dsn, "dsn", "", "PostgreSQL database of the Platform API alone")
	cmd.Flags().StringVar(&sealKey, "seal-key", "", "file of the key that seals secrets at rest; made on first use")
	cmd.Flags().StringVar(&o.HTTP, "maestro-http", "", "URL of Maestro's REST API")
	cmd.Flags().StringVar(&o.GRPC, "maestro-grpc", "", "address of Maestro's gRPC API")
	cmd.Flags().StringVar(&lifecycle, "clm", "",
		"URL of the lifecycle manager, to which management clusters are made known")
	cmd.Flags().StringVar(&placement, "placement-shown-to", string(rosa.PlacementToOperators),
		"who reads which management cluster hosts a cluster: operators (privileged accounts), or customers, too")
	for _, name := range []string{"region", "dsn", "seal-key", "maestro-http", "maestro-grpc"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}
