package bus

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"atoll.dev/internal/strictyaml"
)

// Config is the configuration file of Maestro and OCM's agents for their broker
// (sdk-go's MQTTConfig), as YAML:
//
//	brokerHost: broker.example:8883        # host:port
//	username, password: ...                # for brokers that require them
//	caFile, clientCertFile, clientKeyFile: # PEM files; without any, no TLS
//	caData, clientCertData, clientKeyData: # base64 of PEM, instead of the files
//	keepAlive: 60                          # seconds
//	dialTimeout: 5s
//	pubQoS, subQoS: 1                      # no other value: see below
//	topics:
//	  sourceEvents: sources/maestro/consumers/+/sourceevents
//	  agentEvents: $share/statussubscribers/sources/maestro/consumers/+/agentevents
//	  sourceBroadcast, agentBroadcast: ... # optional
//
// An unknown key and a duplicate key are errors with their line. Messages always have
// QoS 1: at QoS 0 losses would go unnoticed, and QoS 2 adds nothing for idempotent
// events.
type Config struct {
	BrokerHost             string
	Username, Password     string
	Keys                   Keys
	KeepAlive, DialTimeout time.Duration // 0: the client's default
	Topics                 Topics        // zero: not in the file

	file string // the file that was read; "" for ParseConfig
}

// ReadConfig reads a configuration file. Errors name the file and the line.
func ReadConfig(file string) (Config, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return Config{}, fmt.Errorf("reading the broker's configuration: %w", err)
	}
	c, err := ParseConfig(data)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	c.file = file
	return c, nil
}

// A ConfigError is a mistake in a configuration. Its text quotes only topics, numbers and
// durations of the file: other values may be secrets.
type ConfigError struct {
	Line   int // from 1; 0 for the whole file
	Reason string
}

func (e *ConfigError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return "line " + strconv.Itoa(e.Line) + ": " + e.Reason
}

// errorAt returns a ConfigError with the line of n.
func errorAt(n *yaml.Node, format string, args ...any) error {
	return &ConfigError{Line: n.Line, Reason: fmt.Sprintf(format, args...)}
}

// ParseConfig parses the content of a configuration file. Every error is a *ConfigError
// or joins several.
func ParseConfig(data []byte) (Config, error) {
	var c Config
	root, err := strictyaml.ParseDocument("", data)
	if mistake, ok := errors.AsType[*strictyaml.Mistake](err); ok {
		// Of the library's text only the first line is kept, since others may quote the file.
		reason, _, _ := strings.Cut(mistake.Text, "\n")
		return c, &ConfigError{Line: mistake.Line, Reason: reason}
	}
	if root == nil {
		return c, &ConfigError{Reason: "the file is empty; brokerHost is needed"}
	}
	fields := map[string]func(*yaml.Node) error{
		"brokerHost": scalar(&c.BrokerHost), "username": scalar(&c.Username), "password": scalar(&c.Password),
		"caFile": scalar(&c.Keys.CAFile), "clientCertFile": scalar(&c.Keys.CertFile), "clientKeyFile": scalar(
			&c.Keys.KeyFile),
		"caData": base64Of(&c.Keys.CA), "clientCertData": base64Of(&c.Keys.Cert), "clientKeyData": base64Of(
			&c.Keys.Key),
		"keepAlive": keepAlive(&c.KeepAlive), "dialTimeout": duration(&c.DialTimeout), "pubQoS": qosOne,
		"subQoS": qosOne,
		"topics": func(n *yaml.Node) error { return parseTopics(n, &c.Topics) },
	}
	errs := []error{readMapping(root, "the file", fields)}
	if c.BrokerHost == "" {
		errs = append(errs, errorAt(root, "brokerHost is missing; it is host:port"))
	} else if host, port, err := net.SplitHostPort(c.BrokerHost); err != nil || host == "" || !isPort(port) {
		errs = append(errs, errorAt(valueOf(root, "brokerHost"), "brokerHost is not host:port"))
	}
	hasCert, hasKey := c.Keys.CertFile != "" || len(c.Keys.Cert) > 0, c.Keys.KeyFile != "" || len(c.Keys.Key) > 0
	if hasCert != hasKey {
		errs = append(errs, errorAt(root, "a client certificate and its key come together; one is missing"))
	}
	return c, errors.Join(errs...)
}

// isPort reports whether s is a port number.
func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// readMapping reads a mapping with the reader of each key in fields. An unknown key and a
// duplicate key are errors.
func readMapping(n *yaml.Node, what string, fields map[string]func(*yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return errorAt(n, "%s is no mapping of keys to values", what)
	}
	var errs []error
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := fields[key.Value]
		switch {
		case read == nil || key.Kind != yaml.ScalarNode:
			errs = append(errs, errorAt(key, "%s has no key %.50q", what, key.Value))
		case seen[key.Value]:
			errs = append(errs, errorAt(key, "%s is there twice", key.Value))
		case value.Kind == yaml.ScalarNode && value.Tag == "!!null":
			// as if it were not there
		default:
			if err := read(value); err != nil {
				errs = append(errs, err)
			}
		}
		seen[key.Value] = true
	}
	return errors.Join(errs...)
}

// valueOf returns the value of a key, or the mapping itself when the key is missing.
func valueOf(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return n
}

// scalar returns a reader of a text.
func scalar(into *string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if n.Kind != yaml.ScalarNode {
			return errorAt(n, "this is no text")
		}
		*into = n.Value
		return nil
	}
}

// base64Of returns a reader of base64 data.
func base64Of(into *[]byte) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		data, err := base64.StdEncoding.DecodeString(n.Value) // DecodeString skips line ends
		if err != nil || n.Kind != yaml.ScalarNode {
			return errorAt(n, "this is no base64")
		}
		*into = data
		return nil
	}
}

// keepAlive returns a reader of a keep-alive in seconds, MQTT's unit.
func keepAlive(into *time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		seconds, err := strconv.ParseUint(n.Value, 10, 16)
		if err != nil || n.Kind != yaml.ScalarNode || seconds == 0 {
			return errorAt(n, "keepAlive %.50q is no number of seconds from 1 to %d", n.Value, math.MaxUint16)
		}
		*into = time.Duration(seconds) * time.Second
		return nil
	}
}

// duration returns a reader of a positive duration.
func duration(into *time.Duration) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		d, err := time.ParseDuration(n.Value)
		if err != nil || n.Kind != yaml.ScalarNode || d <= 0 {
			return errorAt(n, "%.50q is no duration, such as 5s", n.Value)
		}
		*into = d
		return nil
	}
}

// qosOne accepts the value 1 only.
func qosOne(n *yaml.Node) error {
	if n.Value != "1" {
		return errorAt(n, "QoS %.50q: only 1 is possible", n.Value)
	}
	return nil
}

// parseTopics reads the topics of the file; sourceEvents and agentEvents are required.
func parseTopics(n *yaml.Node, t *Topics) error {
	topic := func(into *Topic, kind TopicKind) func(*yaml.Node) error {
		return func(n *yaml.Node) error {
			got, err := ParseTopic(n.Value)
			if err != nil || got.Kind != kind || n.Kind != yaml.ScalarNode {
				return errorAt(n, "%.200q is no topic of the form that ends in %s", n.Value, kind)
			}
			*into = got
			return nil
		}
	}
	err := readMapping(n, "topics", map[string]func(*yaml.Node) error{
		"sourceEvents": topic(&t.SourceEvents, SourceEvents), "agentEvents": topic(&t.AgentEvents, AgentEvents),
		"sourceBroadcast": topic(&t.SourceBroadcast, SourceBroadcast), "agentBroadcast": topic(&t.AgentBroadcast,
			AgentBroadcast),
	})
	if err == nil && (t.SourceEvents.Kind == "" || t.AgentEvents.Kind == "") {
		err = errorAt(n, "topics needs sourceEvents and agentEvents")
	}
	return err
}

// Options returns the client's options without id, subscriptions and handlers. The
// client reads the keys, from the configuration file and from the files that it names,
// for each connection; when they change, the client connects again.
func (c Config) Options() ClientOptions {
	o := ClientOptions{Addr: c.BrokerHost, Username: c.Username, Password: c.Password, KeepAlive: c.KeepAlive,
		DialTimeout: c.DialTimeout}
	if !c.Keys.Empty() {
		o.Keys = func() (Keys, error) {
			if c.file == "" {
				return c.Keys, nil
			}
			now, err := ReadConfig(c.file)
			return now.Keys, err
		}
	}
	return o
}
