package services

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/bus"
	"atoll.dev/cli/terminal"
	"atoll.dev/pki"
)

func Broker(c *terminal.Session) *cobra.Command {
	var addr, source string
	id := &identityFlags{}
	cmd := serviceCommand(c, "broker", "The embedded MQTT broker",
		`Serves MQTT 5 over TLS to those who have a certificate of the region. It keeps
nothing: no session, no retained message, nothing on disk.`, func(ctx context.Context, s *service) error {
			s.identity = *id
			p, err := s.begin(ctx)
			if err != nil {
				return err
			}
			l, err := listen(addr)
			if err != nil {
				return err
			}
			identity, err := s.openIdentity(p, pki.ServiceName("broker"))
			if err != nil {
				return err
			}
			broker, err := bus.NewBroker(bus.BrokerOptions{TLS: identity.ServerTLS(true), Source: source, Logger: s.log,
				Registerer: s.ops.Registry})
			if err != nil {
				return err
			}
			s.ops.Check("broker", broker.Check)
			p.run(func(ctx context.Context) error { return broker.Serve(ctx, l) })
			return p.wait()
		})
	addIdentity(cmd, id)
	cmd.Flags().StringVar(&addr, "listen", "127.0.0.1:8883", "address")
	cmd.Flags().StringVar(&source, "source-id", "maestro", "source id in topics")
	return cmd
}
