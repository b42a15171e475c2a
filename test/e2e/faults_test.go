package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/client/remote"
	"atoll.dev/internal/quick"
	"atoll.dev/test/localtest"
	"atoll.dev/test/testsite"
)

// Kill -9 of any process at any time, under load: every acknowledged work is applied in its latest
// version, and every deleted one is removed.
func TestI1I5I6I12KillLoop(t *testing.T) {
	rng := localtest.Seed(t)
	r := localtest.Restarted(t)
	api := r.API()
	span := testsite.Soak(t, 15*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()

	const works = 12
	wanted := make([]int, works) // the last acknowledged value of each work; 0 is deleted
	var acknowledged, refused int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for i := range works {
		write := rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))
		wg.Go(func() {
			name := fmt.Sprintf("kill-%d", i)
			id := work.BundleID(work.SourcePlatform, "management-01", name)
			for n := 1; ctx.Err() == nil; n++ {
				value := n
				if n > 1 && write.IntN(5) == 0 {
					value = 0
				}
				// A change that was not acknowledged may or may not have taken
				// effect: it is repeated until it is.
				for {
					var err error
					if value == 0 {
						err = api.DeleteWork(context.Background(), id, "")
						if remote.StatusOf(err) == 404 {
							err = nil
						}
					} else {
						_, _, err = api.ApplyWork(context.Background(), "management-01",
							localtest.ConfigMapWork(name, map[string]map[string]string{
								name: {"value": strconv.Itoa(value)}}))
					}
					mu.Lock()
					if err == nil {
						acknowledged++
						wanted[i] = value
						mu.Unlock()
						break
					}
					refused++
					mu.Unlock()
					if s := remote.StatusOf(err); s == 500 || s >= 400 && s < 500 && s != 409 && s != 412 && s != 404 &&
						s != 429 {
						t.Errorf("work %s: %v", name, err)
						return
					}
				}
			}
		})
	}
	testsite.Eventually(t, "the load has begun", func() error { // before the first kill: a slow machine may take long
		mu.Lock()
		defer mu.Unlock()
		if acknowledged < works {
			return fmt.Errorf("%d changes acknowledged, %d tries not", acknowledged, refused)
		}
		return nil
	})
	time.AfterFunc(span, stop)
	kills := map[string]int{}
	names := []string{"broker", "maestro", "clm", "platform", "pki", "postgres", "management-01-plane",
		"management-01-agent"}
	for ctx.Err() == nil {
		name := names[rng.IntN(len(names))]
		if p := r.Process(name); p.PID != 0 {
			localtest.Kill(t, p.PID)
			kills[name]++
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(500+rng.IntN(2500)) * time.Millisecond):
		}
	}
	wg.Wait()
	t.Logf("killed %v; %d changes acknowledged, %d tries not", kills, acknowledged, refused)
	localtest.Eventually(t, 4*time.Minute, func() error {
		out, err := r.TryKubectl("management-01", "get", "configmaps", "-o", "json")
		if err != nil {
			return err
		}
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Data     map[string]string
			}
		}
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			return err
		}
		got := map[string]string{}
		for _, cm := range list.Items {
			got[cm.Metadata.Name] = cm.Data["value"]
		}
		var wrong []string
		for i, value := range wanted {
			name := fmt.Sprintf("kill-%d", i)
			want := ""
			if value != 0 {
				want = strconv.Itoa(value)
			}
			if got[name] != want {
				wrong = append(wrong, fmt.Sprintf("%s is %q, want %q", name, got[name], want))
			}
		}
		if len(wrong) > 0 {
			return errors.New(strings.Join(wrong, "; "))
		}
		return nil
	})
	localtest.Eventually(t, 3*time.Minute, func() error {
		list, err := api.Works(t.Context(), "management-01")
		if err != nil {
			return err
		}
		for _, w := range list {
			if w.DeletedAt != nil {
				return fmt.Errorf("%s is still being deleted", w.Name)
			}
			ok := false
			for _, c := range w.Status.Conditions {
				ok = ok || c.Type == "Applied" && c.Status == "True" && c.ObservedGeneration == w.Generation
			}
			if !ok {
				return fmt.Errorf("%s: generation %d, conditions %v", w.Name, w.Generation, w.Status.Conditions)
			}
		}
		return nil
	})
}

// The agent of a whole region misses 420 changes. In the tests of the packages agent and maestro it misses a thousand,
// each with the other side of the wire simulated.
func TestI6AnAgentThatWasAwayConverges(t *testing.T) {
	quick.Slow(t, "sends an agent of a whole region away, as maestro and agent test it alone")
	r := localtest.Restarted(t)
	api := r.API()
	apply := func(i, n int) {
		name := fmt.Sprintf("away-%d", i)
		if _, _, err := api.ApplyWork(t.Context(), "management-01", localtest.ConfigMapWork(
			name, map[string]map[string]string{name: {"n": strconv.Itoa(n)}})); err != nil {
			t.Error(err)
		}
	}
	const works = 120 // three changes of each while the agent is away, and the deletion of half of them
	each(works, func(i int) { apply(i, 0) })
	count := func() (n, updated int) {
		var list struct {
			Items []struct {
				Metadata struct{ Name string }
				Data     map[string]string
			}
		}
		out, err := r.TryKubectl("management-01", "get", "configmaps", "-o", "json")
		if err != nil || json.Unmarshal([]byte(out), &list) != nil {
			return -1, 0
		}
		for _, cm := range list.Items {
			if strings.HasPrefix(cm.Metadata.Name, "away-") {
				n++
				if cm.Data["n"] == "3" {
					updated++
				}
			}
		}
		return n, updated
	}
	localtest.Eventually(t, 3*time.Minute, func() error {
		if n, _ := count(); n != works {
			return fmt.Errorf("%d works applied", n)
		}
		return nil
	})
	// The process is paused, not killed: the supervisor would restart it. The broker disconnects it,
	// like an agent without network.
	agent := r.Process("management-01-agent").PID
	pause(t, agent)
	each(works, func(i int) { apply(i, 1); apply(i, 2); apply(i, 3) })
	each(works, func(i int) {
		if i%2 == 0 {
			if err := api.DeleteWork(t.Context(), work.BundleID(work.SourcePlatform, "management-01",
				fmt.Sprintf("away-%d", i)), ""); err != nil {
				t.Error(err)
			}
		}
	})
	resume(t, agent)
	back := time.Now()
	localtest.Eventually(t, 3*time.Minute, func() error {
		if n, updated := count(); n != works/2 || updated != works/2 {
			return fmt.Errorf("%d works, %d up to date", n, updated)
		}
		return nil
	})
	t.Logf("%d changes, %d deletions among them, converged %s after the agent's return", works*7/2, works/2,
		time.Since(back).Round(10*time.Millisecond))
}

func TestPostgresDownIs503AndRecovers(t *testing.T)  { testDown(t, "postgres") }
func TestTheBrokerDownIs503AndRecovers(t *testing.T) { testDown(t, "broker") }

// testDown stops the process for good: its supervisor is killed first.
func testDown(t *testing.T, name string) {
	r := localtest.Restarted(t)
	post := func() (status int, headers string, took time.Duration) {
		body, _ := json.Marshal(map[string]any{"cluster_id": "management-01", "data": localtest.ConfigMapWork(
			fmt.Sprintf("w%d", time.Now().UnixNano()), map[string]map[string]string{"down": {"a": "b"}})})
		begun := time.Now()
		status, headers, _ = r.Curl("/api/v0/work", "-X", "POST", "-d", string(body))
		return status, headers, time.Since(begun)
	}
	localtest.Kill(t, r.Process("supervisor").PID)
	localtest.Kill(t, r.Process(name).PID)
	localtest.Eventually(t, 3*time.Minute, func() error {
		status, headers, took := post()
		if took > 5*time.Second { // 2 s, and what a busy machine takes to start a process; a busier one asks again
			return fmt.Errorf("%s down: the answer %d took %s", name, status, took)
		}
		if status != 503 || !strings.Contains(strings.ToLower(headers), "\nretry-after: ") {
			return fmt.Errorf("%s down: %d\n%s", name, status, headers)
		}
		return nil
	})
	r.Up()
	localtest.Eventually(t, 3*time.Minute, func() error {
		if status, _, _ := post(); status != 201 {
			return fmt.Errorf("%s back: %d", name, status)
		}
		return nil
	})
}

// each calls f for 0..n-1, sixteen at a time.
func each(n int, f func(i int)) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() { defer func() { <-slots }(); f(i) })
	}
	wg.Wait()
}
