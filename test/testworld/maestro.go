package testworld

import (
	"net"
	"time"

	"atoll.dev/access"
	"atoll.dev/client/maestroclient"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro"
	"atoll.dev/pki"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// MaestroOptions select the Maestro that StartMaestro starts.
type MaestroOptions struct {
	DSN    string           // default: a new database
	Broker *testsite.Broker // nil: agents connect by gRPC only
	CLM    *CLM             // receives the presence of agents; nil: no reports

	// Plain has REST, gRPC and the agents' gRPC without TLS: callers need no identity.
	Plain bool

	Change func(*maestro.Options) // last, before each start; may be nil
}

// Maestro is a server that the test stops and starts again. It keeps its addresses and its database.
type Maestro struct {
	HTTP, GRPC, Agents string // host:port

	site *testsite.Site
	o    MaestroOptions
	stop func()
}

// StartMaestro starts a Maestro and waits until it is ready.
func StartMaestro(s *testsite.Site, o MaestroOptions) *Maestro {
	s.T.Helper()
	if o.DSN == "" {
		o.DSN = pgtest.DSN(s.T)
	}
	m := &Maestro{HTTP: testsite.FreeAddress(s.T), GRPC: testsite.FreeAddress(s.T), Agents: testsite.FreeAddress(s.T),
		site: s, o: o}
	m.Start()
	return m
}

// Start starts the server again after Stop and waits until it is ready.
func (m *Maestro) Start() {
	s := m.site
	s.T.Helper()
	listen := func(address string) net.Listener {
		l, err := testsite.ListenAgain(address)
		if err != nil {
			s.T.Fatal(err)
		}
		return l
	}
	ops := rest.NewOps()
	o := maestro.Options{DSN: m.o.DSN, Adapt: store.Options.Patient,
		Ops: ops, Metrics: ops.Registry, Logger: s.Log.With("part", "Maestro"), ShutdownGrace: time.Second,
		MayCall: func(peer string) bool { return access.MayCall(access.MaestroHTTP, pki.Name(peer)) }}
	if m.o.Broker != nil {
		o.Broker = m.o.Broker.Address
		o.BrokerTLS = s.ClientTLS(pki.ServiceName("maestro"), "broker")
	}
	if m.o.CLM != nil {
		o.CLM = m.o.CLM.DialAs("maestro")
	}
	if m.o.Plain {
		o.Plain.HTTP, o.Plain.GRPC, o.Plain.Agents = listen(m.HTTP), listen(m.GRPC), listen(m.Agents)
	} else {
		o.HTTP, o.GRPC, o.Agents = listen(m.HTTP), listen(m.GRPC), listen(m.Agents)
		config := s.ServerTLS("maestro")
		o.HTTPTLS, o.GRPCTLS, o.AgentsTLS = config, config.Clone(), config.Clone()
	}
	if m.o.Change != nil {
		m.o.Change(&o)
	}
	server, err := maestro.New(s.T.Context(), o)
	if err != nil {
		s.T.Fatal(err)
	}
	m.stop = testsite.Run(s.T, "Maestro", server.Run)
	awaitReady(s, "Maestro", ops)
}

// Stop stops the server and waits for its end.
func (m *Maestro) Stop() { m.stop() }

// LoseDatabase has the next Start begin with an empty database.
func (m *Maestro) LoseDatabase() { m.o.DSN = pgtest.DSN(m.site.T) }

// Dial returns a client that one of the region's services has, for the works of a source.
func (m *Maestro) Dial(service, source string) *maestroclient.Client {
	m.site.T.Helper()
	return m.dial(service, maestroclient.Options{Source: source})
}

// DialPatiently is Dial of a client whose calls only a hang ends, for a test that measures no time.
func (m *Maestro) DialPatiently(service, source string) *maestroclient.Client {
	m.site.T.Helper()
	return m.dial(service, maestroclient.Options{Source: source, Timeout: testsite.HangLimit})
}

func (m *Maestro) dial(service string, o maestroclient.Options) *maestroclient.Client {
	s := m.site
	s.T.Helper()
	o.HTTP, o.GRPC = "http://"+m.HTTP, m.GRPC
	if !m.o.Plain {
		o.HTTP, o.TLS = "https://"+m.HTTP, s.ClientTLS(pki.ServiceName(service), "maestro")
	}
	client, err := maestroclient.New(o)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(func() { _ = client.Close() })
	return client
}
