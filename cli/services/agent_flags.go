package services

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"atoll.dev/agent"
)

// agentCompatible adds the flags of Open Cluster Management's agent, which
// Maestro's agent has, so that what starts that one starts ours
// (reference/maestro.md 4.1). Those that mean nothing here say why.
func agentCompatible(cmd *cobra.Command, o *agent.Options) {
	f := cmd.Flags()
	f.IntVar(&o.MaxJSONRaw, "max-json-raw-length", 1<<20,
		"longest JSON that feedback brings back of one path, in bytes")
	f.StringVar(&o.AgentID, "agent-id", "",
		"written into AppliedManifestWorks (default: the hash of the broker's address)")
	f.StringVar(&o.ClientID, "cloudevents-client-id", "",
		"MQTT client id (default: the consumer's name with -agent-client; Atoll's own broker lets in no other)")
	f.Var(&oneOf{values: []string{"manifestbundle", "manifestbundles"}}, "cloudevents-client-codecs",
		"the form of works; manifestbundle is all there is")
	for _, i := range ignoredByAgent {
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

// ignoredByAgent are flags that are accepted and change nothing.
var ignoredByAgent = []struct{ name, kind, why string }{
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

// oneOf is a flag that has a few values only.
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

// agentDir is where an agent keeps its works when nobody says. A container's
// is gone with it: then the agent asks for everything again, and deletes nothing.
func agentDir(consumer string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("--data-dir is needed: %w", err)
	}
	return filepath.Join(cache, "atoll-agent", consumer), nil
}
