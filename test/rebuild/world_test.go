package rebuild

import (
	"os"
	"testing"
	"time"

	"atoll.dev/agent"
	"atoll.dev/api/work"
	"atoll.dev/plane/planetest"
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

// world is a region with two management clusters. Maestro has plain listeners for the command that rebuilds it.
type world struct{ *testworld.World }

func newWorld(t *testing.T) *world {
	return &world{testworld.Start(t, testworld.Options{Entities: entities, Clusters: []work.Consumer{mc1, mc2},
		Plain: true, Adapters: []string{"cl-maestro"},
		Agent: func(o *agent.Options) { o.CompareEvery = time.Second }})}
}

// loseDatabase starts Maestro again with an empty database.
func (w *world) loseDatabase() {
	w.T.Helper()
	w.Maestro.Stop()
	w.Maestro.LoseDatabase()
	w.Maestro.Start()
}
