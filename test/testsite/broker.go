package testsite

import (
	"context"
	"testing"

	"atoll.dev/bus"
	"atoll.dev/internal/mosquitto"
	"atoll.dev/pki"
)

// Broker is the embedded broker, or Mosquitto, on a port that it keeps when the test stops it and starts it again.
type Broker struct {
	Address string // host:port

	site      *Site
	stop      func()
	mosquitto *mosquitto.Broker // nil: the embedded broker
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

// StartOpenMosquitto starts a Mosquitto that accepts every client, without TLS, on every topic. It ends with the test.
func StartOpenMosquitto(t testing.TB) (address string) {
	t.Helper()
	return startMosquitto(t, mosquitto.Options{}).Addr
}

func startMosquitto(t testing.TB, o mosquitto.Options) *mosquitto.Broker {
	t.Helper()
	m, err := mosquitto.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// StartMosquitto starts Mosquitto, a broker that is not ours, with the access rules of docs/brokers.md. It accepts the
// identities of the site. maxPacket is the limit of a message in bytes; 0 is MQTT's own limit.
func (s *Site) StartMosquitto(maxPacket int) *Broker {
	s.T.Helper()
	cert, key := s.CertificatePEM(pki.ServiceName("broker"))
	m := startMosquitto(s.T, mosquitto.Options{CA: s.CA.CertPEM(), Cert: cert, Key: key, MaxPacket: maxPacket})
	return &Broker{Address: m.Addr, site: s, stop: m.Kill, mosquitto: m}
}

// Start starts the broker again after Stop.
func (b *Broker) Start() {
	b.site.T.Helper()
	if b.mosquitto != nil {
		if err := b.mosquitto.Start(); err != nil {
			b.site.T.Fatal(err)
		}
		return
	}
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

// Stop stops the broker, Mosquitto with SIGKILL, and waits for its end. All connections break.
func (b *Broker) Stop() { b.stop() }

// ClientOptions returns the options with which name connects.
func (b *Broker) ClientOptions(name pki.Name) bus.ClientOptions {
	b.site.T.Helper()
	return bus.ClientOptions{Addr: b.Address, TLS: b.site.ClientTLS(name, "broker")}
}
