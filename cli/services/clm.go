package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/cli/terminal"
	"atoll.dev/client/clmclient"
	"atoll.dev/clm"
	"atoll.dev/fleet"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/release"
	"atoll.dev/sentinel"
)

// CLM returns the command of the lifecycle manager. Its process has two names, as in
// hyperfleet-api.
func CLM(session *terminal.Session) *cobra.Command {
	cmd := clmServer("clm")
	cmd.Args = terminal.RefuseUnknownVerb
	cmd.AddCommand(clmServer("serve"), clmMigrate(), clmVersion(session))
	return cmd
}

// clmService is `atoll clm`, also `atoll clm serve`.
type clmService struct {
	flags *clmFlags
}

func clmServer(name string) *cobra.Command {
	m := &clmService{flags: &clmFlags{}}
	cmd := serviceCommand("clm", "The cluster lifecycle manager: the region's source of truth",
		`Serves the cluster lifecycle manager's API, hyperfleet-api's REST contract, for
the kinds of resources that the entities name. Replicas share a database.

It is configured as hyperfleet-api is: by a YAML file (--config), by
environment variables (HYPERFLEET_SERVER_PORT for server.port), which override
the file, and by flags, which override both. An unknown key is an error.

With a broker (--mqtt) the sentinel runs in the process, too; --sentinel=false
leaves it to "atoll sentinel".

With an identity of the region the API's port requires certificates or, with
server.jwt, a certificate or a token. Without one it has TLS by server.tls,
or none; then callers without a token must be on this machine.`, m)
	cmd.Use = name
	addIdentityFlags(cmd, &m.flags.identity)
	makeIdentityOptional(cmd) // a plain server needs none
	cmd.Flags().StringVar(&m.flags.http, "http", "", "address of the API, instead of --server-host and --server-port")
	cmd.Flags().StringVar(&m.flags.insecure, "insecure-listen", "",
		"one more listener, plain and without identity, on loopback only")
	cmd.Flags().StringSliceVar(&m.flags.releases, "release", nil,
		"a release that clusters can have, such as 1.36.3; may be repeated. Each is published as a Version of the channel "+
			"stable, and one that was published earlier is withdrawn")
	cmd.Flags().BoolVar(&m.flags.sentinel.on, "sentinel", true,
		"run the sentinel in this process, too, where a broker is named")
	m.flags.sentinel.add(cmd, "sentinel-")
	m.flags.fleet.add(cmd)
	m.flags.replica.add(cmd)
	m.flags.add(cmd)
	return cmd
}

func (m *clmService) start(ctx context.Context, s *System) error {
	config, err := m.flags.load(s)
	if err != nil {
		return err
	}
	enabled := tracing(config.Tracing.Enabled != nil && *config.Tracing.Enabled)
	if err := s.startTracing(ctx, "hyperfleet-api", enabled); err != nil {
		return err
	}
	s.identity = m.flags.identity
	s.Ops.Body = clm.Readiness
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	for _, version := range m.flags.releases {
		if err := release.CheckVersion(version); err != nil {
			return fmt.Errorf("--release: %w", err)
		}
	}
	if err := m.flags.serveOps(s, p, config); err != nil {
		return err
	}
	return m.flags.serve(s, p, config)
}

// serve runs the parts of the lifecycle manager until one fails or the process receives a signal to
// stop.
func (f *clmFlags) serve(s *System, p *parts, config *clm.Config) error {
	o := clm.Options{
		Version:          terminal.Version,
		Logger:           s.Log,
		Metrics:          s.Ops.Registry,
		Tracer:           s.Tracer,
		ShutdownGrace:    config.Health.ShutdownTimeout,
		Stuck:            config.Metrics.ReconciliationStuckThreshold,
		MaxResource:      int64(config.Server.MaxResourceBytes),
		WatchesPerCaller: *config.Server.WatchesPerCaller,
		ReadTimeout:      config.Server.Timeouts.Read,
		WriteTimeout:     config.Server.Timeouts.Write,
		HistoryMemory:    config.Database.HistoryMaxAge,
		Quotas:           config.Quotas(),
	}
	var err error
	if o.Specs, err = readSpecSchemas(config.Server.OpenAPISchemaPath); err != nil {
		return err
	}
	if err := f.listen(s, p, config, &o); err != nil {
		return err
	}
	if s.Database, err = f.open(p.ctx, config, s, s.Ops); err != nil {
		return err
	}
	defer s.Database.Close() // after wait
	o.Database = s.Database
	works, closeWorks, err := f.fleet.openWorks(f.regionIdentity)
	if err != nil {
		return err
	}
	defer closeWorks()
	if err := startFleet(s, p, &o, works, &f.fleet); err != nil {
		return err
	}
	server, err := clm.New(o)
	if err != nil {
		return err
	}
	if f.sentinel.isWanted() {
		if err := f.sentinel.start(s, p, o.Database, f.regionIdentity, sentinel.ProcessOfCLM); err != nil {
			return err
		}
	}
	if err := f.publishReleases(s, p, &o); err != nil {
		return err
	}
	p.run(server.Run)
	return p.wait()
}

// publishReleases publishes the releases through the process's own API, so that they are validated and
// recorded as all resources are. Without --release it withdraws those that an earlier process
// published. Without an identity of the region nothing is published.
func (f *clmFlags) publishReleases(s *System, p *parts, o *clm.Options) error {
	switch {
	case f.regionIdentity == nil && len(f.releases) == 0:
		return nil
	case f.regionIdentity == nil:
		return fmt.Errorf("--release: %w", errNoIdentity)
	}
	c, err := clmclient.New(clmclient.Options{Endpoint: "https://" + o.HTTP.Addr().String(),
		TLS: f.regionIdentity.ClientTLS("clm"), Budget: time.Millisecond})
	if err != nil {
		return err
	}
	releases := &release.Publisher{CLM: c, Versions: f.releases, Log: s.Log}
	s.Ops.Check("releases", releases.Check)
	p.run(releases.Run)
	return nil
}

// readSpecSchemas reads the OpenAPI document that has the schemas of specs; without a file there are none.
func readSpecSchemas(file string) (clm.SpecSchemas, error) {
	if file == "" {
		return clm.SpecSchemas{}, nil
	}
	document, err := os.ReadFile(file)
	if err != nil {
		return clm.SpecSchemas{}, fmt.Errorf("server.openapi_schema_path: %w", err)
	}
	return clm.ParseSpecSchemas(document)
}

// open opens CLM's database, and brings its schema up to date.
func (f *clmFlags) open(ctx context.Context, config *clm.Config, s *System, ops *rest.Ops) (*clm.Database, error) {
	dsn := config.DSN()
	if f.database.IsGiven() {
		var err error
		if dsn, err = f.database.Read(); err != nil {
			return nil, err
		}
	}
	return clm.Open(ctx, clm.DatabaseOptions{DSN: dsn, MaxConns: config.Database.Pool.MaxConnections,
		Registry: config.Registry(), Kinds: fleetKinds(
			config.Registry()), Tenants: config.Server.Tenant.Enabled, Version: terminal.Version, Metrics: s.Ops.Registry, Logger: s.Log, Ops: ops})
}

// listen opens the ports, each with its own rule which clients it admits.
func (f *clmFlags) listen(s *System, p *parts, config *clm.Config, o *clm.Options) (err error) {
	identify := &clm.Identity{
		MayCall:     func(peer string) bool { return access.MayCall(access.CLM, pki.Name(peer)) },
		OnlyReports: func(peer string) bool { return access.OnlyReports(access.CLM, pki.Name(peer)) },
		Tenancy:     config.Server.Tenant,
	}
	o.Identify = identify.Identify
	if *config.Server.JWT.Enabled {
		if identify.Tokens, err = clm.NewTokens(config.Server.JWT.Configs); err != nil {
			return fmt.Errorf("server.jwt.configs: %w", err)
		}
	}
	address := config.Address()
	if f.http != "" {
		address = f.http
	}
	switch {
	case f.identity.isComplete() && config.Server.TLS.Enabled:
		return errors.New(
			"the API has the region's certificate, or the one of server.tls: take --identity, or server.tls.enabled")
	case f.identity.isComplete():
		identity, err := s.openIdentity(p, pki.ServiceName("clm"))
		if err != nil {
			return err
		}
		f.regionIdentity = identity
		rule := pki.CertificateRequired
		if identify.Tokens != nil {
			rule = pki.CertificateOptional
		}
		o.HTTPTLS = identity.ServerTLS(rule)
	case config.Server.TLS.Enabled && identify.Tokens == nil:
		return errors.New(
			"no caller could authenticate: with server.tls give server.jwt, too, or an identity of the region " +
				"instead")
	case config.Server.TLS.Enabled:
		if o.HTTPTLS, err = fileTLS(config.Server.TLS); err != nil {
			return fmt.Errorf("server.tls: %w", err)
		}
	case f.insecure != "" && f.http == "" && !config.ServerGiven:
		address = "" // only the plain listener
	case f.insecure != "":
		return errors.New("--insecure-listen is for a port beside one that has TLS; the API's is plain already")
	case f.http == "" && !config.ServerGiven:
		return errNoIdentity
	default:
		if err := requireLoopback(address); err != nil && identify.Tokens == nil {
			return fmt.Errorf("the API at %s: %w", address, err)
		}
		identify.Open = identify.Tokens == nil
		s.Log.Warn("listening without TLS", "address", address)
	}
	if f.insecure != "" {
		if err := requireLoopback(f.insecure); err != nil {
			return fmt.Errorf("--insecure-listen %s: %w", f.insecure, err)
		}
		if o.Plain, err = f.replica.listen(f.insecure); err != nil {
			return err
		}
		identify.Open, identify.Trusting = true, true
		s.Log.Warn("listening without TLS and without identity", "address", f.insecure)
	}
	if address != "" {
		o.HTTP, err = f.replica.listen(address)
	}
	return err
}

// requireLoopback returns an error for an address that is not on loopback.
func requireLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errors.New("a listener without TLS and identity must be on loopback; give an address such as 127.0.0.1:8000")
	}
	return nil
}

// clmMigration is `atoll clm migrate`.
type clmMigration struct {
	flags *clmFlags
}

func clmMigrate() *cobra.Command {
	m := &clmMigration{flags: &clmFlags{}}
	cmd := serviceCommand("clm", "Bring CLM's database up to date, and end",
		`Brings the schema of CLM's database up to date under a lock, which a server that
starts does, too. A database of a newer program is refused.`, m)
	cmd.Use = "migrate"
	m.flags.add(cmd)
	return cmd
}

func (m *clmMigration) start(ctx context.Context, s *System) error {
	config, err := m.flags.load(s)
	if err != nil {
		return err
	}
	db, err := m.flags.open(ctx, config, s, nil)
	if err != nil {
		return err
	}
	defer db.Close()
	if !hasFleet(config.Registry()) {
		return nil
	}
	return fleet.Migrate(ctx, db.Store)
}

func clmVersion(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			session.Printf("atoll clm %s\n", terminal.Version)
			return nil
		},
	}
}
