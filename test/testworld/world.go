package testworld

import (
	"context"
	"net/http"
	"testing"
	"time"

	"atoll.dev/agent"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// Options select the parts of a World beside a broker and a lifecycle manager with its sentinel.
type Options struct {
	Entities string // of the lifecycle manager, YAML; default clm.DefaultEntities
	Fleet    bool   // the lifecycle manager places clusters, as in a region

	// Clusters are management clusters, each an API server with an agent. With one or more there is a Maestro. The first
	// API server is that of planetest.Shared: the package must use planetest.Main.
	Clusters []work.Consumer
	Hosting  bool                 // they have the kinds of hosting, whose objects the test reports on in place of hosting
	Plain    bool                 // Maestro has listeners without identity, for a command that has no certificate
	Agent    func(*agent.Options) // changes the options of each agent; may be nil

	// Adapters are directories in package adapters. One that applies objects itself does so on the first management
	// cluster. Env has the environment variables that their tasks read.
	Adapters []string
	Env      map[string]string
}

// World is a region inside of a test: the real parts, which call each other with certificates, as in a region.
type World struct {
	*testsite.Site
	Broker   *testsite.Broker
	CLM      *CLM
	Client   *clmclient.Client // of the lifecycle manager, as the Platform API calls it
	Maestro  *Maestro          // nil without management clusters
	Clusters map[work.Consumer]*Cluster

	options Options
}

// Start starts a region. When it returns, its services are ready, its adapters receive events, its management clusters
// are consumers of Maestro, and their agents run. All ends with the test.
func Start(t testing.TB, o Options) *World {
	t.Helper()
	w := &World{Site: testsite.New(t), Clusters: map[work.Consumer]*Cluster{}, options: o}
	for i, name := range o.Clusters { // a test that -short leaves out ends here
		if i == 0 {
			w.Clusters[name] = SharedCluster(t)
		} else {
			w.Clusters[name] = newCluster(t, planetest.Start(t))
		}
		if o.Hosting {
			w.Clusters[name].AddHosting()
		}
	}
	w.Broker = w.StartBroker()
	w.CLM = StartCLM(w.Site, CLMOptions{Entities: o.Entities, Fleet: o.Fleet})
	w.CLM.startSentinel(w.Broker)
	w.Client = w.CLM.DialAs("platform")
	if len(o.Clusters) > 0 {
		w.Maestro = StartMaestro(w.Site, MaestroOptions{Broker: w.Broker, CLM: w.CLM, Plain: o.Plain})
		operator := w.Dial("operator")
		t.Cleanup(func() {
			if doc, err := operator.ListBundles(context.Background(), remote.ListOptions{}); t.Failed() {
				t.Logf("works: %s, %v", doc.JSON, err)
			}
		})
		for _, name := range o.Clusters {
			c := w.Clusters[name]
			c.Agent = StartAgent(w.Site, AgentOptions{Consumer: name, Admin: c.Admin, Broker: w.Broker, Change: o.Agent})
			w.Await("the consumer "+string(name), func() error {
				_, err := operator.CreateConsumer(t.Context(), name, nil)
				if remote.StatusOf(err) == http.StatusConflict {
					return nil // by a try whose answer was lost
				}
				return err
			})
		}
	}
	for _, name := range o.Adapters {
		w.StartAdapter(w.bundledAdapter(name))
	}
	return w
}

// Dial returns a client of Maestro for the works of a source. Only a hang ends its calls.
func (w *World) Dial(source string) *maestroclient.Client {
	return w.Maestro.DialPatiently("adapter", source)
}

// Await calls check until it returns nil, and logs how long that took. Only a hang fails the test.
func (w *World) Await(what string, check func() error) {
	w.T.Helper()
	begun := time.Now()
	testsite.Eventually(w.T, what, check)
	w.T.Logf("%-60s %8.1f ms", what, float64(time.Since(begun).Microseconds())/1000)
}
