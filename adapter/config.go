package adapter

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/strictyaml"
)

// Config is an AdapterConfig: the adapter's name, and its connections (docs/configuration.md of
// hyperfleet-adapter).
type Config struct {
	File    string      // where it was read from
	Adapter AdapterInfo `yaml:"adapter"`
	// DebugConfig makes the adapter log its configuration at the start.
	DebugConfig bool    `yaml:"debug_config"`
	Log         Log     `yaml:"log"`
	Clients     Clients `yaml:"clients"`
}

// AdapterInfo names an adapter. Version has the major and minor version of the binary that the
// config is for.
type AdapterInfo struct {
	Name    cluster.Adapter `yaml:"name"`
	Version string          `yaml:"version"`
}

// Log configures the log.
type Log struct {
	Level  string `yaml:"level"`  // debug, info (default), warn, error
	Format string `yaml:"format"` // json (default), text
	Output string `yaml:"output"` // stdout (default), stderr
}

// Clients configure the adapter's connections. With Maestro set, objects are applied through
// Maestro, otherwise by the Kubernetes API.
type Clients struct {
	API        APIConfig        `yaml:"hyperfleet_api"`
	Broker     BrokerConfig     `yaml:"broker"`
	Kubernetes KubernetesConfig `yaml:"kubernetes"`
	Maestro    *MaestroConfig   `yaml:"maestro"`
}

// APIConfig configures calls of CLM; durations and counts are defaults for calls that set none.
type APIConfig struct {
	BaseURL        string            `yaml:"base_url"`
	Version        string            `yaml:"version"`        // v1
	Timeout        time.Duration     `yaml:"timeout"`        // 10s, of one attempt
	RetryAttempts  int               `yaml:"retry_attempts"` // 3
	RetryBackoff   string            `yaml:"retry_backoff"`  // exponential (default), linear, constant
	BaseDelay      time.Duration     `yaml:"base_delay"`     // 1s
	MaxDelay       time.Duration     `yaml:"max_delay"`      // 30s
	DefaultHeaders map[string]string `yaml:"default_headers"`
	Auth           *APIAuth          `yaml:"auth"`
}

// APIAuth adds a bearer token from a file, which is read again when the token is older than the
// TTL.
type APIAuth struct {
	TokenPath     string        `yaml:"token_path"`
	TokenCacheTTL time.Duration `yaml:"token_cache_ttl"` // 30s
}

// BrokerConfig selects the events. The broker distributes the events among adapters with the same
// SubscriptionID.
type BrokerConfig struct {
	SubscriptionID string `yaml:"subscription_id"`
	Topic          string `yaml:"topic"`
}

// KubernetesConfig configures the Kubernetes API. Without a path it is that of the cluster in which
// the adapter runs.
type KubernetesConfig struct {
	APIVersion     string  `yaml:"api_version"`
	KubeConfigPath string  `yaml:"kube_config_path"`
	QPS            float64 `yaml:"qps"`   // 100
	Burst          int     `yaml:"burst"` // 200
}

// MaestroConfig configures the connection to Maestro.
type MaestroConfig struct {
	GRPCServerAddress        string        `yaml:"grpc_server_address"`
	HTTPServerAddress        string        `yaml:"http_server_address"`
	SourceID                 string        `yaml:"source_id"`
	ClientID                 string        `yaml:"client_id"`
	Auth                     MaestroAuth   `yaml:"auth"`
	Timeout                  time.Duration `yaml:"timeout"`                    // 10s
	ServerHealthinessTimeout time.Duration `yaml:"server_healthiness_timeout"` // 20s
	RetryAttempts            int           `yaml:"retry_attempts"`             // 3
	Keepalive                *Keepalive    `yaml:"keepalive"`
	Insecure                 bool          `yaml:"insecure"`
}

// MaestroAuth is tls, with the files, or none.
type MaestroAuth struct {
	Type string     `yaml:"type"`
	TLS  *TLSConfig `yaml:"tls_config"`
}

// TLSConfig names the files of a client's identity. HTTPCAFile, by default
// CAFile, is for the HTTP API.
type TLSConfig struct {
	CAFile     string `yaml:"ca_file"`
	CertFile   string `yaml:"cert_file"`
	KeyFile    string `yaml:"key_file"`
	HTTPCAFile string `yaml:"http_ca_file"`
}

// Keepalive configures gRPC's keepalive.
type Keepalive struct {
	Time    time.Duration `yaml:"time"`
	Timeout time.Duration `yaml:"timeout"`
}

// overrides are the variables that override the file, each with the path of its setting.
func overrides() [][2]string {
	return [][2]string{
		{"debug_config", "HYPERFLEET_DEBUG_CONFIG"},
		{"log.level", "LOG_LEVEL"},
		{"log.format", "LOG_FORMAT"},
		{"log.output", "LOG_OUTPUT"},
		{"clients.hyperfleet_api.base_url", "HYPERFLEET_API_BASE_URL"},
		{"clients.hyperfleet_api.version", "HYPERFLEET_API_VERSION"},
		{"clients.hyperfleet_api.timeout", "HYPERFLEET_API_TIMEOUT"},
		{"clients.hyperfleet_api.retry_attempts", "HYPERFLEET_API_RETRY_ATTEMPTS"},
		{"clients.hyperfleet_api.retry_backoff", "HYPERFLEET_API_RETRY_BACKOFF"},
		{"clients.hyperfleet_api.base_delay", "HYPERFLEET_API_BASE_DELAY"},
		{"clients.hyperfleet_api.max_delay", "HYPERFLEET_API_MAX_DELAY"},
		{"clients.broker.subscription_id", "BROKER_SUBSCRIPTION_ID"},
		{"clients.broker.topic", "BROKER_TOPIC"},
		{"clients.broker.subscription_id", "HYPERFLEET_BROKER_SUBSCRIPTION_ID"},
		{"clients.broker.topic", "HYPERFLEET_BROKER_TOPIC"},
		{"clients.kubernetes.api_version", "HYPERFLEET_KUBERNETES_API_VERSION"},
		{"clients.kubernetes.kube_config_path", "HYPERFLEET_KUBERNETES_KUBE_CONFIG_PATH"},
		{"clients.kubernetes.qps", "HYPERFLEET_KUBERNETES_QPS"},
		{"clients.kubernetes.burst", "HYPERFLEET_KUBERNETES_BURST"},
		{"clients.maestro.grpc_server_address", "HYPERFLEET_MAESTRO_GRPC_SERVER_ADDRESS"},
		{"clients.maestro.http_server_address", "HYPERFLEET_MAESTRO_HTTP_SERVER_ADDRESS"},
		{"clients.maestro.source_id", "HYPERFLEET_MAESTRO_SOURCE_ID"},
		{"clients.maestro.client_id", "HYPERFLEET_MAESTRO_CLIENT_ID"},
		{"clients.maestro.auth.type", "HYPERFLEET_MAESTRO_AUTH_TYPE"},
		{"clients.maestro.auth.tls_config.ca_file", "HYPERFLEET_MAESTRO_CA_FILE"},
		{"clients.maestro.auth.tls_config.cert_file", "HYPERFLEET_MAESTRO_CERT_FILE"},
		{"clients.maestro.auth.tls_config.key_file", "HYPERFLEET_MAESTRO_KEY_FILE"},
		{"clients.maestro.auth.tls_config.http_ca_file", "HYPERFLEET_MAESTRO_HTTP_CA_FILE"},
		{"clients.maestro.timeout", "HYPERFLEET_MAESTRO_TIMEOUT"},
		{"clients.maestro.server_healthiness_timeout", "HYPERFLEET_MAESTRO_SERVER_HEALTHINESS_TIMEOUT"},
		{"clients.maestro.retry_attempts", "HYPERFLEET_MAESTRO_RETRY_ATTEMPTS"},
		{"clients.maestro.keepalive.time", "HYPERFLEET_MAESTRO_KEEPALIVE_TIME"},
		{"clients.maestro.keepalive.timeout", "HYPERFLEET_MAESTRO_KEEPALIVE_TIMEOUT"},
		{"clients.maestro.insecure", "HYPERFLEET_MAESTRO_INSECURE"},
	}
}

// LoadConfig reads a config file; see ParseConfig.
func LoadConfig(file string, env func(string) string) (*Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the adapter's config: %w", err)
	}
	return ParseConfig(file, data, env)
}

// ParseConfig reads an AdapterConfig. Non-empty variables of env (os.Getenv) override the file. The
// error is Findings: all unknown keys, duplicates, wrong types and missing values.
func ParseConfig(file string, data []byte, env func(string) string) (*Config, error) {
	c := &Config{File: file}
	findings := decode(file, data, c)
	if env != nil {
		findings = append(findings, c.applyVariables(env)...)
	}
	findings = append(findings, c.check()...)
	c.setDefaults()
	if err := findings.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Config) applyVariables(env func(string) string) (found Findings) {
	for _, o := range overrides() {
		text := env(o[1])
		if text == "" {
			continue
		}
		if err := c.Set(o[0], text); err != nil {
			found = append(found, Finding{File: o[1], Path: o[0], Message: err.Error()})
		}
	}
	return found
}

// Set sets one value by its path in the file, for a flag or a variable.
func (c *Config) Set(path, text string) error {
	v := reflect.ValueOf(c).Elem()
	for key := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		v = fieldOf(v, key)
		if !v.IsValid() {
			return fmt.Errorf("there is no setting %s", path)
		}
	}
	if strings.HasPrefix(path, "log.") && path != "log.output" {
		text = strings.ToLower(text)
	}
	return strictyaml.Set(v.Addr().Interface(), text)
}

func fieldOf(v reflect.Value, key string) reflect.Value {
	if v.Kind() != reflect.Struct {
		return reflect.Value{}
	}
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("yaml") == key {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func (c *Config) check() (found Findings) {
	add := func(path, format string, args ...any) {
		found = append(found, Finding{File: c.File, Path: path, Message: fmt.Sprintf(format, args...)})
	}
	oneOf := func(path, value string, allowed ...string) {
		if value != "" && !slices.Contains(allowed, value) {
			add(path, "%q is none of %s", value, strings.Join(allowed, ", "))
		}
	}
	if c.Adapter.Name == "" {
		add("adapter.name", "it is required")
	}
	oneOf("log.level", c.Log.Level, "debug", "info", "warn", "warning", "error")
	oneOf("log.format", c.Log.Format, "json", "text")
	oneOf("log.output", c.Log.Output, "stdout", "stderr")
	oneOf("clients.hyperfleet_api.retry_backoff", c.Clients.API.RetryBackoff, "exponential", "linear", "constant")
	if a := c.Clients.API.Auth; a != nil {
		switch {
		case a.TokenPath == "":
			add("clients.hyperfleet_api.auth.token_path", "it is required with auth")
		case !filepath.IsAbs(a.TokenPath):
			add("clients.hyperfleet_api.auth.token_path", "%q is no absolute path", a.TokenPath)
		}
		if a.TokenCacheTTL < 0 {
			add("clients.hyperfleet_api.auth.token_cache_ttl", "it is negative")
		}
	}
	if m := c.Clients.Maestro; m != nil {
		oneOf("clients.maestro.auth.type", m.Auth.Type, "tls", "none")
		if m.Auth.Type == "tls" && m.Auth.TLS == nil {
			add("clients.maestro.auth.tls_config", "it is required with the type tls")
		}
	}
	return found
}

func (c *Config) setDefaults() {
	setDefaultText(&c.Log.Level, "info")
	setDefaultText(&c.Log.Format, "json")
	setDefaultText(&c.Log.Output, "stdout")
	a := &c.Clients.API
	setDefaultText(&a.Version, "v1")
	setDefaultText(&a.RetryBackoff, "exponential")
	setDefault(&a.Timeout, 10*time.Second)
	setDefault(&a.RetryAttempts, 3)
	setDefault(&a.BaseDelay, time.Second)
	setDefault(&a.MaxDelay, 30*time.Second)
	if a.Auth != nil {
		setDefault(&a.Auth.TokenCacheTTL, 30*time.Second)
	}
	setDefault(&c.Clients.Kubernetes.QPS, 100)
	setDefault(&c.Clients.Kubernetes.Burst, 200)
	if m := c.Clients.Maestro; m != nil {
		setDefault(&m.Timeout, 10*time.Second)
		setDefault(&m.ServerHealthinessTimeout, maestroHealthiness)
		setDefault(&m.RetryAttempts, maestroAttempts)
	}
}

// Ineffective returns the settings that are set and have no effect, each with the reason.
func (c *Config) Ineffective() (settings []string) {
	type setting struct {
		isSet bool
		text  string
	}
	version := c.Clients.Kubernetes.APIVersion
	all := []setting{
		{c.Adapter.Version != "", "adapter.version: expressions see it; it is not compared with this program's"},
		{version != "" && version != "v1", "clients.kubernetes.api_version: each manifest names its own"},
	}
	if m := c.Clients.Maestro; m != nil {
		all = append(all,
			setting{m.ClientID != "", "clients.maestro.client_id: a call is its source's"},
			setting{m.RetryAttempts != maestroAttempts,
				"clients.maestro.retry_attempts: calls are repeated within timeout, and runs with back-off"},
			setting{m.ServerHealthinessTimeout != maestroHealthiness, "clients.maestro.server_healthiness_timeout: " +
				"works are followed by watches, whose silence ends them after 45s"},
			setting{m.Insecure && m.Auth.Type == "tls",
				"clients.maestro.insecure: auth.type is tls, so servers are verified"})
	}
	for _, s := range all {
		if s.isSet {
			settings = append(settings, s.text)
		}
	}
	return settings
}

// Defaults of settings without effect.
const (
	maestroAttempts    = 3
	maestroHealthiness = 20 * time.Second
)

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func setDefaultText(v *string, d string) { setDefault(v, d) }

// Redacted returns the config by the keys of its file, for logs and /config: without paths of keys
// and tokens, and without the values of headers.
func (c *Config) Redacted() map[string]any {
	return mapOf(reflect.ValueOf(c).Elem(), func(key string) bool {
		switch key {
		case "ca_file", "cert_file", "key_file", "http_ca_file", "token_path":
			return true
		}
		return false
	}).(map[string]any)
}

// forTasks returns the config as task files see it: config.a.b.
func (c *Config) forTasks() map[string]any {
	return mapOf(reflect.ValueOf(c).Elem(), func(string) bool { return false }).(map[string]any)
}

const redacted = "**REDACTED**"

func mapOf(v reflect.Value, secret func(key string) bool) any {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return mapOf(v.Elem(), secret)
	case reflect.Struct:
		m := map[string]any{}
		for i := range v.NumField() {
			key := v.Type().Field(i).Tag.Get("yaml")
			switch {
			case key == "":
			case secret(key) && v.Field(i).String() != "":
				m[key] = redacted
			default:
				m[key] = mapOf(v.Field(i), secret)
			}
		}
		return m
	case reflect.Map: // headers may have credentials
		m := map[string]any{}
		for _, k := range v.MapKeys() {
			m[k.String()] = redacted
		}
		return m
	case reflect.Int:
		return v.Int()
	case reflect.Int64:
		return time.Duration(v.Int()).String()
	}
	return v.Interface()
}
