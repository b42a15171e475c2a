package arm_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
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

// everyStatement makes testKills the long run: minutes.
var everyStatement = flag.Bool("every-statement", false, "kill processes at every statement")

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
			prepared := 40 // clusters whose external authentications are changed
			// Requests are killed at every third statement, before and after it; the work at every 40th: its statements
			// repeat. With -every-statement both are killed at each.
			steps := map[killPhase]int{duringRequests: 3, duringWork: 40}
			if *everyStatement {
				prepared, steps = 400, map[killPhase]int{duringRequests: 1, duringWork: 1}
			}
			for i := range prepared {
				w.succeed(t, w.do(call{method: "PUT", path: authClusterPath(i), body: clusterBody()}).want(t, 201))
			}
			w.stopWork()
			kills, authKills := 0, 0
			for _, moment := range []pgtest.KillMoment{pgtest.BeforeStatement, pgtest.AfterStatement} {
				for _, phase := range []killPhase{duringRequests, duringWork} {
					step := steps[phase]
					for left, killed := 0, true; killed && left < 120; left += step {
						name := fmt.Sprintf("kill-%t-%s-%d", moment, phase, left)
						if killed = w.killAt(t, name, left, moment, phase, clusterCalls(name)); killed {
							kills++
						}
					}
					for left, killed := 0, true; killed && authKills < prepared; left += step {
						name := fmt.Sprintf("auth-%t-%s-%d", moment, phase, left)
						if killed = w.killAt(t, name, left, moment, phase, authCalls(authKills)); killed {
							authKills++ // the next kill has a cluster without operation
						}
					}
				}
			}
			if t.Logf("%d kills with clusters, %d with external authentications", kills, authKills); kills < 14 {
				t.Errorf("%d kills with clusters: the test misses statements", kills)
			}
			if authKills < 6 {
				t.Errorf("%d kills with external authentications: the test misses statements", authKills)
			}
			w.checkOperations(t)
			w.startWork()
			testsite.Eventually(t, "no resource is busy", func() error { return w.findBusy(t) })
			w.checkOperations(t)
		})
}

// clusterCalls create, change and delete a cluster.
func clusterCalls(name string) []call {
	path := strings.Replace(demo, "demo", name, 1)
	return []call{{method: "PUT", path: path, body: clusterBody()},
		{method: "PATCH", path: path, body: `{"tags":{"b":"2"}}`}, {method: "DELETE", path: path}}
}

func authClusterPath(i int) string {
	return strings.Replace(demo, "demo", fmt.Sprintf("auth-%d", i), 1)
}

// authCalls create, change and delete the external authentication of a cluster.
func authCalls(i int) []call {
	path := authClusterPath(i) + "/externalAuths/entra"
	return []call{{method: "PUT", path: path, body: authBody("https://login.example/t", "")},
		{method: "PATCH", path: path, body: `{"properties":{"issuer":{"url":"https://login.example/u"}}}`},
		{method: "DELETE", path: path}}
}

// killAt starts a process that is killed after so many statements, and lets it answer the calls. It reports whether the
// process was killed.
func (w *world) killAt(t *testing.T, name string, left int, moment pgtest.KillMoment, phase killPhase,
	calls []call) bool {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	process := pgtest.NewKillableProcess(left, moment, cancel)
	db, err := store.Open(ctx, store.Options{DSN: w.dsn, Migrations: access.Migrations(),
		Kinds: append(access.StoreKinds(), arm.StoreKinds()...), Hooks: store.Hooks{Dial: process.Dial},
		ResolveTimeout: 100 * time.Millisecond}.Patient())
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
	process.CountStatements()
	if phase == duringWork {
		group.Go(func() { _ = front.Run(ctx) }) // it ends with ctx only
	}
	for _, c := range calls {
		c.mode = mortal
		a := w.do(c)
		if process.IsKilled() {
			return true
		}
		if phase == duringRequests {
			continue // no process works on the operation: the next request is refused, or takes its place
		}
		if a.status >= 300 {
			t.Fatalf("%s %s: %d %s", c.method, c.path, a.status, a.raw)
		}
		link := a.header.Get("Azure-AsyncOperation")
		testsite.Eventually(t, "the operation ends or the process", func() error {
			if process.IsKilled() {
				return nil
			}
			view := w.do(call{mode: mortal, method: "GET", path: link, version: "-"})
			if view.body["status"] != "Succeeded" && !process.IsKilled() {
				return errors.New(view.raw)
			}
			return nil
		})
	}
	return process.IsKilled()
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

// checkOperations checks that a busy cluster or external authentication has exactly one active operation, and that an
// active operation has its resource.
func (w *world) checkOperations(t *testing.T) {
	t.Helper()
	active := map[string]string{} // operations by resource
	w.each(t, ops.Kind, func(d store.Document) {
		if d.DeletedAt == nil {
			active[d.Name] = d.ID
		}
	})
	resources := 0
	check := func(d store.Document, operand string) {
		resources++
		var status struct{ ProvisioningState, Operation string }
		if err := json.Unmarshal(d.Status, &status); err != nil {
			t.Fatal(err)
		}
		isBusy := status.ProvisioningState != "Succeeded"
		if operation, has := active[operand]; has != isBusy || has && operation != status.Operation {
			t.Errorf("%s %s is %s by the operation %s, and the operation %q is active", d.Kind, d.Name,
				status.ProvisioningState, status.Operation, operation)
		}
		delete(active, operand)
	}
	w.each(t, "ArmCluster", func(d store.Document) { check(d, d.ID) })
	w.each(t, "ArmExternalAuth", func(d store.Document) {
		var spec struct{ Parent string }
		if err := json.Unmarshal(d.Spec, &spec); err != nil {
			t.Fatal(err)
		}
		check(d, spec.Parent+"/externalAuths")
	})
	if len(active) > 0 || resources == 0 {
		t.Errorf("active operations without a resource: %v; %d resources", active, resources)
	}
}

// findBusy returns an error that names a busy cluster or external authentication, nil when there is none.
func (w *world) findBusy(t *testing.T) (err error) {
	for _, kind := range []store.Kind{"ArmCluster", "ArmExternalAuth"} {
		w.each(t, kind, func(d store.Document) {
			if !strings.Contains(string(d.Status), `"Succeeded"`) {
				err = fmt.Errorf("%s %s is %s", d.Kind, d.Name, d.Status)
			}
		})
	}
	return err
}
