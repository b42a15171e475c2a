package clm

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// DefaultEntities is the list of kinds that a region has without configuration, as YAML.
//
//go:embed entities.yaml
var DefaultEntities []byte

// Config is hyperfleet-api's configuration. Its tags are the keys of the YAML file.
// Environment variables and flags may override the keys in Settings.
type Config struct {
	Server struct {
		Hostname string // accepted, of no effect
		Host     string // default localhost
		Port     int    // default 8000
		// specs must match its schemas; default: any object is a spec
		OpenAPISchemaPath string `yaml:"openapi_schema_path"`
		// MaxResourceBytes is Atoll's own: the size limit of a request that creates or changes a resource;
		// default 4 MiB.
		MaxResourceBytes int `yaml:"max_resource_bytes"`
		// WatchesPerCaller is Atoll's own: the limit of watches that a caller has open at the same time on one
		// server; default 100, 0 is no limit.
		WatchesPerCaller *int `yaml:"watches_per_caller"`
		// Quotas are Atoll's own: the limits of an account for which operators have set no others; default
		// DefaultQuotas. They count where server.tenant has a dimension with the key account.
		Quotas struct {
			Clusters  *int
			NodePools *int `yaml:"node_pools"`
			Nodes     *int
			Works     *int
		}
		Timeouts struct {
			Read  time.Duration // of a request; default 60s
			Write time.Duration // of an answer that is no watch; default 60s
		}
		TLS TLSFiles
		JWT struct {
			Enabled *bool // default: if there are configs
			Configs []Issuer
		}
		Tenant Tenancy
	}
	Database struct {
		Dialect  string // postgres
		Host     string // default localhost
		Port     int    // default 5432
		Name     string // default hyperfleet
		Username string // default hyperfleet
		Password string
		// Files with the values of the keys above, which override them.
		HostFile     string `yaml:"host_file"`
		PortFile     string `yaml:"port_file"`
		NameFile     string `yaml:"name_file"`
		UsernameFile string `yaml:"username_file"`
		PasswordFile string `yaml:"password_file"`

		// HistoryMaxAge is Atoll's own: CLM deletes older records of changes; default 2160h (90 days).
		HistoryMaxAge time.Duration `yaml:"history_max_age"`

		Debug bool // accepted, of no effect
		SSL   struct {
			Mode         string // disable (default), require, verify-ca, verify-full
			RootCertFile string `yaml:"root_cert_file"`
		}
		Pool struct {
			MaxConnections int `yaml:"max_connections"` // default 16
			// this and the others: accepted, of no effect
			MaxIdleConnections int           `yaml:"max_idle_connections"`
			ConnMaxLifetime    time.Duration `yaml:"conn_max_lifetime"`
			ConnMaxIdleTime    time.Duration `yaml:"conn_max_idle_time"`
			RequestTimeout     time.Duration `yaml:"request_timeout"`
			ConnRetryAttempts  int           `yaml:"conn_retry_attempts"`
			ConnRetryInterval  time.Duration `yaml:"conn_retry_interval"`
		}
	}
	Logging struct {
		Level   string // debug, info (default), warn, error
		Format  string // json (default), text
		Output  string // stderr (default), stdout
		OTel    Switch
		Masking struct { // accepted, of no effect: neither headers nor bodies are logged
			Enabled bool
			Headers []string
			Fields  []string
		}
	}
	Metrics struct {
		Endpoint `yaml:",inline"` // default localhost:9090
		// accepted, of no effect
		LabelMetricsInclusionDuration time.Duration `yaml:"label_metrics_inclusion_duration"`
		ReconciliationStuckThreshold  time.Duration `yaml:"reconciliation_stuck_threshold"` // default 10m
	}
	Health struct {
		Endpoint        `yaml:",inline"` // default localhost:8080
		ShutdownTimeout time.Duration    `yaml:"shutdown_timeout"` // for running requests; default 5s
		DBPingTimeout   time.Duration    `yaml:"db_ping_timeout"`  // accepted, of no effect: 2s
	}
	Tracing  Switch
	Entities []Entity

	File        string `yaml:"-"` // the file that was read, "" for none
	ServerGiven bool   `yaml:"-"` // a file, or a setting of host or port, asks for the API's port

	registry *Registry
}

// Switch is a feature that is on or off; Enabled is nil if it is not configured.
type Switch struct {
	Enabled      *bool
	ServiceName  string  `yaml:"service_name"`
	SamplingRate float64 `yaml:"sampling_rate"` // accepted, of no effect: OTEL_TRACES_SAMPLER
}

// Endpoint is the address of the health or metrics server.
type Endpoint struct {
	Host string
	Port int
	TLS  TLSFiles
}

// TLSFiles are a server's certificate and key.
type TLSFiles struct {
	Enabled  bool
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
}

// Given reports whether the configuration has a host or a port of the endpoint.
func (e Endpoint) Given() bool { return e.Host != "" || e.Port != 0 }

// LoadConfig reads a configuration file, "" being none, and then applies environment
// variables and flags, which override it: getenv is os.Getenv, and flag returns the value
// of a flag of Settings. The error lists all mistakes in the file, with their lines.
func LoadConfig(file string, getenv func(string) string, flag func(name string) (value string, set bool)) (*Config,
	error) {
	c := &Config{File: file}
	entities, origin := DefaultEntities, "the default entities"
	if file != "" {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if err := strictyaml.Decode(file, data, c, strictyaml.Options{}); err != nil {
			return nil, fmt.Errorf("configuration: %w", err)
		}
		if c.Entities != nil {
			entities, origin = data, file
		}
	}
	if c.Entities == nil {
		if err := strictyaml.Decode(origin, entities, c, strictyaml.Options{}); err != nil {
			return nil, err
		}
	}
	if err := c.override(getenv, flag); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	c.ServerGiven = file != "" || c.Server.Host != "" || c.Server.Port != 0
	c.complete()
	var err error
	if c.registry, err = registryOf(origin, entities, c.Entities); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return c, nil
}

// Registry returns the registry of the configured entities.
func (c *Config) Registry() *Registry { return c.registry }

// ParseRegistry parses a YAML document whose only key is entities.
func ParseRegistry(document []byte) (*Registry, error) {
	var c struct{ Entities []Entity }
	if err := strictyaml.Decode("entities", document, &c, strictyaml.Options{}); err != nil {
		return nil, err
	}
	return registryOf("entities", document, c.Entities)
}

// registryOf makes a registry of entities that were read from a document. Its errors name
// the line in the document.
func registryOf(file string, document []byte, entities []Entity) (*Registry, error) {
	r, err := NewRegistry(entities)
	if e, ok := errors.AsType[*EntityError](err); ok {
		return nil, fmt.Errorf("%s:%d: %w", file, lineOfEntity(document, e.Index), err)
	}
	return r, err
}

// lineOfEntity returns the line at which the entity of an index begins, 0 if unknown.
func lineOfEntity(document []byte, index int) int {
	var file struct{ Entities []yaml.Node }
	if yaml.Unmarshal(document, &file) != nil || index >= len(file.Entities) {
		return 0
	}
	return file.Entities[index].Line
}
