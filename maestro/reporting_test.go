package maestro

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"atoll.dev/api/clm"
	"atoll.dev/api/work"
	"atoll.dev/client/clmclient"
	lifecycle "atoll.dev/clm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/presence"
	"atoll.dev/test/testsite"
)

// manager is a real lifecycle manager of a test.
func manager(t *testing.T) *clmclient.Client {
	t.Helper()
	registry, err := lifecycle.ParseRegistry([]byte(
		`entities: [{kind: ManagementCluster, plural: managementclusters}]`))
	if err != nil {
		t.Fatal(err)
	}
	db, err := lifecycle.Open(t.Context(), lifecycle.DatabaseOptions{DSN: pgtest.DSN(t), Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := lifecycle.New(lifecycle.Options{Database: db, HTTP: l, Identify: func(r *http.Request) (lifecycle.Caller,
		error) {
		// who registers them is another
		return lifecycle.Caller{Name: "system:maestro", System: true, Reporter: r.Method != http.MethodPost}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	testsite.Run(t, "CLM", s.Run)
	c, err := clmclient.New(clmclient.Options{Endpoint: "http://" + l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// An agent that comes is known to the lifecycle manager at once, one that goes
// after a while, and its heartbeats change nothing but a time.
func TestPresenceIsReported(t *testing.T) {
	t.Parallel()
	c := manager(t)
	mc, err := c.Create(t.Context(), presence.ManagementClusters, clm.ResourceCreate{Kind: "ManagementCluster", Name: "edge-1",
		Spec: json.RawMessage(`{}`)}, "")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	i := s.start(func(o *Options) { o.CLM, o.LostAfter, o.ReportEvery = c, time.Second, 20*time.Millisecond })
	i.consumer("edge-1")
	latestReport := func() (clm.AdapterStatus, error) {
		all, err := c.Statuses(t.Context(), presence.ManagementClusters, mc.ID)
		if err != nil || len(all) == 0 {
			return clm.AdapterStatus{}, fmt.Errorf("nothing was reported: %v", err)
		}
		return all[0], nil
	}
	await := func(want string) (last clm.AdapterStatus) {
		t.Helper()
		eventually(t, want, func() error {
			r, err := latestReport()
			if err != nil {
				return err
			}
			if got := r.Adapter + " " + r.Conditions[0].Type + " " + r.Conditions[0].Status; got != want {
				return fmt.Errorf("it is %s", got)
			}
			last = r
			return nil
		})
		return last
	}
	version := func() string {
		r, err := c.Get(t.Context(), presence.ManagementClusters, mc.ID, "")
		if err != nil {
			t.Fatal(err)
		}
		return r.ETag
	}
	a := s.agent("edge-1")
	still := beat(a)
	var first clm.AdapterStatus
	eventually(t, "the time of the report moves, and nothing else", func() error {
		first = await("maestro Available True")
		before := version()
		eventually(t, "the time of the report moves", func() error {
			r, err := latestReport()
			if err == nil && !r.LastReportTime.After(first.LastReportTime) {
				err = fmt.Errorf("still %s", r.LastReportTime)
			}
			return err
		})
		after := version()
		if end, err := latestReport(); err != nil || end.Conditions[0] != first.Conditions[0] {
			return fmt.Errorf("it was lost meanwhile: %v", err) // the machine is slow
		}
		if after != before {
			t.Fatalf("a heartbeat made version %s of %s", after, before)
		}
		return nil
	})
	still()
	a.stop()
	lost := await("maestro Available False")
	var data struct {
		LastSeen time.Time `json:"last_seen"`
	}
	if err := json.Unmarshal(lost.Data, &data); err != nil || data.LastSeen.Before(first.LastReportTime.Truncate(
		time.Millisecond)) || lost.Conditions[0].Reason != "Lost" {
		t.Errorf("it is lost so: %s, %+v, %v", lost.Data, lost.Conditions, err)
	}
	a.start()
	defer beat(a)()
	await("maestro Available True")
}

// The report of hosting in an agent's heartbeats reaches the lifecycle manager. A heartbeat without one ends it, and a
// malformed one changes nothing. Of one that the lifecycle manager refuses only the presence is reported.
func TestTheReportOfHostingReachesTheLifecycleManager(t *testing.T) {
	t.Parallel()
	c := manager(t)
	mc, err := c.Create(t.Context(), presence.ManagementClusters, clm.ResourceCreate{Kind: "ManagementCluster",
		Name: "edge-1", Spec: json.RawMessage(`{}`)}, "")
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	i := s.start(func(o *Options) { o.CLM, o.ReportEvery = c, 20*time.Millisecond })
	i.consumer("edge-1")
	a := s.agent("edge-1")
	for _, step := range []struct{ seen, want string }{
		{``, `{}`},
		{`{"hosting":{"warm_planes":2,"capacity":{"planes":40},"more":1}}`,
			`{"hosting":{"warm_planes":2,"capacity":{"planes":40}}}`},
		{`{"hosting":{"warm_planes":-2}}`, `{"hosting":{"warm_planes":2,"capacity":{"planes":40}}}`},
		{`{"hosting":{"capacity":{"\u0000":1}}}`, `{"hosting":{"warm_planes":2,"capacity":{"planes":40}}}`},
		{`{}`, `{}`},
		{`{"hosting":{"warm_planes":0}}`, `{"hosting":{"warm_planes":0}}`},
	} {
		eventually(t, step.want, func() error {
			a.send(t.Context(), a.message(work.Seen, []byte(step.seen)))
			all, err := c.Statuses(t.Context(), presence.ManagementClusters, mc.ID)
			if err != nil || len(all) == 0 {
				return fmt.Errorf("nothing was reported: %v", err)
			}
			if got := string(all[0].Data); got != step.want {
				return fmt.Errorf("after %s the data is %s", step.seen, got)
			}
			return nil
		})
	}
	before := time.Now() // the servers of a test have one clock
	refused := map[work.Consumer]string{"edge-1": `{"warm_planes":0,"capacity":{"\u0000":1}}`}
	if err := i.server.contacts.Record(t.Context(), map[work.Consumer]time.Time{"edge-1": before}, refused); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the presence without the report of hosting", func() error {
		all, err := c.Statuses(t.Context(), presence.ManagementClusters, mc.ID)
		if err != nil {
			return err
		}
		if got := string(all[0].Data); got != `{}` || all[0].Conditions[0].Status != "True" {
			return fmt.Errorf("the data is %s, %+v", got, all[0].Conditions[0])
		}
		return nil
	})
}

// beat has an agent say something all the time, until the function that it
// returns is called.
func beat(a *scriptedAgent) (still func()) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				a.resync(ctx)
			}
		}
	}()
	return func() { stop(); <-done }
}
