package services

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"atoll.dev/adapter"
	"atoll.dev/cli/terminal"
	"atoll.dev/clm"
	"atoll.dev/internal/trace"
	"atoll.dev/pki"
	"atoll.dev/sentinel"
	"atoll.dev/store"
)

// sentinelFlags are the flags of a sentinel, in CLM's process or in its own.
type sentinelFlags struct {
	on           bool
	broker       string
	brokerConfig string
	configs      []string // files
	name, fleet  string
}

// add gives a command the flags. prefix separates them from CLM's flags of the same name.
func (f *sentinelFlags) add(cmd *cobra.Command, prefix string) {
	fl := cmd.Flags()
	fl.StringVar(&f.broker, "mqtt", "", "the region's broker, host:port, to which the sentinel sends events")
	fl.StringVar(&f.brokerConfig, "message-broker-config-file", "",
		"YAML file about another broker: brokerHost, username, password, caFile, clientCertFile, clientKeyFile and "+
			"so on")
	fl.StringArrayVar(&f.configs, prefix+"config", nil,
		"YAML file of hyperfleet-sentinel for one kind; may be repeated (default: HyperFleet's rules for each kind "+
			"that has required adapters)")
	fl.StringVar(&f.name, prefix+"name", "",
		"name of this replica, the same after a restart (default: the host's name)")
	fl.StringVar(&f.fleet, prefix+"fleet", "",
		"name of a group of replicas; sentinels of one database that handle different resources need different names "+
			"(default: default)")
}

// isWanted reports whether a sentinel runs in the process of CLM.
func (f *sentinelFlags) isWanted() bool { return f.on && (f.broker != "" || f.brokerConfig != "") }

// start adds a sentinel to a process that has CLM's database open.
func (f *sentinelFlags) start(s *System, p *parts, db *clm.Database, identity *pki.Identity,
	process sentinel.Process) error {
	broker, err := brokerOptions(f.broker, f.brokerConfig, identity)
	if err != nil {
		return err
	}
	o := sentinel.Options{
		Store: db.Store, Feed: db.Feed, Bus: broker, Requests: clm.RequestKind, Name: f.name, Fleet: f.fleet,
		Trace: newPublishTracer(s.Tracer), Version: terminal.Version, Logger: s.Log, Metrics: s.Ops.Registry, Ops: s.Ops,
		Process: process,
	}
	for _, e := range db.Registry.Entities() {
		o.Kinds = append(o.Kinds, sentinel.Kind{Kind: store.Kind(e.Kind), Plural: e.Plural, Parent: store.Kind(
			e.ParentKind)})
		// Kinds without required adapters are always reconciled; skip them.
		if len(f.configs) == 0 && len(e.RequiredAdapters) > 0 {
			o.Configs = append(o.Configs, sentinel.DefaultConfig(e.Plural))
		}
	}
	configs, err := f.readConfigs()
	if err != nil {
		return err
	}
	for i, c := range configs {
		if ineffective := c.Ineffective(o.Process); len(ineffective) > 0 {
			s.Log.Warn("settings without effect", "file", f.configs[i], "settings", ineffective)
		}
		if c.DebugConfig {
			text, err := c.Dump()
			if err != nil {
				return err
			}
			s.Log.Info("the sentinel's configuration", "file", f.configs[i], "config", string(text))
		}
	}
	o.Configs = append(o.Configs, configs...)
	if len(o.Configs) == 0 {
		s.Log.Warn("the sentinel does not run: no kind has required adapters, and no --sentinel-config is given")
		return nil
	}
	service, err := sentinel.New(p.ctx, o)
	if err != nil {
		return err
	}
	p.run(service.Run)
	return nil
}

// readConfigs reads the configuration files of --sentinel-config.
func (f *sentinelFlags) readConfigs() (configs []sentinel.Config, err error) {
	for _, file := range f.configs {
		c, err := sentinel.ReadConfig(file, os.LookupEnv)
		if err != nil {
			return nil, err
		}
		configs = append(configs, c)
	}
	return configs, nil
}

// newPublishTracer returns a function that records the publishing of an event as a span, in the trace of
// the request that made the resource's generation, and returns the traceparent for the event.
func newPublishTracer(tracer *trace.Tracer) func(store.Document) string {
	return func(d store.Document) string {
		parent := clm.TraceparentOf(d)
		if tracer == nil {
			return parent
		}
		ctx, span := tracer.Start(trace.WithParent(context.Background(), parent), "publish "+string(d.Kind),
			trace.Producer,
			trace.String("resource.id", d.ID), trace.Int("resource.generation", d.Generation))
		span.End(nil)
		return trace.Parent(ctx)
	}
}

// Sentinel returns the command of the sentinel as a process of its own.
func Sentinel(session *terminal.Session) *cobra.Command {
	cmd := sentinelServer("sentinel")
	cmd.Args = terminal.RefuseUnknownVerb
	cmd.AddCommand(sentinelServer("serve"), sentinelDump(session), &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			session.Printf("atoll sentinel %s\n", terminal.Version)
			return nil
		},
	})
	return cmd
}

// sentinelService is `atoll sentinel`, also `atoll sentinel serve`.
type sentinelService struct {
	flags *sentinelFlags
	clm   *clmFlags
}

func sentinelServer(name string) *cobra.Command {
	m := &sentinelService{flags: &sentinelFlags{}, clm: &clmFlags{}}
	cmd := serviceCommand("sentinel", "The sentinel, when it does not run in CLM's process",
		`Decides, from CLM's change feed and the clock, which resources need work, and sends
events to the adapters. "atoll clm" runs it, too; as a process of its own it needs
the same database and the same entities as CLM. Replicas share the resources; each
has a --name.

--config is a file of hyperfleet-sentinel; --clm-config is CLM's own.`, m)
	cmd.Use = name
	addIdentityFlags(cmd, &m.clm.identity)
	makeIdentityOptional(cmd) // another broker may need none
	m.flags.add(cmd, "")
	m.clm.addDatabase(cmd, "clm-config")
	return cmd
}

func (m *sentinelService) start(ctx context.Context, s *System) error {
	config, err := m.clm.load(s)
	if err != nil {
		return err
	}
	traced := config.Tracing.Enabled != nil && *config.Tracing.Enabled
	files, err := m.flags.readConfigs()
	if err != nil {
		return err
	}
	for _, c := range files {
		traced = traced || c.TracingEnabled
	}
	if len(files) > 0 && m.clm.config == "" {
		s.Log = adapterLog(adapter.Log(files[0].Log), s.logLevel).With("service", s.Name)
	}
	if err := s.startTracing(ctx, "hyperfleet-sentinel", tracing(traced)); err != nil {
		return err
	}
	s.identity = m.clm.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	var identity *pki.Identity
	if s.identity.isComplete() {
		if identity, err = s.openIdentity(p, pki.ServiceName("clm")); err != nil {
			return err
		}
	}
	s.Database, err = m.clm.open(p.ctx, config, s, s.Ops)
	if err != nil {
		return err
	}
	defer s.Database.Close() // after wait
	if err := m.flags.start(s, p, s.Database, identity, sentinel.OwnProcess); err != nil {
		return err
	}
	return p.wait()
}

func sentinelDump(session *terminal.Session) *cobra.Command {
	var files []string
	cmd := &cobra.Command{
		Use: "config-dump", Short: "Print a sentinel's configuration as it is in effect", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			for i, file := range files {
				config, err := sentinel.ReadConfig(file, os.LookupEnv)
				if err != nil {
					return err
				}
				text, err := config.Dump()
				if err != nil {
					return err
				}
				if i > 0 {
					session.Printf("---\n")
				}
				session.Printf("%s", text)
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&files, "config", nil, "the file; may be repeated")
	if err := cmd.MarkFlagRequired("config"); err != nil {
		panic(fmt.Sprintf("cli: %v", err))
	}
	return cmd
}
