package rebuild

import (
	"context"
	"os"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"

	"atoll.dev/adapter/works"
	"atoll.dev/agent"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const (
	mc1, mc2 = "mc1", "mc2" // the management clusters
	entities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [cl-maestro]}
- {kind: ManagementCluster, plural: managementclusters}
`
)

// world is a region with two management clusters. CLM and Maestro have plain listeners, which need no identity.
type world struct {
	*testing.T
	manager  *testworld.CLM
	clm      *clmclient.Client
	server   *testworld.Maestro
	maestro  *maestroclient.Client
	clusters map[string]*managed
}

// managed is a management cluster.
type managed struct {
	admin dynamic.Interface
	agent *testworld.Agent
}

func newWorld(t *testing.T) *world {
	site := testsite.New(t)
	broker := site.StartBroker()
	w := &world{T: t, clusters: map[string]*managed{}}
	w.server = testworld.StartMaestro(site, testworld.MaestroOptions{Broker: broker, Plain: true})
	w.maestro = w.dial("operator")
	w.manager = testworld.StartCLM(site, testworld.CLMOptions{Entities: entities})
	w.manager.StartSentinel(broker)
	w.clm = w.manager.Dial()
	testworld.StartAdapter(site, testworld.AdapterOptions{Name: "cl-maestro", CLM: w.manager, Broker: broker,
		Transport: works.New(works.Options{Client: w.dial("cl-maestro"), Log: site.Log,
			Clusters: func(context.Context) ([]work.Consumer, error) { return []work.Consumer{mc1, mc2}, nil }})})
	for _, name := range []string{mc1, mc2} {
		admin, err := planetest.Start(t).Config.RESTConfig()
		if err != nil {
			t.Fatal(err)
		}
		c := &managed{}
		if c.admin, err = dynamic.NewForConfig(admin); err != nil {
			t.Fatal(err)
		}
		c.agent = testworld.StartAgent(site, testworld.AgentOptions{Consumer: work.Consumer(name), Admin: admin,
			Broker: broker,
			Change: func(o *agent.Options) { o.CompareEvery = time.Second }})
		w.clusters[name] = c
	}
	return w
}

// dial returns a client of Maestro for the works of a source.
func (w *world) dial(source string) *maestroclient.Client { return w.server.DialPatiently("", source) }

// loseDatabase starts Maestro again with an empty database.
func (w *world) loseDatabase() {
	w.Helper()
	w.server.Stop()
	w.server.LoseDatabase()
	w.server.Start()
}

func (w *world) eventually(what string, check func() error) {
	w.Helper()
	testsite.Eventually(w, what, check)
}
