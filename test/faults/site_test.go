package faults

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	kuberest "k8s.io/client-go/rest"

	"atoll.dev/agent"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// childConfig is the configuration of a child process.
type childConfig struct {
	Kind   string // maestro or agent
	Broker string

	DSN, HTTP, GRPC string // of a server

	Consumer, Kube, Store string // of an agent
	Wall                  string // file with the error of its clock, in nanoseconds
	CompareEvery          time.Duration
}

func TestMain(m *testing.M) { os.Exit(testsite.Main(m.Run, runChild)) }

// runChild runs the server or the agent that a process is.
func runChild(ctx context.Context, c childConfig, id testsite.Identity, log *slog.Logger, up func()) error {
	if c.Kind == "agent" {
		return c.agent(ctx, id, log, up)
	}
	return c.server(ctx, id, log, up)
}

func (c childConfig) agent(ctx context.Context, id testsite.Identity, log *slog.Logger, up func()) error {
	a, err := agent.New(agent.Options{
		Consumer: work.Consumer(c.Consumer), Kube: &kuberest.Config{Host: c.Kube}, BrokerHost: "broker",
		Bus:     bus.ClientOptions{Addr: c.Broker, TLS: id.ClientTLS("broker")},
		DataDir: c.Store, Log: log, CompareEvery: c.CompareEvery, Wall: stepClock(c.Wall),
	})
	if err != nil {
		return err
	}
	up()
	return a.Run(ctx)
}

func (c childConfig) server(ctx context.Context, id testsite.Identity, log *slog.Logger, up func()) error {
	var failed error
	listen := func(addr string) net.Listener {
		l, err := testsite.ListenAgain(addr)
		failed = errors.Join(failed, err)
		return l
	}
	o := maestro.Options{
		DSN: c.DSN, Broker: c.Broker, BrokerTLS: id.ClientTLS("broker"),
		HTTP: listen(c.HTTP), GRPC: listen(c.GRPC), HTTPTLS: id.ServerTLS(), GRPCTLS: id.ServerTLS(),
		MayCall:   func(string) bool { return true },
		RetryBase: 200 * time.Millisecond, RetryMax: 2 * time.Second, DeleteMax: 2 * time.Second, Logger: log,
		BrokerGrace: time.Minute,
	}
	if failed != nil {
		return failed
	}
	s, err := maestro.New(ctx, o)
	if err != nil {
		return err
	}
	up()
	return s.Run(ctx)
}

// stepClock returns a clock with the error that a file holds at the time of the reading.
func stepClock(file string) func(time.Time) time.Time {
	return func(t time.Time) time.Time {
		text, err := os.ReadFile(file)
		if err != nil {
			return t
		}
		off, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return t.Add(time.Duration(off))
	}
}

// process is a server or an agent that the test kills and starts again, with the present configuration.
type process struct {
	*testsite.Process
	config childConfig
}

func newProcess(s *testsite.Site, name pki.Name, c childConfig) *process {
	s.T.Helper()
	return &process{s.Process(strings.TrimSpace(c.Kind+" "+c.Consumer), name, c), c}
}

func (p *process) Start() {
	p.Configure(p.config)
	p.Process.Start()
}
