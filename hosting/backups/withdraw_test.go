package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
)

// gatedStore is one side's way to a store. It stops before a call, until release is closed.
type gatedStore struct {
	backup.Store
	mu      sync.Mutex
	calls   int // since arm
	holdAt  int // number of the call; 0: none
	release chan struct{}
}

func (g *gatedStore) arm(holdAt int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls, g.holdAt = 0, holdAt
}

func (g *gatedStore) isReached() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.calls >= g.holdAt
}

func (g *gatedStore) pass() {
	g.mu.Lock()
	g.calls++
	isHeld := g.calls == g.holdAt
	g.mu.Unlock()
	if isHeld {
		<-g.release
	}
}

func (g *gatedStore) Put(ctx context.Context, name string, content []byte) error {
	g.pass()
	return g.Store.Put(ctx, name, content)
}

func (g *gatedStore) Get(ctx context.Context, name string) ([]byte, error) {
	g.pass()
	return g.Store.Get(ctx, name)
}

// side is the Backups of one management cluster, which a test can end and start again.
type side struct {
	*Backups
	o   Options
	end func()
}

func (s *side) start(t *testing.T) {
	s.Backups = New(s.o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	b := s.Backups
	go func() { done <- b.Run(ctx, func(controlplane.ID) {}) }()
	synctest.Wait()
	s.end = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// The source withdraws its order while the target waits before one of its calls to the store, or the target begins
// while the source waits: before each of the calls, in turn. The two sides never both have the plane, and in the end
// one of them has it, also when one side is killed meanwhile and starts again.
func TestI12AWithdrawnMoveLeavesThePlaneOnExactlyOneSide(t *testing.T) {
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		t.Fatal(err)
	}
	outcomes := map[string]int{}
	cases := []struct{ held, killed string }{{"target", "nobody"}, {"target", "target"}, {"target", "source"},
		{"source", "nobody"}, {"source", "target"}, {"source", "source"}}
	for _, c := range cases {
		for at, reached := 1, true; reached; at++ {
			dir := t.TempDir()
			t.Run(fmt.Sprintf("hold %s/kill %s/call %d", c.held, c.killed, at), func(t *testing.T) {
				makeFile(t, filepath.Join(dir, "source", "hc", "etcd", "member", "snap", "db"), "data")
				makeFile(t, filepath.Join(dir, "source", "hc", "pki", "ca.crt"), "authority")
				synctest.Test(t, func(t *testing.T) {
					store, id := storetest.NewMemory(), controlplane.ID{Namespace: "a", Name: "hc"}
					options := func(name string, store backup.Store) Options {
						return Options{Store: store, KMS: keys, Spool: filepath.Join(dir, name, "spool"), Endpoint: "127.0.0.1:2",
							Log:   slog.New(slog.NewTextHandler(io.Discard, nil)),
							Dir:   func(id controlplane.ID) string { return filepath.Join(dir, name, id.Name) },
							State: func(id controlplane.ID) string { return filepath.Join(dir, name, "state", id.Name) },
							Staging: func(id controlplane.ID, order string) string {
								return filepath.Join(dir, name, "staging", id.Name, order)
							}}
					}
					gates := map[string]*gatedStore{"source": {Store: store}, "target": {Store: store}}
					source := &side{o: options("source", gates["source"])}
					source.start(t)
					if err := source.take(context.Background(), id); err != nil { // as its follower does
						t.Fatal(err)
					}
					// The source leaves, and its data is stored before the target asks for it: the request is made
					// here.
					if err := backup.PutHandoverRequest(context.Background(), store, keys, backup.Plane(id), "m1",
						backup.HandoverRequest{Endpoint: "127.0.0.1:2"}); err != nil {
						t.Fatal(err)
					}
					source.Leave(id, "m1")
					<-time.After(10 * time.Second)
					source.Stopped(id, controlplane.Shown{})
					<-time.After(10 * time.Second)
					if l := source.Leave(id, "m1"); l.State != controlplane.LeavingDone {
						t.Fatalf("the plane has not left: %+v", l)
					}

					gate := gates[c.held]
					gate.release = make(chan struct{})
					gate.arm(at)
					target := &side{o: options("target", gates["target"])}
					target.start(t)
					order := controlplane.RestoreOrder{ID: controlplane.ArrivalOrder("m1"), Source: id}
					arrival := func() controlplane.PreparationState { return target.Prepare(id, order).State }
					first, second := func() { arrival() }, func() { source.Stay(id) }
					if c.held == "source" {
						first, second = second, first
					}
					first()
					<-time.After(time.Minute)
					reached = gate.isReached()
					second()
					<-time.After(time.Minute)
					before := source.IsSuperseded(id)
					if !before && arrival() == controlplane.PreparationDone {
						t.Error("both sides may run the plane before the held side goes on")
					}
					close(gate.release)
					if killed := map[string]*side{"source": source, "target": target}[c.killed]; killed != nil {
						killed.end()
						killed.start(t)
					}
					source.Stay(id)
					arrival()
					<-time.After(time.Minute)
					source.Stay(id)
					<-time.After(time.Minute)
					arrived, stays := arrival() == controlplane.PreparationDone, !source.IsSuperseded(id)
					switch {
					case arrived && stays:
						t.Error("both sides may run the plane")
					case !arrived && !stays:
						t.Error("no side may run the plane")
					case !before && !stays:
						t.Error("the source may not run a plane that it has taken back")
					case arrived:
						outcomes["arrived"]++
					default:
						outcomes["withdrawn"]++
						if l := source.Leave(id, "m1"); l.State != controlplane.LeavingRefused {
							t.Errorf("the same order after its withdrawal: %+v", l)
						}
						source.Stay(id)
						if err := source.claimant(id).Claim(context.Background()); err != nil {
							t.Errorf("the backups of the plane that stays: %v", err)
						}
						if s := arrival(); s != controlplane.PreparationFailed {
							t.Errorf("the target's arrival is %s", s)
						}
						_, err := store.Get(context.Background(), "a/hc/move-m1/handover")
						if !errors.Is(err, backup.ErrNotFound) {
							t.Errorf("the data is still in the store: %v", err)
						}
					}
					target.end()
					source.end()
				})
			})
			if at > 100 {
				t.Fatal("the target's calls have no end")
			}
		}
	}
	t.Logf("outcomes: %v", outcomes)
	if outcomes["arrived"] == 0 || outcomes["withdrawn"] == 0 {
		t.Errorf("only one outcome was tested: %v", outcomes)
	}
}
