package arm_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/access"
	"atoll.dev/front/arm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/ops"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// mortal is the mode under which the server of a process that is to be killed is reached.
const mortal arm.Mode = "mortal"

// killPhase is what a process does when it is killed.
type killPhase string

// The phases.
const (
	duringRequests killPhase = "request" // it accepts requests and does not work on operations
	duringWork     killPhase = "work"    // it does both
)

// testKills kills processes at their statements, and checks that each resource has its operation, each active
// operation its resource, and that the other processes end every operation.
func (w *world) testKills(t *testing.T) {
	t.Run("4 a process that is killed at any statement leaves no resource without operation and none busy",
		func(t *testing.T) {
			w.stopWork()
			kills := 0
			for _, moment := range []pgtest.KillMoment{pgtest.BeforeStatement, pgtest.AfterStatement} {
				for _, phase := range []killPhase{duringRequests, duringWork} {
					// Requests are killed at every third statement, before and after it; the work at every 40th: its
					// statements repeat.
					step := map[killPhase]int{duringRequests: 3, duringWork: 40}[phase]
					for left, killed := 0, true; killed && left < 120; left += step {
						name := fmt.Sprintf("kill-%t-%s-%d", moment, phase, left)
						if killed = w.killAt(t, name, left, moment, phase); killed {
							kills++
						}
					}
				}
			}
			if t.Logf("%d kills", kills); kills < 14 {
				t.Errorf("%d kills: the test misses statements", kills)
			}
			w.checkOperations(t)
			w.startWork()
			testsite.Eventually(t, "no resource is busy", func() error { return w.findBusy(t) })
			w.checkOperations(t)
		})
}

// killAt starts a process that is killed after so many statements, and lets it create, change and delete a cluster.
// It reports whether the process was killed.
func (w *world) killAt(t *testing.T, name string, left int, moment pgtest.KillMoment, phase killPhase) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	process := pgtest.NewMortalProcess(left, moment, cancel)
	db, err := store.Open(ctx, store.Options{DSN: w.dsn, Migrations: access.Migrations(),
		Kinds: append(access.StoreKinds(), arm.StoreKinds()...), Hooks: store.Hooks{Dial: process.Dial},
		ResolveTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	front := arm.New(arm.Options{Store: db, Keys: w.keys, CLM: w.front, Certificates: w.certificates,
		Location: "atolltest", Holder: name, RetryAfter: time.Second, Referers: []string{public}, Log: testsite.Log(t)})
	server := httptest.NewUnstartedServer(front)
	server.TLS = front.ServerTLS(&tls.Config{MinVersion: tls.VersionTLS12})
	server.StartTLS()
	w.servers[mortal] = server
	var group sync.WaitGroup
	defer func() {
		cancel()
		group.Wait()
		server.Close()
		db.Close()
	}()
	process.Arm()
	if phase == duringWork {
		group.Go(func() { _ = front.Run(ctx) }) // it ends with ctx only
	}
	path := strings.Replace(demo, "demo", name, 1)
	for _, c := range []call{{method: "PUT", body: clusterBody()}, {method: "PATCH", body: `{"tags":{"b":"2"}}`},
		{method: "DELETE"}} {
		c.mode, c.path = mortal, path
		a := w.do(c)
		if process.IsDead() {
			return true
		}
		if phase == duringRequests {
			continue // no process works on the operation: the next request is refused, or takes its place
		}
		if a.status >= 300 {
			t.Fatalf("%s %s: %d %s", c.method, path, a.status, a.raw)
		}
		link := a.header.Get("Azure-AsyncOperation")
		testsite.Eventually(t, "the operation ends or the process", func() error {
			if process.IsDead() {
				return nil
			}
			view := w.do(call{mode: mortal, method: "GET", path: link, version: "-"})
			if view.body["status"] != "Succeeded" && !process.IsDead() {
				return errors.New(view.raw)
			}
			return nil
		})
	}
	return process.IsDead()
}

// each calls do with the documents of a kind.
func (w *world) each(t *testing.T, kind store.Kind, do func(store.Document)) {
	t.Helper()
	for q := (store.Query{Kind: kind, Deletion: store.WithDeleting}); ; {
		page, err := w.store.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range page.Documents {
			do(d)
		}
		if q.After = page.Next; q.After == "" {
			return
		}
	}
}

// checkOperations checks that a busy cluster has exactly one active operation, and that an active operation has
// its cluster.
func (w *world) checkOperations(t *testing.T) {
	t.Helper()
	active := map[string]string{} // operations by resource
	w.each(t, ops.Kind, func(d store.Document) {
		if d.DeletedAt == nil {
			active[d.Name] = d.ID
		}
	})
	clusters := 0
	w.each(t, "ArmCluster", func(d store.Document) {
		clusters++
		var status struct{ ProvisioningState, Operation string }
		if err := json.Unmarshal(d.Status, &status); err != nil {
			t.Fatal(err)
		}
		isBusy := status.ProvisioningState != "Succeeded"
		if operation, has := active[d.ID]; has != isBusy || has && operation != status.Operation {
			t.Errorf("the cluster %s is %s by the operation %s, and the operation %q is active", d.Name,
				status.ProvisioningState, status.Operation, operation)
		}
		delete(active, d.ID)
	})
	if len(active) > 0 || clusters == 0 {
		t.Errorf("active operations without a cluster: %v; %d clusters", active, clusters)
	}
}

// findBusy returns an error that names a busy cluster, nil when there is none.
func (w *world) findBusy(t *testing.T) (err error) {
	w.each(t, "ArmCluster", func(d store.Document) {
		if !strings.Contains(string(d.Status), `"Succeeded"`) {
			err = fmt.Errorf("%s is %s", d.Name, d.Status)
		}
	})
	return err
}
