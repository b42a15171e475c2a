package services

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"atoll.dev/agent"
	"atoll.dev/api/work"
)

// addCompatibleFlags adds the flags of Open Cluster Management's agent, which Maestro's agent has,
// too, so that the same command line starts this agent. The usage of a flag without effect has the
// reason.
func addCompatibleFlags(cmd *cobra.Command, o *agent.Options) {
	f := cmd.Flags()
	f.IntVar(&o.MaxJSONRaw, "max-json-raw-length", 1<<20,
		"most bytes of JSON in the feedback of one path")
	f.StringVar(&o.AgentID, "agent-id", "",
		"written into AppliedManifestWorks (default: the hash of the broker's address)")
	f.StringVar(&o.ClientID, "cloudevents-client-id", "",
		"MQTT client id (default: the consumer's name with -agent-client; Atoll's own broker admits no other)")
	f.Var(&oneOf{values: []string{"manifestbundle", "manifestbundles"}}, "cloudevents-client-codecs",
		"the form of works; only manifestbundle is known")
	for _, i := range ineffectiveFlags {
		switch i.kind {
		case "bool":
			f.Bool(i.name, false, i.why)
		case "strings":
			f.StringSlice(i.name, nil, i.why)
		default:
			f.String(i.name, "", i.why)
		}
	}
}

// ineffectiveFlags are flags that are accepted and have no effect.
var ineffectiveFlags = []struct{ name, kind, why string }{
	{"status-sync-interval", "", "accepted, of no effect: statuses are watched, not polled"},
	{"max-feedback-watch", "",
		"accepted, of no effect: there is one watch for each kind, whatever the number of objects"},
	{"appliedmanifestwork-eviction-grace-period", "",
		"accepted, of no effect: works that the region does not know are never evicted"},
	{"disable-leader-election", "bool", "accepted, of no effect: run one agent for each cluster"},
	{"namespace", "", "accepted, of no effect: there is no lease to keep in it"},
	{"listen", "", "accepted, of no effect: --ops is where metrics and health are served"},
	{"config", "", "accepted, of no effect: there are flags only"},
	{"terminate-on-files", "strings", "accepted, of no effect: a certificate that is renewed is used from then on"},
	{"feature-gates", "strings", "accepted, of no effect: there are none here"},
	{"spoke-cluster-name", "", "accepted, of no effect: --consumer-name is the name"},
}

// oneOf is a flag with a fixed set of values.
type oneOf struct {
	value  string
	values []string
}

func (f *oneOf) String() string { return f.value }
func (f *oneOf) Type() string   { return "string" }

func (f *oneOf) Set(s string) error {
	for _, v := range f.values {
		if s == v {
			f.value = s
			return nil
		}
	}
	return fmt.Errorf("must be one of %q", f.values)
}

// defaultAgentDir returns the default directory of an agent's works. In a container it is lost with the
// container: the new agent then requests all works again and deletes nothing.
func defaultAgentDir(consumer work.Consumer) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("--data-dir is needed: %w", err)
	}
	return filepath.Join(cache, "atoll-agent", string(consumer)), nil
}
