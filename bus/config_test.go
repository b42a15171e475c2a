package bus

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const fullConfig = `# as Maestro's charts write it
brokerHost: broker.example:8883
username: maestro
password: SECRET
caFile: /certs/ca.crt
clientCertFile: /certs/client.crt
clientKeyFile: /certs/client.key
keepAlive: 60
dialTimeout: 5s
pubQoS: 1
subQoS: 1
topics:
  sourceEvents: sources/maestro/consumers/+/sourceevents
  agentEvents: $share/statussubscribers/sources/maestro/consumers/+/agentevents
`

func TestConfig(t *testing.T) {
	c, err := ParseConfig([]byte(fullConfig))
	if err != nil {
		t.Fatal(err)
	}
	o := c.Options()
	if o.Addr != "broker.example:8883" || o.Username != "maestro" || o.Password != "SECRET" ||
		o.KeepAlive != time.Minute || o.DialTimeout != 5*time.Second || c.Topics != TopicsOf("maestro") {
		t.Errorf("%+v %+v", o, c.Topics)
	}
	if k, err := o.Keys(); err != nil || k.CAFile != "/certs/ca.crt" || k.CertFile != "/certs/client.crt" ||
		k.KeyFile != "/certs/client.key" {
		t.Errorf("%+v, %v", k, err)
	}
	if c, err := ParseConfig([]byte("brokerHost: h:1\ntopics: null\n")); err != nil || c.Topics != (Topics{}) ||
		c.Options().Keys != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

// An error names the line of the mistake and quotes no value that may be a secret.
func TestConfigMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "empty",
		"username: a\n":                         "line 1: brokerHost is missing",
		"brokerHost: nohost\n":                  "line 1: brokerHost is not host:port",
		"brokerHost: h:1\nbrokerHost: h:2\n":    "there twice",
		"brokerHost: h:1\n\nnope: SECRET\n":     `line 3: the file has no key "nope"`,
		"brokerHost: h:1\npassword: [SECRET]\n": "line 2: this is no text",
		"brokerHost: h:1\ncaData: SECRET!\n":    "line 2: this is no base64",
		"brokerHost: h:1\nkeepAlive: -1\n":      "line 2: keepAlive",
		"brokerHost: h:1\ndialTimeout: 5\n":     "line 2",
		"brokerHost: h:1\npubQoS: 0\n":          "line 2: QoS",
		"brokerHost: h:1\nclientKeyFile: k\n":   "one is missing",
		"brokerHost: h:1\ntopics: x\n":          "line 2: topics is no mapping",
		"brokerHost: h:1\ntopics:\n  agentEvents: sources/a/consumers/+/agentevents\n": "needs sourceEvents",
		"brokerHost: h:1\ntopics:\n  sourceEvents: sources/a/consumers/+/agentevents\n  agentEvents: " +
			"sources/a/consumers/+/agentevents\n": "line 3",
		"brokerHost: h:1\ntopics:\n  sourceEvents: sources/a/consumers/+/sourceevents\n  agentEvents: " +
			"sources/a/consumers/+/agentevents\n  x: y\n": "line 5",
		"a: b: c\n": "not YAML",
		"- x\n":     "no mapping",
	} {
		_, err := ParseConfig([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "SECRET") {
			t.Errorf("%q: got error %v, want one with %q", text, err, want)
		}
	}
	file := filepath.Join(t.TempDir(), "broker.yaml")
	if err := os.WriteFile(file, []byte("x: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadConfig(file); err == nil || !strings.Contains(err.Error(), file+": line 1") {
		t.Errorf("%v does not name the file", err)
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(fullConfig)
	f.Add("brokerHost: &a h:1\nusername: *a\n")
	f.Add("{brokerHost: 'h:1', topics: {}}")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := ParseConfig([]byte(text))
		if _, ok := errors.AsType[*ConfigError](err); err != nil && !ok {
			t.Errorf("%q: %v is no ConfigError", text, err)
		}
	})
}
