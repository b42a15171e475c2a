package clmfaults

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
	"atoll.dev/adapters"
	"atoll.dev/bus"
	"atoll.dev/clm"
	"atoll.dev/sentinel"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

const entities = `
entities:
- {kind: Cluster, plural: clusters, required_adapters: [cl-namespace, cl-second]}
- {kind: NodePool, plural: nodepools, parent_kind: Cluster, on_parent_delete: cascade, required_adapters: [np-configmap]}
- {kind: Note, plural: notes, parent_kind: Cluster, on_parent_delete: cascade}
`

// childConfig describes a process.
type childConfig struct {
	Kind     string // broker, clm, sentinel or adapter
	Name     string
	Broker   string   // address
	DSN      string   // of clm and sentinel
	HTTP     string   // address of clm; adapters call it there
	Adapters []string // "name=directory"
}

func TestMain(m *testing.M) { os.Exit(testsite.Main(m.Run, runChild)) }

// runChild runs the part that a process is.
func runChild(ctx context.Context, c childConfig, id testsite.Identity, log *slog.Logger, up func()) error {
	switch c.Kind {
	case "broker":
		return c.broker(ctx, id, log, up)
	case "clm", "sentinel":
		return c.region(ctx, id, log, up)
	}
	return c.adapters(ctx, id, log, up)
}

func (c childConfig) broker(ctx context.Context, id testsite.Identity, log *slog.Logger, up func()) error {
	l, err := testsite.ListenAgain(c.Broker)
	if err != nil {
		return err
	}
	b, err := bus.NewBroker(bus.BrokerOptions{TLS: id.ServerTLS(), Logger: log})
	if err != nil {
		return err
	}
	up()
	return b.Serve(ctx, l)
}

// bus returns the options with which the process connects to the broker.
func (c childConfig) bus(id testsite.Identity) bus.ClientOptions {
	return bus.ClientOptions{Addr: c.Broker, TLS: id.ClientTLS("broker")}
}

// region runs an API server or a sentinel.
func (c childConfig) region(ctx context.Context, id testsite.Identity, log *slog.Logger, up func()) error {
	registry, err := clm.ParseRegistry([]byte(entities))
	if err != nil {
		return err
	}
	db, err := openWithRetries(ctx, clm.DatabaseOptions{DSN: c.DSN, Registry: registry, MaxConns: 8, Logger: log})
	if err != nil {
		return err
	}
	defer db.Close()
	if c.Kind == "clm" {
		l, err := testsite.ListenAgain(c.HTTP)
		if err != nil {
			return err
		}
		s, err := clm.New(clm.Options{Database: db, Plain: l, Identify: (&clm.Identity{Open: true}).Identify,
			Logger: log})
		if err != nil {
			return err
		}
		up()
		return s.Run(ctx)
	}
	o := sentinel.Options{
		Store: db.Store, Feed: db.Feed, Kinds: testworld.SentinelKinds(registry), Requests: clm.RequestKind,
		Name: c.Name, Logger: log, Bus: c.bus(id), Policy: sentinel.Policy{MaxRetry: 4 * time.Second},
	}
	o.Bus.ClientID = "clm-" + c.Name
	s, err := sentinel.New(ctx, o)
	if err != nil {
		return err
	}
	up()
	return s.Run(ctx)
}

// openWithRetries opens the database. It retries for 30 s while the database is down.
func openWithRetries(ctx context.Context, o clm.DatabaseOptions) (*clm.Database, error) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for try := 0; ; try++ {
		db, err := clm.Open(ctx, o)
		if err == nil || try > 300 || ctx.Err() != nil {
			return db, err
		}
		<-tick.C
	}
}

// adapters runs adapters with objects in memory.
func (c childConfig) adapters(ctx context.Context, id testsite.Identity, log *slog.Logger, up func()) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, named := range c.Adapters {
		name, dir, _ := strings.Cut(named, "=")
		text, err := adapters.Files.ReadFile(dir + "/config.yaml")
		if err != nil {
			return err
		}
		conf, err := adapter.ParseConfig(dir, bytes.ReplaceAll(text, []byte(dir), []byte(name)), func(string) string {
			return ""
		})
		if err != nil {
			return err
		}
		conf.Clients.API.BaseURL = "http://" + c.HTTP
		if text, err = adapters.Files.ReadFile(dir + "/task.yaml"); err != nil {
			return err
		}
		task, err := adapter.ParseTask(dir, text, os.ReadFile)
		if err != nil {
			return err
		}
		memory := transporttest.NewMemory()
		memory.OnWrite = func(o adapter.Object) { o["status"] = map[string]any{"phase": "Active"} }
		engine, err := adapter.New(adapter.Options{Config: conf, Task: task, Transport: memory, API: http.DefaultClient,
			Log: log})
		if err != nil {
			return err
		}
		w := adapter.NewWorker(adapter.WorkerOptions{Name: name, Topic: conf.Clients.Broker.Topic, Engine: engine,
			Watcher: memory, Bus: c.bus(id), Parallel: 4, Log: log})
		group.Go(func() error { return w.Run(ctx) })
	}
	up()
	return group.Wait()
}
