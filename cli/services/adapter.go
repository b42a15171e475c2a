package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/adapter"
	"atoll.dev/adapters"
	"atoll.dev/bus"
	"atoll.dev/cli/terminal"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// adapterFlags are the flags of the processes that run adapters.
type adapterFlags struct {
	configs, tasks []string
	dir            string
	bundled        []string // names below adapters/

	broker, brokerConfig string
	region               regionAddresses
	kubeconfig           string
	parallel             int
	identity             identityFlags

	settings map[string]*string // flags that override the config file, by path in it
}

// regionAddresses are the addresses of the region's own services. A config that names no server
// uses them, and only they are called with the region's identity.
type regionAddresses struct{ clm, maestro, maestroGRPC string }

// Adapter returns the commands below `atoll adapter`.
func Adapter(session *terminal.Session) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adapter",
		Short: "Adapters do one task for each resource: serve, lint, config-dump",
		Args:  terminal.RefuseUnknownVerb,
		RunE:  terminal.ShowHelp,
		Long: `An adapter does one kind of work for the resources of one kind, and reports the
result. Two YAML files define the work, in hyperfleet-adapter's formats.`,
	}
	cmd.AddCommand(adapterServe(session), adapterLint(session), adapterConfigDump(session), adapterVersion(session))
	return cmd
}

// adapterService is `atoll adapter serve`.
type adapterService struct {
	flags   *adapterFlags
	changed func(string) bool // whether a flag of this name was given
}

func adapterServe(session *terminal.Session) *cobra.Command {
	m := &adapterService{flags: &adapterFlags{}}
	cmd := serviceCommand("adapter", "Run adapters",
		`Runs one adapter, or several side by side: each --config goes with the
--task-config at the same place; --dir has a directory for each adapter, with
config.yaml and task.yaml.

With --identity, the adapters call the region's broker, CLM and Maestro with
certificates of the region; a config that names no server means those of --clm and
--maestro. They call other servers that a config names with the config's own settings.`, m)
	cmd.Use = "serve"
	cmd.Example = `  atoll adapter serve --config cl-maestro/config.yaml --task-config cl-maestro/task.yaml --mqtt 127.0.0.1:8883 \
    --clm https://127.0.0.1:8000 --pki https://127.0.0.1:8443 --ca ca.pem --identity identity/`
	m.changed = cmd.Flags().Changed
	m.flags.add(cmd)
	addIdentityFlags(cmd, &m.flags.identity)
	makeIdentityOptional(cmd)
	fl := cmd.Flags()
	fl.StringVar(&m.flags.broker, "mqtt", "", "the region's broker, host:port")
	fl.StringVar(&m.flags.brokerConfig, "message-broker-config-file", "",
		"YAML file about another broker: brokerHost, username, password, caFile, clientCertFile, clientKeyFile and "+
			"so on")
	fl.StringVar(&m.flags.region.clm, "clm", "", "URL of the region's CLM")
	fl.StringVar(&m.flags.region.maestro, "maestro", "", "URL of the region's Maestro")
	fl.StringVar(&m.flags.region.maestroGRPC, "maestro-grpc", "", "gRPC address of the region's Maestro")
	fl.StringVar(&m.flags.kubeconfig, "kubeconfig", "",
		"kubeconfig for configs without a kube_config_path (default: the cluster that the adapter runs in)")
	fl.IntVar(&m.flags.parallel, "parallel", 0,
		"resources at once, of each adapter (default: SUBSCRIBER_PARALLELISM, or 16)")
	addDryRunFlags(session, cmd, func() (*adapter.Config, *adapter.Task, error) {
		pairs, err := m.flags.load(m.changed)
		if err == nil && len(pairs) != 1 {
			err = fmt.Errorf("a dry run executes one adapter, but %d are given", len(pairs))
		}
		if err != nil {
			return nil, nil, err
		}
		return pairs[0].config, pairs[0].task, nil
	})
	return cmd
}

func (m *adapterService) start(ctx context.Context, s *System) error {
	s.identity = m.flags.identity
	if err := s.startTracing(ctx, "atoll-adapter", tracingOff); err != nil {
		return err
	}
	redacted := map[string]any{}
	s.Ops.Handle("GET /config", func(w http.ResponseWriter, _ *http.Request) error {
		return rest.WriteJSON(w, http.StatusOK, redacted)
	})
	pairs, err := m.flags.load(m.changed)
	if err != nil {
		return err
	}
	for _, pair := range pairs {
		redacted[string(pair.config.Adapter.Name)] = pair.config.Redacted()
	}
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	if err := m.flags.run(s, p, pairs); err != nil {
		return err
	}
	return p.wait()
}

// add gives a command the flags that name the files, and the flags that override settings in them.
func (f *adapterFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.StringArrayVarP(&f.configs, "config", "c", nil,
		"an adapter's config; may be repeated (default: HYPERFLEET_ADAPTER_CONFIG)")
	fl.StringArrayVarP(&f.tasks, "task-config", "t", nil,
		"the task config of the adapter, one for each --config in the same order (default: HYPERFLEET_TASK_CONFIG)")
	fl.StringVar(&f.dir, "dir", "", "directory with one directory for each adapter")
	fl.StringSliceVar(&f.bundled, "bundled", nil,
		"an adapter that is part of this program, such as hosted-cluster; an adapter of the same name in --dir replaces it")
	f.settings = map[string]*string{}
	for path, name := range settingFlags() {
		value := new(string)
		f.settings[path] = value
		if fl.Lookup(name) == nil { // --log-level is every service's
			fl.StringVar(value, name, "", "overrides "+path)
		}
	}
}

// settingFlags returns the flags of hyperfleet-adapter by the path of the setting that they
// override.
func settingFlags() map[string]string {
	flags := map[string]string{"debug_config": "debug-config", "log.level": "log-level", "log.format": "log-format",
		"log.output": "log-output", "clients.hyperfleet_api.retry_attempts": "hyperfleet-api-retry"}
	for client, keys := range map[string]string{
		"clients.maestro": "grpc_server_address http_server_address source_id client_id auth.type " +
			"auth.tls_config.ca_file auth.tls_config.cert_file " +
			"auth.tls_config.key_file auth.tls_config.http_ca_file timeout server_healthiness_timeout retry_attempts " +
			"keepalive.time keepalive.timeout insecure",
		"clients.hyperfleet_api": "base_url version timeout retry_backoff base_delay max_delay",
		"clients.broker":         "subscription_id topic",
		"clients.kubernetes":     "api_version kube_config_path qps burst",
	} {
		for setting := range strings.FieldsSeq(keys) {
			name := strings.TrimPrefix(client, "clients.") + "." + strings.Replace(setting, "auth.tls_config.", "", 1)
			flags[client+"."+setting] = strings.NewReplacer(".", "-", "_", "-").Replace(name)
		}
	}
	return flags
}

// adapterPair is the config and the task config of one adapter.
type adapterPair struct {
	config *adapter.Config
	task   *adapter.Task
}

// load reads the files of all adapters. changed reports which flags were given.
func (f *adapterFlags) load(changed func(string) bool) ([]adapterPair, error) {
	configs, tasks, err := f.filePaths()
	if err != nil {
		return nil, err
	}
	pairs := make([]adapterPair, len(configs))
	names := map[string]bool{}
	for i := range configs {
		if pairs[i].config, err = f.loadConfig(configs[i], changed); err != nil {
			return nil, err
		}
		if pairs[i].task, err = adapter.LoadTask(tasks[i]); err != nil {
			return nil, err
		}
		name := string(pairs[i].config.Adapter.Name)
		if names[name] {
			return nil,
				fmt.Errorf(
					"%s: there is another adapter named %s, and CLM could not distinguish their reports; rename one",
					configs[i], name)
		}
		names[name] = true
	}
	for _, name := range f.bundled {
		if names[name] {
			continue
		}
		pair, err := f.loadBundled(name, changed)
		if err != nil {
			return nil, err
		}
		pairs = append(pairs, pair)
	}
	return pairs, nil
}

// loadBundled reads one of the adapters that this program contains.
func (f *adapterFlags) loadBundled(name string, changed func(string) bool) (pair adapterPair, err error) {
	read := adapters.Reader(name)
	config, err := read("config.yaml")
	if err != nil {
		return pair, fmt.Errorf("--bundled %s: there is no such adapter: %w", name, err)
	}
	if pair.config, err = adapter.ParseConfig(path.Join("adapters", name, "config.yaml"), config,
		os.Getenv); err != nil {
		return pair, err
	}
	if err := f.overrideSettings(pair.config, changed); err != nil {
		return pair, err
	}
	task, err := read("task.yaml")
	if err != nil {
		return pair, err
	}
	pair.task, err = adapter.ParseTask(path.Join("adapters", name, "task.yaml"), task, read)
	return pair, err
}

// filePaths returns the paths of the configs and, at the same indexes, of the task configs.
func (f *adapterFlags) filePaths() (configs, tasks []string, err error) {
	configs, tasks = f.configs, f.tasks
	if f.dir != "" {
		entries, err := os.ReadDir(f.dir)
		if err != nil {
			return nil, nil, fmt.Errorf("--dir: %w", err)
		}
		for _, e := range entries {
			config := filepath.Join(f.dir, e.Name(), "config.yaml")
			if _, err := os.Stat(config); err == nil {
				configs, tasks = append(configs, config), append(tasks, filepath.Join(f.dir, e.Name(), "task.yaml"))
			}
		}
	}
	if env := os.Getenv("HYPERFLEET_ADAPTER_CONFIG"); len(configs) == 0 && env != "" {
		configs = []string{env}
	}
	if env := os.Getenv("HYPERFLEET_TASK_CONFIG"); len(tasks) == 0 && env != "" {
		tasks = []string{env}
	}
	switch {
	case len(configs) == 0 && len(f.bundled) > 0:
	case len(configs) == 0:
		return nil, nil, errors.New("no adapter: give --config and --task-config, --dir or --bundled")
	case len(configs) != len(tasks):
		return nil, nil, fmt.Errorf("%d configs and %d task configs: each adapter needs one of both", len(configs),
			len(tasks))
	}
	return configs, tasks, nil
}

// loadConfig reads one config, and overrides its settings by the flags that were given.
func (f *adapterFlags) loadConfig(file string, changed func(string) bool) (*adapter.Config, error) {
	config, err := adapter.LoadConfig(file, os.Getenv)
	if err != nil {
		return nil, err
	}
	return config, f.overrideSettings(config, changed)
}

// overrideSettings overrides settings of a config by the flags that were given.
func (f *adapterFlags) overrideSettings(config *adapter.Config, changed func(string) bool) error {
	for path, name := range settingFlags() {
		if value := *f.settings[path]; changed(name) && value != "" {
			if err := config.Set(path, value); err != nil {
				return fmt.Errorf("--%s: %w", name, err)
			}
		}
	}
	return nil
}

// brokerOptions returns the options of a connection to the region's broker, or to the broker of a
// file.
func brokerOptions(broker, file string, identity *pki.Identity) (bus.ClientOptions, error) {
	switch {
	case file != "" && broker != "":
		return bus.ClientOptions{}, errors.New("--mqtt and --message-broker-config-file both name a broker; give one")
	case file != "":
		config, err := bus.ReadConfig(file)
		if err != nil {
			return bus.ClientOptions{}, fmt.Errorf("--message-broker-config-file: %w", err)
		}
		o := config.Options()
		if config.Keys.Empty() && identity != nil {
			o.TLS = identity.ClientTLS("broker")
		}
		return o, nil
	case broker == "":
		return bus.ClientOptions{}, errors.New("--mqtt is needed, the broker, or --message-broker-config-file")
	case identity == nil:
		return bus.ClientOptions{}, errNoIdentity
	}
	return bus.ClientOptions{Addr: broker, TLS: identity.ClientTLS("broker")}, nil
}

func adapterConfigDump(session *terminal.Session) *cobra.Command {
	f := &adapterFlags{}
	cmd := &cobra.Command{
		Use: "config-dump", Short: "Print an adapter's config as it is used", Args: cobra.NoArgs,
		Long: `Prints the config after variables and flags, as JSON. Names of files with keys or
tokens, and values of headers, are left out.`,
	}
	cmd.RunE = func(*cobra.Command, []string) error {
		if env := os.Getenv("HYPERFLEET_ADAPTER_CONFIG"); len(f.configs) == 0 && f.dir == "" && env != "" {
			f.configs = []string{env}
		}
		for len(f.tasks) < len(f.configs) {
			f.tasks = append(f.tasks, "") // they are not read
		}
		files, _, err := f.filePaths()
		if err != nil {
			return err
		}
		var configs []*adapter.Config
		for _, file := range files {
			config, err := f.loadConfig(file, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			configs = append(configs, config)
		}
		for _, name := range f.bundled {
			if slices.ContainsFunc(configs, func(c *adapter.Config) bool { return string(c.Adapter.Name) == name }) {
				continue
			}
			pair, err := f.loadBundled(name, cmd.Flags().Changed)
			if err != nil {
				return err
			}
			configs = append(configs, pair.config)
		}
		for _, config := range configs {
			text, err := json.MarshalIndent(config.Redacted(), "", "  ")
			if err != nil {
				return err
			}
			session.Printf("%s\n", text)
		}
		return nil
	}
	f.add(cmd)
	return cmd
}

func adapterVersion(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			session.Printf("atoll adapter %s\n", terminal.Version)
			return nil
		},
	}
}
