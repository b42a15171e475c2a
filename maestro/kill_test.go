package maestro

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"atoll.dev/api/work"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
)

// TestI1I6PostgresIsKilledInMidStream kills the database again and again while
// works are created and reported; what was acknowledged arrives.
func TestI1I6PostgresIsKilledInMidStream(t *testing.T) {
	t.Parallel()
	pg := pgtest.Server(t)
	site := newSiteOn(t, pgtest.Database(t, pg.Cluster))
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

// childConfig is what a server in a process of its own needs.
type childConfig struct {
	DSN, Broker, Dir string
}

const childEnv = "ATOLL_TEST_MAESTRO"

// TestMain lets this binary be the server that TestI5I6TheServerIsKilled kills.
func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
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
	os.Exit(code)
}

func child(text string) error {
	var c childConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	tlsOf, err := childTLS(c.Dir)
	if err != nil {
		return err
	}
	listen := func() net.Listener {
		l, lerr := net.Listen("tcp", "127.0.0.1:0")
		err = errors.Join(err, lerr)
		return l
	}
	o := Options{
		DSN: c.DSN, Broker: c.Broker, BrokerTLS: tlsOf("broker"), HTTP: listen(), GRPC: listen(), HTTPTLS: tlsOf(
			""), GRPCTLS: tlsOf(""),
		MayCall: func(string) bool {
			return true
		}, RetryBase: 200 * time.Millisecond, RetryMax: time.Second, DeleteMax: time.Second,
	}
	if err != nil {
		return err
	}
	s, err := New(context.Background(), o)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s\n", o.HTTP.Addr(), o.GRPC.Addr())
	return s.Run(context.Background())
}

// spawn starts a server as a process, which is killed when the test ends.
func (s *site) spawn() (*instance, *exec.Cmd) {
	s.t.Helper()
	dir := s.t.TempDir()
	s.writeChildTLS(dir)
	config, err := json.Marshal(childConfig{DSN: s.dsn, Broker: s.broker.addr, Dir: dir})
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+string(config))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { kill(cmd) })
	line := make([]byte, 256)
	n, err := io.ReadAtLeast(out, line, 1)
	if err != nil {
		s.t.Fatalf("the server said nothing: %v", err)
	}
	rest, grpc, _ := strings.Cut(strings.TrimSpace(string(line[:n])), " ")
	return &instance{t: s.t, site: s, url: "https://" + rest, target: grpc,
		http: s.client(pki.ServiceName("platform-api"))}, cmd
}

func kill(cmd *exec.Cmd) {
	if cmd.ProcessState == nil {
		cmd.Process.Kill()
		cmd.Wait()
	}
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
			kill(process)
			m, process = site.spawn()
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
