package services

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/bus"
	"atoll.dev/pki"
)

// brokerService is `atoll broker`.
type brokerService struct {
	identity     identityFlags
	addr, source string
}

// Broker returns the command of the embedded MQTT broker.
func Broker() *cobra.Command {
	b := &brokerService{}
	cmd := serviceCommand("broker", "The embedded MQTT broker",
		`Serves MQTT 5 over TLS to clients that have a certificate of the region. It keeps
nothing: no session, no retained message, nothing on disk.`, b)
	addIdentityFlags(cmd, &b.identity)
	cmd.Flags().StringVar(&b.addr, "listen", "127.0.0.1:8883", "address")
	cmd.Flags().StringVar(&b.source, "source-id", "maestro", "source id in topics")
	return cmd
}

func (b *brokerService) start(ctx context.Context, s *System) error {
	s.identity = b.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	l, err := listen(b.addr)
	if err != nil {
		return err
	}
	identity, err := s.openIdentity(p, pki.ServiceName("broker"))
	if err != nil {
		return err
	}
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: identity.ServerTLS(pki.CertificateRequired), Source: b.source, Logger: s.Log,
		Registerer: s.Ops.Registry})
	if err != nil {
		return err
	}
	s.Ops.Check("broker", broker.Check)
	p.run(func(ctx context.Context) error { return broker.Serve(ctx, l) })
	return p.wait()
}
