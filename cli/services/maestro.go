package services

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/bus"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/maestro"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/pki"
)

// maestroFlags are the flags of the server that maestro.Options does not hold as they are.
type maestroFlags struct {
	http, grpc, agents string // addresses
	database           *terminal.Database
	envelope           EnvelopeFlags
	messages           string // protocol to agents: mqtt or grpc
	authn              string
	insecure           map[string]string
	tokens             rpcauth.KubeOptions
	sources, broker    certFiles // of the gRPC ports, when they are not the region's
	original           originalFlags
	noHeartbeat        bool
	brokerConfig       string // file
	subscription       string // shared or broadcast
	enforceOwnership   bool
	clm                string // URL
	replica            replicaFlags
}

// certFiles are a server's certificate and the CA of its clients.
type certFiles struct{ cert, key, ca string }

// Maestro returns the command of Maestro, with the subcommands that charts of the original run.
func Maestro() *cobra.Command {
	cmd := maestroServer("maestro")
	cmd.Args = terminal.RefuseUnknownVerb
	cmd.AddCommand(maestroServer("server"), Agent()) // what charts of the original run
	return cmd
}

// maestroService is `atoll maestro`, also `atoll maestro server`.
type maestroService struct {
	flags    *maestroFlags
	options  maestro.Options
	identity identityFlags
}

// maestroServer returns the command that serves. It has two names: "atoll maestro", as all services
// of the region, and "atoll maestro server", as the original.
func maestroServer(name string) *cobra.Command {
	m := &maestroService{flags: &maestroFlags{}}
	cmd := serviceCommand("maestro", "Maestro: delivers works to management clusters",
		`Serves consumers and resource bundles over REST and gRPC, delivers works to
agents over MQTT or gRPC and takes their status back. Replicas share a database
and a broker.

With --message-broker-type grpc there is no broker: agents connect to --grpc-broker.
With mqtt that port may be open, too; an agent uses one of the two.`, m)
	cmd.Use = name
	addIdentityFlags(cmd, &m.identity)
	makeIdentityOptional(cmd) // a server that has plain listeners only needs none
	fl := cmd.Flags()
	m.flags.database = terminal.AddDatabaseFlags(cmd, "dsn", "PostgreSQL database of Maestro alone")
	m.flags.envelope.Add(fl)
	fl.StringVar(&m.flags.clm, "clm", "",
		"URL of the region's lifecycle manager, which gets reports of connected agents and places clusters by them")
	fl.IntVar(&m.options.WatchesPerCaller, "watches-per-caller", 100,
		"watches over REST that an account has open at the same time; 0: any number")
	m.flags.replica.add(cmd)
	fl.StringVar(&m.options.Broker, "mqtt", "127.0.0.1:8883", "the broker")
	fl.StringVar(&m.flags.brokerConfig, "message-broker-config-file", "",
		`YAML file about the broker, as Maestro and OCM's agents read it: brokerHost, username,
password, caFile, clientCertFile, clientKeyFile, topics and so on. Instead of --mqtt`)
	fl.StringVar(&m.flags.subscription, "subscription-type", "shared",
		"how replicas get the agents' events: shared (each gets some), or broadcast (each gets all; for brokers without "+
			"shared subscriptions)")
	fl.StringVar(&m.options.BrokerClientID, "client-id", "",
		`MQTT client id; each replica needs its own, and the region's broker admits "maestro-..." only `+
			`(default: maestro- and a random one)`)
	fl.IntVar(&m.options.Connections, "broker-connections", 1, "connections that publish to the broker")
	fl.Float64Var(&m.options.PublishRate, "broker-publish-rate", 0,
		"events that one connection publishes in a second, for brokers that take no more (AWS IoT Core: 100); 0 is "+
			"any number")
	fl.IntVar(&m.options.MaxMessage, "max-message-size", 0,
		"largest message in bytes, for brokers that do not announce it (AWS IoT Core: 131072, Azure Event Grid: 524288); "+
			"larger works are refused")
	fl.StringVar(&m.options.SourceID, "source-id", "maestro", "source id in topics and events")
	fl.StringVar(&m.flags.http, "http", "127.0.0.1:8000", "address of the REST API")
	fl.StringSliceVar(&m.options.CORSOrigins, "cors-origin", nil,
		"an origin whose pages may call the REST API; * is any")
	fl.StringVar(&m.flags.grpc, "grpc", "127.0.0.1:8090", "address of the gRPC API for sources")
	fl.StringVar(&m.flags.agents, "grpc-broker", "",
		"address of the gRPC API for agents (with --message-broker-type grpc: 127.0.0.1:8091)")
	fl.StringVar(&m.flags.messages, "message-broker-type", "mqtt", "protocol to agents: mqtt or grpc")
	fl.StringVar(&m.flags.authn, "grpc-authn-type", "mtls",
		`who may call over gRPC: mtls (certificates), token (bearer tokens of a Kubernetes,
and certificates), mock (no check; only with --insecure-listen, and without other ports)`)
	fl.StringVar(&m.options.RulesFile, "grpc-authorizer-config", "",
		"YAML file of the rules by which others than the region's services may call over gRPC")
	fl.StringVar(&m.flags.tokens.Server, "kube-api-server", "",
		"URL of the Kubernetes API server that reviews tokens; default: that of the pod")
	fl.StringVar(&m.flags.tokens.CAFile, "kube-ca-file", "", "CA of that API server; default: the pod's")
	fl.StringVar(&m.flags.tokens.TokenFile, "kube-token-file", "",
		"file with the token for requests to that API server; default: the pod's")
	fl.StringToStringVar(&m.flags.insecure, "insecure-listen", nil,
		"plain listeners without identity, on loopback only: rest=ADDR,grpc=ADDR,grpc-broker=ADDR")
	fl.StringVar(&m.flags.sources.cert, "grpc-tls-cert-file", "",
		"certificate of the gRPC API for sources, when it is not the region's")
	fl.StringVar(&m.flags.sources.key, "grpc-tls-key-file", "", "key of that certificate")
	fl.StringVar(&m.flags.sources.ca, "grpc-client-ca-file", "",
		"CA of clients of the gRPC API for sources, who are users of --grpc-authorizer-config")
	fl.StringVar(&m.flags.broker.cert, "grpc-broker-tls-cert-file", "",
		"certificate of the gRPC API for agents, when it is not the region's")
	fl.StringVar(&m.flags.broker.key, "grpc-broker-tls-key-file", "", "key of that certificate")
	fl.StringVar(&m.flags.broker.ca, "grpc-broker-client-ca-file", "",
		"CA of clients of the gRPC API for agents, who are users of --grpc-authorizer-config")
	fl.DurationVar(&m.options.Heartbeat, "heartbeat-check-interval", 10*time.Second,
		"time between two heartbeats on a gRPC stream")
	fl.BoolVar(&m.flags.noHeartbeat, "heartbeat-disable", false, "send no heartbeats")
	fl.BoolVar(&m.flags.enforceOwnership, "enforce-source-ownership", true,
		"only the source that made a bundle may change it")
	fl.BoolVar(&m.options.PlainErrors, "grpc-plain-errors", false,
		"gRPC errors are the text alone, not a Kubernetes status that holds it")
	m.flags.original.add(fl)
	return cmd
}

func (m *maestroService) start(ctx context.Context, s *System) error {
	s.identity = m.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	if err := m.flags.apply(s, p, &m.options); err != nil {
		return err
	}
	envelope, err := m.flags.envelope.Open(ctx)
	if err != nil {
		return err
	}
	defer envelope.Close() // after wait
	p.watchKeys(s, envelope)
	m.options.Envelope = envelope.KMS
	server, err := maestro.New(p.ctx, m.options)
	if err != nil {
		return err
	}
	if s.CLM != nil {
		defer s.CLM.Close() // after wait
	}
	p.run(server.Run)
	return p.wait()
}

// apply sets the options of the server from the flags.
func (f *maestroFlags) apply(s *System, p *parts, o *maestro.Options) error {
	if err := f.original.apply(f, o); err != nil {
		return err
	}
	if err := f.setMessages(o); err != nil {
		return err
	}
	if f.noHeartbeat {
		o.Heartbeat = 100 * 365 * 24 * time.Hour
	}
	o.AnySource = !f.enforceOwnership
	o.Logger, o.Metrics, o.Ops = s.Log, s.Ops.Registry, s.Ops
	if err := f.listenPlain(s, o); err != nil {
		return err
	}
	if err := f.setAuthentication(s, o); err != nil {
		return err
	}
	if f.authn == "mock" && (o.Broker == "" || f.brokerConfig != "") {
		if f.clm != "" {
			return errors.New("--clm needs an identity: give --identity, --pki and --ca")
		}
		return nil
	}
	if !s.identity.isComplete() {
		return errNoIdentity
	}
	identity, err := s.openIdentity(p, pki.ServiceName("maestro"))
	if err != nil {
		return err
	}
	if f.clm != "" {
		// Maestro repeats a failed call itself, a second later.
		if s.CLM, err = clmclient.New(clmclient.Options{Endpoint: f.clm, TLS: identity.ClientTLS("clm"),
			Timeout: 2 * time.Second, Budget: time.Millisecond}); err != nil {
			return err
		}
		o.CLM = s.CLM
	}
	if f.brokerConfig == "" {
		o.BrokerTLS = identity.ClientTLS("broker")
	}
	if f.authn == "mock" {
		return nil
	}
	return f.listenTLS(identity, o)
}

// setMessages sets how the server reaches agents.
func (f *maestroFlags) setMessages(o *maestro.Options) error {
	switch f.messages {
	case "grpc":
		o.Broker = ""
		if f.agents == "" && f.insecure["grpc-broker"] == "" {
			f.agents = "127.0.0.1:8091"
		}
	case "mqtt":
		return f.setMQTT(o)
	default:
		return fmt.Errorf("--message-broker-type %q is neither mqtt nor grpc", f.messages)
	}
	return nil
}

// setAuthentication sets how gRPC callers prove who they are.
func (f *maestroFlags) setAuthentication(s *System, o *maestro.Options) error {
	switch f.authn {
	case "mtls":
	case "token":
		o.Tokens = &f.tokens
	case "mock":
		if len(f.insecure) == 0 {
			return errors.New("--grpc-authn-type mock identifies no caller: give --insecure-listen, or use mtls")
		}
		if o.Broker != "" && f.brokerConfig == "" && s.identity.dir == "" {
			return errors.New(
				"the broker needs an identity: give --identity, --pki and --ca, or --message-broker-config-file, or " +
					"--message-broker-type grpc")
		}
	default:
		return fmt.Errorf("--grpc-authn-type %q is neither mtls, token nor mock", f.authn)
	}
	return nil
}

// listenTLS opens the listeners that authenticate callers.
func (f *maestroFlags) listenTLS(identity *pki.Identity, o *maestro.Options) (err error) {
	admitServices(o)
	rule := pki.CertificateOptional
	if f.authn == "mtls" {
		rule = pki.CertificateRequired
	}
	o.HTTPTLS = identity.ServerTLS(pki.CertificateRequired)
	if o.GRPCTLS, o.ForeignGRPC, err = f.sources.serverTLS(identity, rule); err != nil {
		return fmt.Errorf("--grpc-tls-cert-file: %w", err)
	}
	if o.HTTP, err = f.replica.listen(f.http); err != nil {
		return err
	}
	if o.GRPC, err = f.replica.listen(f.grpc); err != nil || f.agents == "" {
		return err
	}
	if o.AgentsTLS, o.ForeignAgents, err = f.broker.serverTLS(identity, rule); err != nil {
		return fmt.Errorf("--grpc-broker-tls-cert-file: %w", err)
	}
	o.Agents, err = f.replica.listen(f.agents)
	return err
}

// admitServices sets which of the region's identities may call over REST and over
// gRPC.
func admitServices(o *maestro.Options) {
	o.MayCall = func(peer string) bool { return access.MayCall(access.MaestroHTTP, pki.Name(peer)) }
	o.MayCallGRPC = func(peer string) bool { return access.MayCall(access.MaestroGRPC, pki.Name(peer)) }
}

// setMQTT sets the options of the broker from the flags.
func (f *maestroFlags) setMQTT(o *maestro.Options) error {
	o.Topics = bus.TopicsOf(o.SourceID)
	if f.brokerConfig != "" {
		config, err := bus.ReadConfig(f.brokerConfig)
		if err != nil {
			return fmt.Errorf("--message-broker-config-file: %w", err)
		}
		client := config.Options()
		o.Broker, o.BrokerUsername, o.BrokerPassword, o.BrokerKeys = client.Addr, client.Username, client.Password,
			client.Keys
		o.BrokerTimes.KeepAlive, o.BrokerTimes.Dial = client.KeepAlive, client.DialTimeout
		if config.Topics != (bus.Topics{}) {
			o.Topics = config.Topics
		}
	}
	switch f.subscription {
	case "shared":
		o.Topics.AgentEvents = o.Topics.AgentEvents.Share()
	case "broadcast":
		o.Topics.AgentEvents.Group = ""
	default:
		return fmt.Errorf("--subscription-type %q is neither shared nor broadcast", f.subscription)
	}
	return nil
}

// listenPlain opens the plain listeners that --insecure-listen names.
func (f *maestroFlags) listenPlain(s *System, o *maestro.Options) error {
	for name, addr := range f.insecure {
		listener, ok := map[string]*net.Listener{"rest": &o.Plain.HTTP, "grpc": &o.Plain.GRPC,
			"grpc-broker": &o.Plain.Agents}[name]
		if !ok {
			return fmt.Errorf("--insecure-listen %s: there are rest, grpc and grpc-broker", name)
		}
		err := requireLoopback(addr)
		if err != nil {
			return fmt.Errorf("--insecure-listen %s=%s: %w", name, addr, err)
		}
		if *listener, err = f.replica.listen(addr); err != nil {
			return err
		}
		s.Log.Warn("listening without TLS and without identity", "port", name, "address", addr)
	}
	return nil
}

// serverTLS returns the TLS configuration of a gRPC port: of the region's identity, or of the files.
// foreign reports that the clients' CA is not the region's.
func (c certFiles) serverTLS(identity *pki.Identity, rule pki.ClientCertificate) (config *tls.Config, foreign bool,
	err error) {
	config = identity.ServerTLS(rule)
	if c == (certFiles{}) {
		return config, false, nil
	}
	if c.cert == "" || c.key == "" {
		return nil, false, errors.New("a certificate and its key are needed")
	}
	pair := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { // renewed in place
		cert, err := tls.LoadX509KeyPair(c.cert, c.key)
		return &cert, err
	}
	if _, err := pair(nil); err != nil {
		return nil, false, err
	}
	if c.ca == "" {
		// Another server certificate, but the region's rules for clients.
		inner := config.GetConfigForClient
		config.GetCertificate = pair
		config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			inherited, err := inner(hello)
			if inherited != nil {
				inherited.GetCertificate = pair
			}
			return inherited, err
		}
		return config, false, nil
	}
	pem, err := os.ReadFile(c.ca)
	if err != nil {
		return nil, false, err
	}
	foreignTLS := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: pair,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true}
	if rule == pki.CertificateOptional {
		foreignTLS.ClientAuth = tls.VerifyClientCertIfGiven
	}
	foreignTLS.ClientCAs = x509.NewCertPool()
	if !foreignTLS.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, false, fmt.Errorf("%s has no certificates", c.ca)
	}
	return foreignTLS, true, nil
}
