package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/clm"
	"atoll.dev/pki"
)

// clmFlags are those of the lifecycle manager that are not its options as they
// stand.
type clmFlags struct {
	dsn      string
	http     string // address
	insecure string // address of the plain listener
	entities string // file
	schemas  string // file
	identity identityFlags
}

// clm holds the lifecycle manager: its process, by two names as hyperfleet-api
// has it, and what works on its database.
func (c *command) clm() *cobra.Command {
	cmd := c.clmServer("clm")
	cmd.AddCommand(c.clmServer("serve"), c.clmMigrate(), c.clmVersion())
	cmd.AddCommand(c.clmVerbs()...)
	return cmd
}

func (c *command) clmServer(name string) *cobra.Command {
	f := &clmFlags{}
	cmd := c.serviceCommand("clm", "The cluster lifecycle manager: the region's source of truth", `Serves the cluster lifecycle manager's API, hyperfleet-api's REST contract, for
the kinds of resources that the entities name. Replicas share a database.`, func(ctx context.Context, s *service) error {
		s.identity = f.identity
		s.ops.Body = clm.Readiness
		p, err := s.begin(ctx)
		if err != nil {
			return err
		}
		registry, err := f.registry()
		if err != nil {
			return err
		}
		if err := s.startTracing(ctx, "hyperfleet-api", false); err != nil {
			return err
		}
		o := clm.Options{Version: version, Logger: s.log, Metrics: s.ops.Registry, Tracer: s.tracer}
		if o.Specs, err = f.specs(); err != nil {
			return err
		}
		if err := f.listen(s, p, &o); err != nil {
			return err
		}
		if o.Database, err = clm.Open(p.ctx, clm.DatabaseOptions{DSN: f.dsn, Registry: registry, Logger: s.log, Ops: s.ops}); err != nil {
			return err
		}
		defer o.Database.Close() // after wait
		server, err := clm.New(o)
		if err != nil {
			return err
		}
		p.run(server.Run)
		return p.wait()
	})
	cmd.Use = name
	addIdentity(cmd, &f.identity)
	optionalIdentity(cmd) // a server with a plain listener only needs none
	cmd.Flags().StringVar(&f.http, "http", "127.0.0.1:8000", "address of the REST API")
	cmd.Flags().StringVar(&f.insecure, "insecure-listen", "", "a plain listener without identity, on loopback only")
	cmd.Flags().StringVar(&f.schemas, "server-openapi-schema-path", "", "OpenAPI file of the provider, whose schemas specs must match")
	f.add(cmd)
	return cmd
}

// add gives a command the flags of whatever works on CLM's database.
func (f *clmFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dsn, "dsn", "", "PostgreSQL database of CLM alone")
	cmd.Flags().StringVar(&f.entities, "entities", "", "YAML file with the key entities (default: Cluster, NodePool, ManagementCluster, Channel, Version, WifConfig)")
	cmd.MarkFlagRequired("dsn")
}

func (f *clmFlags) registry() (*clm.Registry, error) {
	if f.entities == "" {
		return clm.ParseRegistry(clm.DefaultEntities)
	}
	document, err := os.ReadFile(f.entities)
	if err != nil {
		return nil, fmt.Errorf("--entities: %w", err)
	}
	return clm.ParseRegistry(document)
}

func (f *clmFlags) specs() (clm.SpecSchemas, error) {
	if f.schemas == "" {
		return clm.SpecSchemas{}, nil
	}
	document, err := os.ReadFile(f.schemas)
	if err != nil {
		return clm.SpecSchemas{}, fmt.Errorf("--server-openapi-schema-path: %w", err)
	}
	return clm.ParseSpecSchemas(document)
}

// listen opens the ports: the one that asks for certificates when there is an
// identity, and a plain one when the flag names it.
func (f *clmFlags) listen(s *service, p *parts, o *clm.Options) (err error) {
	identify := &clm.Identity{MayCall: func(peer string) bool { return access.MayCall(access.CLM, pki.Name(peer)) }}
	o.Identify = identify.Identify
	if f.insecure != "" {
		if err := onLoopback(f.insecure); err != nil {
			return fmt.Errorf("--insecure-listen %s: %w", f.insecure, err)
		}
		if o.Plain, err = listen(f.insecure); err != nil {
			return err
		}
		identify.Open = true
		s.log.Warn("listening without TLS and without identity", "address", f.insecure)
	}
	if !f.identity.given() {
		if o.Plain == nil {
			return errNoIdentity
		}
		return nil
	}
	identity, err := s.openIdentity(p, pki.ServiceName("clm"))
	if err != nil {
		return err
	}
	o.HTTPTLS = identity.ServerTLS(true)
	o.HTTP, err = listen(f.http)
	return err
}

// onLoopback refuses an address that others than this machine's users reach.
func onLoopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return errors.New("what has neither TLS nor an identity stays on loopback")
	}
	return nil
}

func (c *command) clmMigrate() *cobra.Command {
	f := &clmFlags{}
	cmd := c.serviceCommand("clm", "Bring CLM's database up to date, and end", `Brings the schema of CLM's database up to date under a lock, which a server that
starts does, too. A database of a newer program is refused.`, func(ctx context.Context, s *service) error {
		registry, err := f.registry()
		if err != nil {
			return err
		}
		db, err := clm.Open(ctx, clm.DatabaseOptions{DSN: f.dsn, Registry: registry, Logger: s.log})
		if err != nil {
			return err
		}
		db.Close()
		return nil
	})
	cmd.Use = "migrate"
	f.add(cmd)
	return cmd
}

func (c *command) clmVersion() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c.printf("atoll clm %s\n", version)
			return nil
		},
	}
}
