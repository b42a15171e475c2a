package testsite

import (
	"context"

	"atoll.dev/bus"
	"atoll.dev/pki"
)

// Broker is the embedded broker, on a port that it keeps when the test stops it and starts it again.
type Broker struct {
	Address string // host:port

	site *Site
	stop func()
}

// StartBroker starts a broker that accepts the identities of the site. It ends with the test.
func (s *Site) StartBroker() *Broker {
	s.T.Helper()
	l := Listen(s.T)
	b := &Broker{Address: l.Addr().String(), site: s}
	l.Close()
	b.Start()
	return b
}

// Start starts the broker again after Stop.
func (b *Broker) Start() {
	b.site.T.Helper()
	l, err := ListenAgain(b.Address)
	if err != nil {
		b.site.T.Fatal(err)
	}
	broker, err := bus.NewBroker(bus.BrokerOptions{TLS: b.site.ServerTLS("broker"),
		Logger: b.site.Log.With("part", "broker")})
	if err != nil {
		l.Close()
		b.site.T.Fatal(err)
	}
	b.stop = Run(b.site.T, "the broker", func(ctx context.Context) error { return broker.Serve(ctx, l) })
}

// Stop stops the broker and waits for its end. All connections break.
func (b *Broker) Stop() { b.stop() }

// ClientOptions returns the options with which name connects.
func (b *Broker) ClientOptions(name pki.Name) bus.ClientOptions {
	b.site.T.Helper()
	return bus.ClientOptions{Addr: b.Address, TLS: b.site.ClientTLS(name, "broker")}
}
