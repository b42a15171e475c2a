package cli

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/maestro"
	"atoll.dev/pki"
)

func (c *command) maestro() *cobra.Command {
	var httpAddr, grpcAddr string
	o := maestro.Options{}
	id := &identityFlags{}
	cmd := c.serviceCommand("maestro", "Maestro: ships works to management clusters", `Serves consumers and resource bundles over REST and gRPC, delivers works to
agents over MQTT and takes their status back. Replicas share a database and a broker.`, func(ctx context.Context, s *service) error {
		s.identity = *id
		p, err := s.begin(ctx)
		if err != nil {
			return err
		}
		if o.HTTP, err = listen(httpAddr); err != nil {
			return err
		}
		if o.GRPC, err = listen(grpcAddr); err != nil {
			return err
		}
		identity, err := s.openIdentity(p, pki.ServiceName("maestro"))
		if err != nil {
			return err
		}
		o.BrokerTLS = identity.ClientTLS("broker")
		o.HTTPTLS, o.GRPCTLS = identity.ServerTLS(true), identity.ServerTLS(true)
		o.MayCall = func(peer string) bool { return access.MayCall(access.MaestroHTTP, pki.Name(peer)) }
		o.Logger, o.Metrics, o.Ops = s.log, s.ops.Registry, s.ops
		server, err := maestro.New(p.ctx, o)
		if err != nil {
			return err
		}
		p.run(server.Run)
		return p.wait()
	})
	addIdentity(cmd, id)
	cmd.Flags().StringVar(&o.DSN, "dsn", "", "PostgreSQL database of Maestro alone")
	cmd.Flags().StringVar(&o.Broker, "mqtt", "127.0.0.1:8883", "the broker")
	cmd.Flags().StringVar(&o.SourceID, "source-id", "maestro", "source id in topics and events")
	cmd.Flags().StringVar(&httpAddr, "http", "127.0.0.1:8000", "address of the REST API")
	cmd.Flags().StringVar(&grpcAddr, "grpc", "127.0.0.1:8090", "address of the gRPC API for sources")
	cmd.Flags().StringSliceVar(&o.CORSOrigins, "cors-origin", nil, "an origin whose pages may call the REST API; * is any")
	cmd.MarkFlagRequired("dsn")
	return cmd
}
