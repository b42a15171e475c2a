package maestro

import (
	"atoll.dev/internal/quick"
	"atoll.dev/test/testsite"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
)

// TestI5I6AReplicaIsKilled: two and three servers, as processes, share a
// database and the stream of statuses. Under a load of statuses and of creates
// the one that delivers is killed, and with three another one after a fourth
// has come. Within ten seconds nothing is missing: every status that an agent
// sent last is there, and every work that was taken has arrived.
func TestI5I6AReplicaIsKilled(t *testing.T) {
	quick.Slow(t, "kills replicas under load")
	seed := testsite.Seed(t)
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n, " servers"), func(t *testing.T) { testReplicas(t, n, seed) })
	}
}

// replica is a server in a process of its own.
type replica struct {
	*instance
	process *testsite.Process
}

func testReplicas(t *testing.T, n int, seed uint64) {
	site := newSite(t)
	spawn := func() replica {
		i, process := site.spawn()
		return replica{i, process}
	}
	var servers []replica
	for range n {
		servers = append(servers, spawn())
	}
	const each = 25
	var agents []*scriptedAgent
	for k := range 4 {
		name := fmt.Sprintf("mc%d", k)
		servers[0].consumer(name)
		agent := site.agent(work.Consumer(name))
		agent.fault(func() { agent.digests = k%2 == 0 }) // every other one is Open Cluster Management's
		agents = append(agents, agent)
	}
	sources := []*source{servers[0].source()}
	for k, agent := range agents {
		for w := range each {
			sources[0].create(agent.consumer, work.ID(fmt.Sprintf("a%d-%d", k, w)), 1)
		}
	}
	servers[0].awaitAllObserved(len(agents) * each)
	for _, agent := range agents { // now they are known to compare digests
		if agent.digests {
			agent.sayDigest(t.Context())
		}
	}

	for round := range n - 1 {
		if round > 0 {
			servers = append(servers, spawn())
		}
		random := rand.New(rand.NewPCG(seed, uint64(round)))
		survivor := servers[1].source()
		victim := servers[0]
		var load sync.WaitGroup
		last := map[string]string{}
		dead := make(chan struct{})
		var mu sync.Mutex
		for k, agent := range agents {
			order := random.Perm(each * 80)
			load.Go(func() {
				tick := time.NewTicker(time.Millisecond)
				defer tick.Stop()
				for i, o := range order {
					select {
					case <-tick.C:
					case <-dead: // nothing that comes later hides what is lost now
						return
					}
					id, kind := fmt.Sprintf("a%d-%d", k, o%each), fmt.Sprintf("Phase%d-%d", round, i)
					agent.report(work.ID(id), kind)
					mu.Lock()
					last[id] = kind
					mu.Unlock()
				}
			})
		}
		const creates = 60
		load.Go(func() {
			for i := range creates {
				id := fmt.Sprintf("new%d-%d", round, i)
				survivor.create(agents[i%len(agents)].consumer, work.ID(id), i)
			}
		})
		moment := time.NewTimer(time.Duration(300+random.IntN(400)) * time.Millisecond)
		<-moment.C
		victim.process.Kill()
		killed := time.Now()
		close(dead)
		servers = servers[1:]
		load.Wait()
		over := time.Now()

		missing := func() (int, string) {
			a, err := servers[0].try("GET", "/api/maestro/v1/resource-bundles?size=65500", "")
			if err != nil {
				return 1, err.Error()
			}
			var l api.ResourceBundleList
			a.into(t, &l)
			if want := len(agents)*each + (round+1)*creates; len(l.Items) != want {
				return want - len(l.Items), fmt.Sprintf("%d bundles instead of %d", len(l.Items), want)
			}
			count, first := 0, ""
			for _, b := range l.Items {
				why := ""
				if b.Status.ObservedVersion != b.Version {
					why = fmt.Sprintf("observed %d of %d", b.Status.ObservedVersion, b.Version)
				} else if kind := last[b.ID]; kind != "" {
					var c struct{ Type string }
					if len(b.Status.Conditions) == 1 {
						_ = json.Unmarshal(b.Status.Conditions[0], &c)
					}
					if c.Type != kind {
						why = fmt.Sprintf("status %s instead of %s", c.Type, kind)
					}
				}
				if why != "" {
					if count++; first == "" {
						first = b.ID + ": " + why
					}
				}
			}
			return count, first
		}
		before, example := missing()
		t.Logf("%v after the kill, when the load ended, %d are missing: %s", over.Sub(killed).Round(time.Millisecond),
			before, example)
		eventually(t, "nothing is missing", func() error {
			if n, why := missing(); n > 0 {
				return fmt.Errorf("%d, such as %s", n, why)
			}
			return nil
		})
		took := time.Since(killed)
		t.Logf("nothing is missing %v after the kill", took.Round(time.Millisecond))
		if took > time.Minute { // 10 s, and what a busy machine adds; without the survivors' requests it takes minutes
			t.Errorf("it took %v, 10 s is the limit of an idle machine", took)
		}
	}
}
