package maestro

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"atoll.dev/api/work"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// TestI1I6PostgresIsKilledInMidStream kills the database again and again while
// works are created and reported; what was acknowledged arrives.
func TestI1I6PostgresIsKilledInMidStream(t *testing.T) {
	t.Parallel()
	pg := pgtest.StartServer(t)
	site := newSiteOn(t, pgtest.NewDatabase(t, pg.Cluster))
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	for n := range 90 {
		if n%30 == 15 {
			pg.Kill()
			pg.Start()
		}
		id := fmt.Sprintf("w%d", n)
		eventually(t, "the work is taken", func() error {
			err := src.publish(src.event(work.SpecCreate, "mc1", work.ID(id), 0, specData(configMap(id, n))))
			if isCode(err, "AlreadyExists") {
				return nil // the answer was lost, the commit was not
			}
			return err
		})
	}
	m.awaitAllObserved(90)
	if n := agent.count(); n != 90 {
		t.Errorf("the agent holds %d works", n)
	}
}

// childConfig is what a server in a process of its own needs. Its addresses are those of the test.
type childConfig struct {
	DSN, Broker, HTTP, GRPC string
}

// TestMain lets this binary be the server that TestI5I6TheServerIsKilled kills.
func TestMain(m *testing.M) {
	os.Exit(testsite.Main(func() int { return runTests(m) }, runChild))
}

func runTests(m *testing.M) int {
	// Most tests wait most of the time: for retries, leases, processes. More of them than there are cores run at once,
	// each with a database and a broker of its own. Those that measure time or memory run before them, alone.
	flag.Parse()
	isSet := false
	flag.Visit(func(f *flag.Flag) { isSet = isSet || f.Name == "test.parallel" })
	if !isSet {
		if err := flag.Set("test.parallel", strconv.Itoa(3*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	if err := goleak.Find(goleak.IgnoreTopFunction("atoll.dev/plane/planetest.Launch.func1")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

func runChild(ctx context.Context, c childConfig, id testsite.Identity, log *slog.Logger, up func()) error {
	http, err := testsite.ListenAgain(c.HTTP)
	if err != nil {
		return err
	}
	grpc, err := testsite.ListenAgain(c.GRPC)
	if err != nil {
		return err
	}
	s, err := New(ctx, Options{
		DSN: c.DSN, Broker: c.Broker, BrokerTLS: id.ClientTLS("broker"), HTTP: http, GRPC: grpc, HTTPTLS: id.ServerTLS(),
		GRPCTLS: id.ServerTLS(), MayCall: func(string) bool { return true },
		RetryBase: 200 * time.Millisecond, RetryMax: time.Second, DeleteMax: time.Second, Logger: log,
	})
	if err != nil {
		return err
	}
	up()
	return s.Run(ctx)
}

// spawn starts a server as a process, which the test kills and starts again at the same addresses.
func (s *site) spawn() (*instance, *testsite.Process) {
	s.T.Helper()
	c := childConfig{DSN: s.dsn, Broker: s.broker.Address, HTTP: testsite.FreeAddress(s.T),
		GRPC: testsite.FreeAddress(s.T)}
	process := s.Process("Maestro", pki.ServiceName("maestro"), c)
	process.Start()
	return &instance{t: s.T, site: s, url: "https://" + c.HTTP, target: c.GRPC,
		http: s.client(pki.ServiceName("platform-api"))}, process
}

// TestI5I6TheServerIsKilled kills the server, as a process, with SIGKILL while
// works are created, changed and deleted; nothing that it acknowledged is
// lost.
func TestI5I6TheServerIsKilled(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	site := newSite(t)
	m, process := site.spawn()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	acknowledged := map[work.ID]string{} // "" is gone
	for n := range 120 {
		if n%40 == 20 {
			// In the middle: some works are on their way.
			process.Kill()
			process.Start()
			src = m.source()
		}
		id, value := fmt.Sprintf("w%d", n), fmt.Sprint(random.IntN(1000))
		src.create("mc1", work.ID(id), value)
		acknowledged[work.ID(id)] = value
		if n > 0 && n%7 == 0 {
			old := fmt.Sprintf("w%d", random.IntN(n))
			if acknowledged[work.ID(old)] != "" {
				src.update("mc1", work.ID(old), value)
				acknowledged[work.ID(old)] = value
			}
		}
		if n%11 == 0 {
			src.remove("mc1", work.ID(id))
			acknowledged[work.ID(id)] = ""
		}
	}
	live := 0
	for _, v := range acknowledged {
		if v != "" {
			live++
		}
	}
	m.awaitAllObserved(live)
	for id, value := range acknowledged {
		if value != "" {
			agent.awaitValue(id, value)
		}
	}
	if n := agent.count(); n != live {
		t.Errorf("the agent holds %d of %d works", n, live)
	}
}
