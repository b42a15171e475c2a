package clm

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"atoll.dev/internal/strictyaml"
)

// Setting is one key of the configuration that a variable or a flag may set,
// too.
type Setting struct {
	Key   string // such as server.port
	Flag  string // without dashes, "" for none
	Usage string
	Bool  bool // the flag needs no value

	file  bool // the variable NAME_FILE names a file with the value
	value func(*Config) any
}

// Variable returns the name of the environment variable.
func (s Setting) Variable() string {
	return "HYPERFLEET_" + strings.ToUpper(strings.NewReplacer(".", "_", "-", "_").Replace(s.Key))
}

// settings are the keys that variables and flags may set. The flags are hyperfleet-api's.
var settings = []Setting{
	{Key: "server.hostname", Flag: "server-hostname", Usage: "accepted, of no effect", value: func(c *Config) any {
		return &c.Server.Hostname
	}},
	{Key: "server.host", Flag: "server-host", Usage: "host or address that the API binds to (default localhost)",
		value: func(c *Config) any { return &c.Server.Host }},
	{Key: "server.port", Flag: "server-port", Usage: "port of the API (default 8000)", value: func(c *Config) any {
		return &c.Server.Port
	}},
	{Key: "server.openapi_schema_path", Flag: "server-openapi-schema-path",
		Usage: "OpenAPI file of the provider, whose schemas specs must match", value: func(c *Config) any {
			return &c.Server.OpenAPISchemaPath
		}},
	{Key: "server.max_resource_bytes", Flag: "server-max-resource-bytes",
		Usage: "most bytes of a request that creates or changes a resource (default 4194304)", value: func(
			c *Config) any {
			return &c.Server.MaxResourceBytes
		}},
	{Key: "server.watches_per_caller", Flag: "server-watches-per-caller",
		Usage: "watches that a caller may have open on one server (default 100; 0: any number)",
		value: func(c *Config) any { return &c.Server.WatchesPerCaller }},
	{Key: "server.quotas.clusters", Flag: "server-quota-clusters",
		Usage: "clusters that an account can have, if it has no quota of its own (default 1000)",
		value: func(c *Config) any { return &c.Server.Quotas.Clusters }},
	{Key: "server.quotas.node_pools", Flag: "server-quota-node-pools",
		Usage: "node pools that an account can have, if it has no quota of its own (default 5000)",
		value: func(c *Config) any { return &c.Server.Quotas.NodePools }},
	{Key: "server.quotas.nodes", Flag: "server-quota-nodes",
		Usage: "nodes that the node pools of an account can have, if it has no quota of its own (default 50000)",
		value: func(c *Config) any { return &c.Server.Quotas.Nodes }},
	{Key: "server.quotas.works", Flag: "server-quota-works",
		Usage: "ManifestWorks that adapters make for an account at most, if it has no quota of its own (default 20000)",
		value: func(c *Config) any { return &c.Server.Quotas.Works }},
	{Key: "server.timeouts.read", Flag: "server-read-timeout", Usage: "time limit for reading a request (default 1m)",
		value: func(c *Config) any { return &c.Server.Timeouts.Read }},
	{Key: "server.timeouts.write", Flag: "server-write-timeout",
		Usage: "time limit for writing an answer that is no watch (default 1m)", value: func(c *Config) any {
			return &c.Server.Timeouts.Write
		}},
	{Key: "server.tls.enabled", Flag: "server-https-enabled", Usage: "TLS with a certificate that is not the region's",
		Bool: true, value: func(c *Config) any { return &c.Server.TLS.Enabled }},
	{Key: "server.tls.cert_file", Flag: "server-https-cert-file", Usage: "the certificate for --server-https-enabled",
		value: func(c *Config) any { return &c.Server.TLS.CertFile }},
	{Key: "server.tls.key_file", Flag: "server-https-key-file",
		Usage: "key of that certificate", value: func(c *Config) any {
			return &c.Server.TLS.KeyFile
		}},
	{Key: "server.jwt.enabled", Flag: "server-jwt-enabled",
		Usage: "callers without certificate need a bearer token (default: if server.jwt.configs names " +
			"issuers)", Bool: true, value: func(c *Config) any { return &c.Server.JWT.Enabled }},
	{Key: "server.tenant.enabled", Flag: "server-tenant-enabled",
		Usage: "headers that a gateway sets, or claims of tokens, name a resource's owner", Bool: true, value: func(
			c *Config) any {
			return &c.Server.Tenant.Enabled
		}},
	{Key: "server.tenant.system_header", Flag: "server-tenant-system-header",
		Usage: "the header that marks the caller as the system", value: func(c *Config) any {
			return &c.Server.Tenant.SystemHeader
		}},

	{Key: "database.dialect", Flag: "db-dialect", Usage: "postgres", value: func(c *Config) any {
		return &c.Database.Dialect
	}},
	{Key: "database.host", Flag: "db-host", Usage: "host of PostgreSQL, or its socket's directory (default localhost)",
		file: true, value: func(c *Config) any { return &c.Database.Host }},
	{Key: "database.port", Flag: "db-port",
		Usage: "port of PostgreSQL (default 5432)", file: true, value: func(c *Config) any {
			return &c.Database.Port
		}},
	{Key: "database.name", Flag: "db-name", Usage: "name of the database (default hyperfleet)", file: true,
		value: func(c *Config) any { return &c.Database.Name }},
	{Key: "database.username", Flag: "db-username", Usage: "role of PostgreSQL (default hyperfleet)", file: true,
		value: func(c *Config) any { return &c.Database.Username }},
	// no flag: process lists show flags
	{Key: "database.password", Usage: "its password", file: true, value: func(c *Config) any {
		return &c.Database.Password
	}},
	{Key: "database.history_max_age", Usage: "how long records of changes are kept (default 2160h)",
		value: func(c *Config) any { return &c.Database.HistoryMaxAge }},
	{Key: "database.debug", Flag: "db-debug", Usage: "accepted, of no effect", Bool: true, value: func(c *Config) any {
		return &c.Database.Debug
	}},
	{Key: "database.ssl.mode", Flag: "db-ssl-mode",
		Usage: "disable, require, verify-ca or verify-full (default disable)", value: func(c *Config) any {
			return &c.Database.SSL.Mode
		}},
	{Key: "database.ssl.root_cert_file", Flag: "db-root-cert-file", Usage: "CA of PostgreSQL's certificate",
		value: func(c *Config) any { return &c.Database.SSL.RootCertFile }},
	{Key: "database.pool.max_connections", Flag: "db-max-open-connections",
		Usage: "most connections to the database (default 16, and a few for the feed)", value: func(c *Config) any {
			return &c.Database.Pool.MaxConnections
		}},
	{Key: "database.pool.max_idle_connections", value: func(c *Config) any {
		return &c.Database.Pool.MaxIdleConnections
	}},
	{Key: "database.pool.conn_max_lifetime", value: func(c *Config) any { return &c.Database.Pool.ConnMaxLifetime }},
	{Key: "database.pool.conn_max_idle_time", value: func(c *Config) any { return &c.Database.Pool.ConnMaxIdleTime }},
	{Key: "database.pool.request_timeout", value: func(c *Config) any { return &c.Database.Pool.RequestTimeout }},
	{Key: "database.pool.conn_retry_attempts", value: func(c *Config) any {
		return &c.Database.Pool.ConnRetryAttempts
	}},
	{Key: "database.pool.conn_retry_interval", value: func(c *Config) any {
		return &c.Database.Pool.ConnRetryInterval
	}},

	{Key: "logging.level", Flag: "log-level", value: func(c *Config) any { return &c.Logging.Level }},
	{Key: "logging.format", Flag: "log-format", Usage: "json or text (default json)", value: func(c *Config) any {
		return &c.Logging.Format
	}},
	{Key: "logging.output", Flag: "log-output", Usage: "stderr or stdout (default stderr)", value: func(c *Config) any {
		return &c.Logging.Output
	}},
	{Key: "logging.otel.enabled", value: func(c *Config) any { return &c.Logging.OTel.Enabled }},
	{Key: "logging.masking.enabled", Flag: "log-masking-enabled",
		Usage: "accepted, of no effect: neither headers nor bodies are logged", Bool: true, value: func(c *Config) any {
			return &c.Logging.Masking.Enabled
		}},
	{Key: "logging.masking.headers", value: func(c *Config) any { return &c.Logging.Masking.Headers }},
	{Key: "logging.masking.fields", value: func(c *Config) any { return &c.Logging.Masking.Fields }},

	{Key: "metrics.host", Flag: "metrics-host",
		Usage: "host or address for /metrics alone (default: with --config localhost, otherwise --ops " +
			"serves them)", value: func(c *Config) any { return &c.Metrics.Host }},
	{Key: "metrics.port", Flag: "metrics-port", Usage: "port of /metrics (default 9090)", value: func(c *Config) any {
		return &c.Metrics.Port
	}},
	{Key: "metrics.tls.enabled", Flag: "metrics-tls-enabled", Usage: "TLS for metrics", Bool: true,
		value: func(c *Config) any { return &c.Metrics.TLS.Enabled }},
	{Key: "metrics.tls.cert_file", Flag: "metrics-tls-cert-file",
		Usage: "certificate for metrics", value: func(c *Config) any {
			return &c.Metrics.TLS.CertFile
		}},
	{Key: "metrics.tls.key_file", Flag: "metrics-tls-key-file",
		Usage: "key of that certificate", value: func(c *Config) any {
			return &c.Metrics.TLS.KeyFile
		}},
	{Key: "metrics.label_metrics_inclusion_duration", Flag: "metrics-label-metrics-inclusion-duration",
		Usage: "accepted, of no effect", value: func(c *Config) any {
			return &c.Metrics.LabelMetricsInclusionDuration
		}},
	{Key: "metrics.reconciliation_stuck_threshold", Flag: "metrics-reconciliation-stuck-threshold",
		Usage: "time after which a pending resource counts as stuck (default 10m)", value: func(c *Config) any {
			return &c.Metrics.ReconciliationStuckThreshold
		}},

	{Key: "health.host", Flag: "health-host",
		Usage: "host or address for /healthz and /readyz alone (default: with --config localhost, otherwise --ops " +
			"serves them)", value: func(c *Config) any { return &c.Health.Host }},
	{Key: "health.port", Flag: "health-port",
		Usage: "port of /healthz and /readyz (default 8080)", value: func(c *Config) any {
			return &c.Health.Port
		}},
	{Key: "health.tls.enabled", Flag: "health-tls-enabled", Usage: "TLS for health", Bool: true,
		value: func(c *Config) any { return &c.Health.TLS.Enabled }},
	{Key: "health.tls.cert_file", Flag: "health-tls-cert-file",
		Usage: "certificate for health", value: func(c *Config) any {
			return &c.Health.TLS.CertFile
		}},
	{Key: "health.tls.key_file", Flag: "health-tls-key-file",
		Usage: "key of that certificate", value: func(c *Config) any {
			return &c.Health.TLS.KeyFile
		}},
	{Key: "health.shutdown_timeout", Flag: "health-shutdown-timeout",
		Usage: "time for running requests when the server stops (default 5s)", value: func(c *Config) any {
			return &c.Health.ShutdownTimeout
		}},
	{Key: "health.db_ping_timeout", Flag: "health-db-ping-timeout", Usage: "accepted, of no effect: 2s",
		value: func(c *Config) any { return &c.Health.DBPingTimeout }},

	{Key: "tracing.enabled", value: func(c *Config) any { return &c.Tracing.Enabled }},
}

// Settings returns the settings that variables and flags may set.
func Settings() []Setting { return slices.Clone(settings) }

// override applies environment variables, which override the file, and flags, which
// override both.
func (c *Config) override(getenv func(string) string, flag func(name string) (value string, set bool)) error {
	for _, f := range []struct{ file, key string }{
		{c.Database.HostFile, "database.host"}, {c.Database.PortFile, "database.port"},
		{c.Database.NameFile, "database.name"},
		{c.Database.UsernameFile, "database.username"}, {c.Database.PasswordFile, "database.password"},
	} {
		if f.file == "" {
			continue
		}
		if err := c.setFrom(f.file, f.key); err != nil {
			return err
		}
	}
	for _, s := range settings {
		name := s.Variable()
		if file := getenv(name + "_FILE"); s.file && file != "" {
			if err := c.setFrom(file, s.Key); err != nil {
				return fmt.Errorf("%s_FILE: %w", name, err)
			}
		}
		if text := getenv(name); text != "" {
			if err := strictyaml.Set(s.value(c), text); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		if s.Flag == "" {
			continue
		}
		if text, given := flag(s.Flag); given {
			if err := strictyaml.Set(s.value(c), text); err != nil {
				return fmt.Errorf("--%s: %w", s.Flag, err)
			}
		}
	}
	return nil
}

// setFrom sets a key to the content of a file. Errors do not show the content: it may be a
// secret.
func (c *Config) setFrom(file, key string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	for _, s := range settings {
		if s.Key == key && strictyaml.Set(s.value(c), strings.TrimSpace(string(data))) != nil {
			return fmt.Errorf("%s: what %s holds is no value for it", key, file)
		}
	}
	return nil
}
