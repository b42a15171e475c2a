package services

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/cli/terminal"
	"atoll.dev/clm"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
)

// clmFlags are the flags of the processes that use CLM's database: those of hyperfleet-api's
// configuration, and Atoll's own.
type clmFlags struct {
	cmd      *cobra.Command
	config   string // file
	database *terminal.Database
	http     string // address
	insecure string // address of the plain listener
	identity identityFlags
	sentinel sentinelFlags
	fleet    fleetFlags
	releases []string // that clusters can have
	replica  replicaFlags

	regionIdentity *pki.Identity // set by listen; nil without --identity
}

// add gives a command all flags.
func (f *clmFlags) add(cmd *cobra.Command) {
	f.addDatabase(cmd, "config")
	f.addSettings(cmd, "")
}

// addDatabase gives a command the flags of the database and of its entities. config is the name of
// the flag with the file.
func (f *clmFlags) addDatabase(cmd *cobra.Command, config string) {
	f.cmd = cmd
	cmd.Flags().StringVar(&f.config, config, "",
		"YAML file of the configuration, as hyperfleet-api reads it (default: HYPERFLEET_CONFIG, or none)")
	f.database = terminal.AddDatabaseFlags(cmd, "dsn",
		"PostgreSQL database of CLM alone, instead of --db-host and so on")
	f.addSettings(cmd, "database.")
}

// addSettings gives a command the flags of the keys that begin with prefix.
func (f *clmFlags) addSettings(cmd *cobra.Command, prefix string) {
	for _, s := range clm.Settings() {
		switch {
		case !strings.HasPrefix(s.Key, prefix):
		case s.Flag == "" || cmd.Flags().Lookup(s.Flag) != nil: // services have --log-level
		case s.Bool:
			cmd.Flags().Bool(s.Flag, false, s.Usage)
		default:
			cmd.Flags().String(s.Flag, "", s.Usage)
		}
	}
}

// load reads the configuration and makes the log that it sets.
func (f *clmFlags) load(s *System) (*clm.Config, error) {
	config, err := clm.LoadConfig(cmp.Or(f.config, os.Getenv("HYPERFLEET_CONFIG")), os.Getenv, func(name string) (
		string, bool) {
		flag := f.cmd.Flags().Lookup(name)
		if flag == nil || !flag.Changed {
			return "", false
		}
		return flag.Value.String(), true
	})
	if err != nil {
		return nil, err
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(config.Logging.Level)); err != nil {
		return nil, fmt.Errorf("logging.level: %w", err)
	}
	var out io.Writer = os.Stderr
	if config.Logging.Output == "stdout" {
		out = os.Stdout
	}
	var handler slog.Handler = slog.NewJSONHandler(out, &slog.HandlerOptions{Level: level})
	if config.Logging.Format == "text" {
		handler = slog.NewTextHandler(out, &slog.HandlerOptions{Level: level})
	}
	s.Log = slog.New(handler).With("service", s.Name)
	return config, nil
}

// serveOps serves health and metrics on the ports that the configuration names for them. Each port
// has both.
func (f *clmFlags) serveOps(s *System, p *parts, config *clm.Config) error {
	for name, listener := range map[string]struct {
		clm.Endpoint
		port int
	}{"health": {config.Health.Endpoint, 8080}, "metrics": {config.Metrics.Endpoint, 9090}} {
		if !listener.Given() && (config.File == "" || s.opsAddr != "") {
			continue
		}
		var server *tls.Config
		if listener.TLS.Enabled {
			var err error
			if server, err = fileTLS(listener.TLS); err != nil {
				return fmt.Errorf("%s.tls: %w", name, err)
			}
		}
		l, err := listen(listener.Address(listener.port))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		p.serveOps(func(w *rest.Server) { w.Name, w.TLS = "clm "+name, server }, s, l)
	}
	return nil
}

// fileTLS returns the TLS configuration of a server whose certificate is in files. The files may be
// replaced while it runs.
func fileTLS(files clm.TLSFiles) (*tls.Config, error) {
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
		return &cert, err
	}
	if _, err := load(nil); err != nil {
		return nil, err
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: load}, nil
}
