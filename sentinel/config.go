package sentinel

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Config is the file of one HyperFleet sentinel, for one kind of resources or those of
// the kind that the selector matches. Keys that HyperFleet does not have are errors.
// ReadConfig also reads the values from environment variables.
//
// Sentinel, HyperFleetAPI and PollInterval are read and checked, and have no
// effect: this sentinel reads CLM's store and does not poll. Log and
// TracingEnabled configure a process, which may read several files: they have an
// effect in a process that runs only the sentinel, and there Log of the first
// file. See Ineffective.
type Config struct {
	Sentinel struct {
		Name string `yaml:"name"`
	} `yaml:"sentinel"`
	DebugConfig    bool `yaml:"debug_config"`
	TracingEnabled bool `yaml:"tracing_enabled"`
	Log            struct {
		Level  string `yaml:"level"`
		Format string `yaml:"format"`
		Output string `yaml:"output"`
	} `yaml:"log"`
	Clients struct {
		HyperFleetAPI struct {
			BaseURL  string   `yaml:"base_url"`
			Version  string   `yaml:"version"`
			Timeout  Duration `yaml:"timeout"`
			PageSize int      `yaml:"page_size"`
			Auth     struct {
				TokenPath     string   `yaml:"token_path,omitempty"`
				TokenCacheTTL Duration `yaml:"token_cache_ttl,omitempty"`
			} `yaml:"auth,omitempty"`
		} `yaml:"hyperfleet_api"`
		Broker struct {
			Topic string `yaml:"topic"` // default: the resource type
		} `yaml:"broker"`
	} `yaml:"clients"`
	ResourceType     string    `yaml:"resource_type"` // the plural of the kind
	PollInterval     Duration  `yaml:"poll_interval"`
	ResourceSelector []Label   `yaml:"resource_selector,omitempty"` // a resource must have all of these labels
	MessageDecision  Decision  `yaml:"message_decision"`            // default: defaultDecision
	MessageData      yaml.Node `yaml:"message_data,omitempty"`      // default: see standardData
}

// Label is one label that a resource must have.
type Label struct {
	Label string `yaml:"label"`
	Value string `yaml:"value"`
}

// Decision defines in CEL when a resource needs an event. Rules documents the variables
// and functions of its expressions.
type Decision struct {
	Params []Param `yaml:"params,omitempty"`
	Result string  `yaml:"result"`
}

// Param is an expression with a name, which others may use.
type Param struct {
	Name string `yaml:"name"`
	Expr string `yaml:"expr"`
}

// Duration is a time.Duration that files write as a text such as 30m.
type Duration time.Duration

// UnmarshalYAML reads a duration. One that is not positive is an error.
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	if err := d.UnmarshalText([]byte(n.Value)); err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %s", n.Line, err)}}
	}
	return nil
}

// UnmarshalText reads the value of an environment variable, as UnmarshalYAML that of the file.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil || v <= 0 {
		return fmt.Errorf("%.50q is no duration, such as 5s", text)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML writes a duration as a text.
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// defaultDecision returns the decision that the original's default intends. A
// resource needs an event while it is not reconciled, when no event was sent for
// its generation yet, and when it is reconciled and half an hour has passed
// without an event or a report.
func defaultDecision() Decision {
	return Decision{
		Params: []Param{
			{"is_reconciled", `condition("Reconciled").status == "True"`},
			{"is_awaited", `condition("Reconciled").status == "False"`},
			{"is_new_or_changed", `!is_reconciled && resource.generation > event.generation`},
			{"reconciled_and_stale", `is_reconciled && now - last_activity > duration("30m")`},
		},
		Result: "is_awaited || is_new_or_changed || reconciled_and_stale",
	}
}

// DefaultConfig returns the configuration of a kind that has no file. resourceType is the kind's plural.
func DefaultConfig(resourceType string) Config {
	var c Config
	c.ResourceType = resourceType
	c.fill()
	return c
}

// fill sets the values that are not set to their defaults.
func (c *Config) fill() {
	text := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	text(&c.Sentinel.Name, "hyperfleet-sentinel")
	text(&c.Log.Level, "info")
	text(&c.Log.Format, "json")
	text(&c.Log.Output, "stdout")
	text(&c.Clients.HyperFleetAPI.BaseURL, "http://localhost:8000")
	text(&c.Clients.HyperFleetAPI.Version, "v1")
	text(&c.Clients.Broker.Topic, c.ResourceType)
	if c.Clients.HyperFleetAPI.Timeout == 0 {
		c.Clients.HyperFleetAPI.Timeout = Duration(10 * time.Second)
	}
	if c.Clients.HyperFleetAPI.PageSize == 0 {
		c.Clients.HyperFleetAPI.PageSize = 20
	}
	if c.PollInterval == 0 {
		c.PollInterval = Duration(5 * time.Second)
	}
	if c.MessageDecision.Result == "" && len(c.MessageDecision.Params) == 0 {
		c.MessageDecision = defaultDecision()
	}
}

// ReadConfig reads a file and then the environment, as os.LookupEnv gives it.
// Errors name the file and the line, or the variable.
func ReadConfig(file string, env func(string) (string, bool)) (Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Config{}, fmt.Errorf("reading the sentinel's configuration: %w", err)
	}
	c, err := ParseConfig(file, data)
	if err == nil {
		err = c.setFrom(env)
	}
	if err != nil {
		return Config{}, err
	}
	c.fill()
	if err := c.check(file); err != nil {
		return Config{}, err
	}
	return c, nil
}

// ParseConfig reads the content of a file, without defaults. The file's name is
// for errors.
func ParseConfig(file string, data []byte) (Config, error) {
	var c Config
	err := strictyaml.Decode(file, data, &c, strictyaml.Options{Hints: replaced})
	return c, err
}

// replaced has the keys of older versions, each with the advice for its replacement.
var replaced = map[string]string{
	"max_age_ready": "write message_decision: 'condition(\"Reconciled\").status == \"True\" && now - " +
		"timestamp(…) > duration(\"30m\")'",
	"max_age_not_ready": "write message_decision; what is not reconciled is sent again with back-off anyway",
	"backoff_ready":     "write message_decision",
	"backoff_not_ready": "write message_decision",
	"hyperfleet_api":    "it is clients.hyperfleet_api now",
}

// environment returns pointers to the values that environment variables set, by the variable's name.
func (c *Config) environment() map[string]any {
	return map[string]any{
		"HYPERFLEET_SENTINEL_NAME":       &c.Sentinel.Name,
		"HYPERFLEET_DEBUG_CONFIG":        &c.DebugConfig,
		"HYPERFLEET_TRACING_ENABLED":     &c.TracingEnabled,
		"HYPERFLEET_LOG_LEVEL":           &c.Log.Level,
		"HYPERFLEET_LOG_FORMAT":          &c.Log.Format,
		"HYPERFLEET_LOG_OUTPUT":          &c.Log.Output,
		"HYPERFLEET_API_BASE_URL":        &c.Clients.HyperFleetAPI.BaseURL,
		"HYPERFLEET_API_VERSION":         &c.Clients.HyperFleetAPI.Version,
		"HYPERFLEET_API_TIMEOUT":         &c.Clients.HyperFleetAPI.Timeout,
		"HYPERFLEET_API_PAGE_SIZE":       &c.Clients.HyperFleetAPI.PageSize,
		"HYPERFLEET_API_TOKEN_PATH":      &c.Clients.HyperFleetAPI.Auth.TokenPath,
		"HYPERFLEET_API_TOKEN_CACHE_TTL": &c.Clients.HyperFleetAPI.Auth.TokenCacheTTL,
		"HYPERFLEET_BROKER_TOPIC":        &c.Clients.Broker.Topic,
		"HYPERFLEET_RESOURCE_TYPE":       &c.ResourceType,
		"HYPERFLEET_POLL_INTERVAL":       &c.PollInterval,
	}
}

// setFrom sets the values whose environment variables are not empty.
func (c *Config) setFrom(env func(string) (string, bool)) error {
	var errs []error
	for name, into := range c.environment() {
		value, ok := env(name)
		if !ok || value == "" {
			continue
		}
		if err := strictyaml.Set(into, value); err != nil {
			errs = append(errs, fmt.Errorf("the variable %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (c *Config) check(file string) error {
	fail := func(format string, args ...any) error { return fmt.Errorf(file+": "+format, args...) }
	switch n := c.Clients.HyperFleetAPI.PageSize; {
	case c.ResourceType == "":
		return fail("resource_type is missing; it is the plural of a kind, such as clusters")
	case n < 1 || n > 500:
		return fail("clients.hyperfleet_api.page_size is %d; it is between 1 and 500", n)
	case strings.ContainsAny(c.Clients.Broker.Topic, "+#$\x00"):
		return fail("clients.broker.topic %q cannot be a topic: it holds one of + # $", c.Clients.Broker.Topic)
	}
	for i, l := range c.ResourceSelector {
		if l.Label == "" {
			return fail("resource_selector[%d]: label is missing", i)
		}
	}
	_, err := c.Compile()
	if err != nil {
		return fail("%w", err)
	}
	return nil
}

// Dump returns the configuration, with defaults and environment variables, as a file.
func (c Config) Dump() ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(c), e.Close()); err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	return out.Bytes(), nil
}

// Process is the process in which a sentinel runs.
type Process uint8

// The processes that a sentinel runs in.
const (
	OwnProcess Process = iota
	ProcessOfCLM
)

// Ineffective returns the settings that differ from their default and have no
// effect, each with the reason.
func (c Config) Ineffective(in Process) (settings []string) {
	inside := in == ProcessOfCLM
	usual := DefaultConfig(c.ResourceType)
	for _, setting := range []struct {
		isSet bool
		text  string
	}{
		{c.Sentinel != usual.Sentinel, "sentinel.name: replicas are distinguished by the flag --name"},
		{inside && c.Log != usual.Log, "log: it is that of CLM's configuration"},
		{inside && c.TracingEnabled, "tracing_enabled: it is that of CLM's configuration"},
		{c.Clients.HyperFleetAPI != usual.Clients.HyperFleetAPI, "clients.hyperfleet_api: CLM's database is read"},
		{c.PollInterval != usual.PollInterval, "poll_interval: nothing is polled"},
	} {
		if setting.isSet {
			settings = append(settings, setting.text)
		}
	}
	return settings
}
