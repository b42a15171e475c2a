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
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/dispatch"
	"atoll.dev/pki"
)

// quickRetries makes the repetitions of a test's server come early, so that
// what gets lost is mended while the test watches.
func quickRetries(o *Options) {
	o.RetryBase, o.RetryMax, o.DeleteMax = 100*time.Millisecond, time.Second, time.Second
}

// settled waits until every bundle of the list is observed at its version, as
// REST says, and nothing else is left.
func (i *instance) settled(want int) {
	i.t.Helper()
	eventually(i.t, fmt.Sprintf("%d bundles are settled", want), func() error {
		a, err := i.try("GET", "/api/maestro/v1/resource-bundles?size=65500", "")
		if err != nil {
			return err
		}
		var l api.ResourceBundleList
		if err := json.Unmarshal(a.body, &l); err != nil {
			return err
		}
		open := 0
		for _, b := range l.Items {
			if b.DeletedAt != nil || b.Status.ObservedVersion != b.Version {
				open++
			}
		}
		if open > 0 || len(l.Items) != want {
			return fmt.Errorf("%d of %d not settled, %d wanted", open, len(l.Items), want)
		}
		return nil
	})
}

// TestI6DroppedDuplicatedAndReorderedMessages loses, repeats and shuffles a
// good part of what goes either way, deletions included.
func TestI6DroppedDuplicatedAndReorderedMessages(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	var held []bus.Event
	agent.fault(func() {
		agent.lose = func(bus.Event) bool { return random.IntN(4) == 0 }
		agent.mangle = func(out []bus.Event) []bus.Event {
			switch random.IntN(5) {
			case 0:
				return nil // lost
			case 1:
				return append(out, out...) // twice
			case 2:
				held = append(held, out...) // later, behind others
				return nil
			case 3:
				out = append(out, held...)
				held = nil
			}
			return out
		}
	})
	src := m.source()
	const works = 40
	for n := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), "first")
	}
	for n := range works {
		src.update("mc1", work.ID(fmt.Sprintf("w%d", n)), "last")
		if n%4 == 0 {
			src.remove("mc1", work.ID(fmt.Sprintf("w%d", n)))
		}
	}
	m.settled(works - works/4)
	for n := range works {
		if n%4 != 0 {
			agent.awaitValue(work.ID(fmt.Sprintf("w%d", n)), "last")
		}
	}
	// A stale copy may have brought a deleted work back; a resync finds it.
	agent.fault(func() { agent.lose, agent.mangle = nil, nil })
	eventually(t, "the agent holds what is wanted and no more", func() error {
		if n := agent.count(); n != works-works/4 {
			agent.resync(t.Context())
			return fmt.Errorf("it holds %d works", n)
		}
		return nil
	})
}

// TestI6TheBrokerRestartsInMidStream takes the broker away while works are
// created and reported.
func TestI6TheBrokerRestartsInMidStream(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	created := 0
	for round := range 3 {
		for range 50 {
			if round > 0 && created%50 == 25 {
				site.broker.stop()
				site.broker.start()
			}
			id := fmt.Sprintf("w%d", created)
			eventually(t, "the work is taken", func() error {
				err := src.publish(src.event(work.SpecCreate, "mc1", work.ID(id), 0, specData(configMap(id, 1))))
				if isCode(err, "AlreadyExists") {
					return nil
				}
				return err
			})
			created++
		}
	}
	m.settled(created)
	if n := agent.count(); n != created {
		t.Errorf("the agent holds %d of %d works", n, created)
	}
}

// TestI6OfflineFor1000Changes has the agent away while its works are created,
// changed and deleted; it converges when it is back.
func TestI6OfflineFor1000Changes(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	for n := range 200 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), "old")
	}
	m.settled(200)
	agent.stop()
	change := func(n int) {
		id := fmt.Sprintf("w%d", n%300)
		switch {
		case n < 200:
			src.update("mc1", work.ID(id), n)
		case n < 300:
			src.create("mc1", work.ID(id), n)
		case n < 900:
			src.update("mc1", work.ID(id), n)
		default:
			src.remove("mc1", work.ID(id))
		}
	}
	for n := range 1000 {
		change(n)
	}
	begin := time.Now()
	agent.start()
	m.settled(200)
	took := time.Since(begin)
	t.Logf("converged in %v", took)
	if n := agent.count(); n != 200 {
		t.Errorf("the agent holds %d works", n)
	}
	agent.awaitValue("w299", 899)
	if d := m.bundle("w299").Delivery; d.AcknowledgedGeneration != 3 {
		t.Errorf("delivery %+v", d)
	}
}

// TestAFloodedConsumerDelaysNoOther gives an absent consumer thousands of
// works, and another one a single one.
func TestAFloodedConsumerDelaysNoOther(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("absent")
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	var group sync.WaitGroup
	for part := range 8 {
		group.Go(func() {
			for n := range 250 {
				src.create("absent", work.ID(fmt.Sprintf("a%d-%d", part, n)), n)
			}
		})
	}
	group.Wait()
	src.create("mc1", "w1", 1)
	agent.awaitValue("w1", 1)
	eventually(t, "the works are known", func() error {
		works, ahead := gauge(t, m, "maestro_pending_works"), gauge(t, m, "maestro_unacknowledged_works")
		if works != 2000 || ahead != 1000 {
			return fmt.Errorf("%v works, %v ahead", works, ahead)
		}
		return nil
	})
}

// TestI5I6TwoServersShareADatabase publishes to two servers, kills the one
// that delivers, and loses nothing.
func TestI5I6TwoServersShareADatabase(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	a := site.start(quickRetries)
	b := site.start(quickRetries)
	a.consumer("mc1")
	agent := site.agent("mc1")
	sources := []*source{a.source(), b.source()}
	for n := range 100 {
		sources[n%2].create("mc1", work.ID(fmt.Sprintf("w%d", n)), "one")
	}
	b.settled(100)
	divided(t, a, b)
	if slots := gauge(t, a, "maestro_delivery_slots") + gauge(t, b, "maestro_delivery_slots"); slots != dispatch.Slots {
		t.Errorf("two servers deliver for %v slots of %d", slots, dispatch.Slots)
	}
	a.end()
	for n := range 100 {
		sources[1].update("mc1", work.ID(fmt.Sprintf("w%d", n)), "two")
	}
	b.settled(100)
	for n := range 100 {
		agent.awaitValue(work.ID(fmt.Sprintf("w%d", n)), "two")
	}
}

// TestI8UnknownWorksStay: a database that was lost orders nothing deleted.
// What a source orders again goes on above the generation that the agent has.
func TestI8UnknownWorksStay(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "kept", 1)
	src.create("mc1", "orphan", 1)
	for n := range 5 {
		src.update("mc1", "kept", n+2)
	}
	m.settled(2)
	before, _ := agent.holds("kept")
	if before < 2 {
		t.Fatalf("generation %d", before)
	}
	m.end()
	agent.stop()

	site.dsn = pgtest.DSN(t) // all is lost
	m = site.start()
	c := m.consumer("mc1")
	if c.ComparedAt != nil {
		t.Fatalf("what the agent holds is known since %s, before it said so", c.ComparedAt)
	}
	agent.start()
	eventually(t, "the unknown works are reported", func() error {
		var c2 api.Consumer
		m.want(http.StatusOK, "GET", c.Href, "").into(t, &c2)
		if c2.UnknownWorks != 2 || c2.ComparedAt == nil {
			return fmt.Errorf("%d unknown works, compared at %v", c2.UnknownWorks, c2.ComparedAt)
		}
		return nil
	})
	if n := agent.count(); n != 2 {
		t.Fatalf("the agent holds %d works", n)
	}
	src = m.source()
	src.create("mc1", "kept", "again")
	agent.awaitValue("kept", "again")
	m.settled(1)
	if after, _ := agent.holds("kept"); after <= before {
		t.Errorf("generation %d after %d", after, before)
	}
	if n := agent.count(); n != 2 {
		t.Errorf("the agent holds %d works: absence was taken for a deletion", n)
	}
	if deleted := agent.received(work.SpecDelete); len(deleted) != 0 {
		t.Errorf("deletions %+v", deleted)
	}
}

// TestI8AnOlderDatabaseGoesAboveItsAgents: the bundle was ordered again before
// the agent could say what it has.
func TestI8AnOlderDatabaseGoesAboveItsAgents(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(quickRetries)
	m.consumer("mc1")
	agent := site.agent("mc1")
	agent.mu.Lock()
	agent.works["w1"] = &agentWork{generation: 9, data: specData(configMap("w1", "old")),
		status: []byte(`{"conditions":[]}`), hash: "x"}
	agent.mu.Unlock()
	src := m.source()
	src.create("mc1", "w1", "new")
	agent.awaitValue("w1", "new")
	m.settled(1)
	if generation, _ := agent.holds("w1"); generation != 10 {
		t.Errorf("the agent has generation %d", generation)
	}
	if b := m.bundle("w1"); b.Version != 1 || b.Status.ObservedVersion != 1 {
		t.Errorf("version %d, observed %d: the source has ordered it once", b.Version, b.Status.ObservedVersion)
	}
}

// TestI9ABuriedWorkIsDeletedAgain: an agent that brings back what was deleted,
// from an old message or a backup, is told so.
func TestI9ABuriedWorkIsDeletedAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	c := m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.settled(1)
	agent.mu.Lock()
	backup := *agent.works["w1"]
	agent.mu.Unlock()
	src.remove("mc1", "w1")
	m.settled(0)
	agent.mu.Lock()
	agent.works["w1"] = &backup
	agent.mu.Unlock()
	agent.resync(t.Context())
	eventually(t, "it is deleted again", func() error {
		if n := agent.count(); n != 0 {
			return fmt.Errorf("%d works", n)
		}
		return nil
	})
	events := agent.received(work.SpecResyncResponse)
	if len(events) != 1 || events[0].Extensions[work.ExtDeletionTimestamp] == "" || len(events[0].Data) != 0 {
		t.Errorf("events %+v", events)
	}
	var c2 api.Consumer
	m.want(http.StatusOK, "GET", c.Href, "").into(t, &c2)
	if c2.UnknownWorks != 0 {
		t.Errorf("%d unknown works: its end is known", c2.UnknownWorks)
	}
}

// TestI6AWipedAgentGetsEverythingAgain also when all was acknowledged.
func TestI6AWipedAgentGetsEverythingAgain(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	for n := range 20 {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	m.settled(20)
	agent.stop()
	agent.wipe()
	agent.start()
	eventually(t, "it holds everything", func() error {
		if n := agent.count(); n != 20 {
			return fmt.Errorf("%d works", n)
		}
		return nil
	})
}

// TestI7AnAgentSpeaksForItselfOnly: an event that claims another cluster is
// dropped, and so is one about another consumer's bundle.
func TestI7AnAgentSpeaksForItselfOnly(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	m.consumer("mc2")
	victim, liar := site.agent("mc1"), site.agent("mc2")
	src := m.source()
	src.create("mc1", "w1", 1)
	m.settled(1)
	src.remove("mc1", "w1")
	victim.stop()
	src2 := m.source()
	src2.create("mc1", "w2", 1)

	gone := liar.message(work.StatusUpdate, []byte(`{"conditions":[{"type":"Deleted","status":"True"}]}`))
	for k, v := range map[string]string{work.ExtResourceID: "w2", work.ExtResourceVersion: "1",
		work.ExtOriginalSource: "maestro", work.ExtSequenceID: "1"} {
		gone.Extensions[k] = v
	}
	liar.send(t.Context(), gone)
	claimed := gone
	claimed.Extensions = map[string]string{}
	for k, v := range gone.Extensions {
		claimed.Extensions[k] = v
	}
	claimed.Extensions[work.ExtClusterName] = "mc1"
	liar.send(t.Context(), claimed)
	eventually(t, "both are dropped", func() error {
		if n := counter(t, m, "maestro_events_dropped_total", "reason", bundle.DropConsumer); n < 2 {
			return fmt.Errorf("%v dropped", n)
		}
		return nil
	})
	if b := m.bundle("w2"); b.Status.ObservedVersion != 0 {
		t.Errorf("status %+v", b.Status)
	}
	if lists := liar.received(work.SpecCreate); len(lists) != 0 {
		t.Errorf("another consumer's works came: %+v", lists)
	}
}

func TestWhatIsDownIs503(t *testing.T) {
	pg := pgtest.Server(t)
	site := newSiteOn(t, pgtest.Database(t, pg.Cluster))
	m := site.start()
	c := m.consumer("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)

	within := func(call func() (answer, error)) {
		t.Helper()
		begin := time.Now()
		a, err := call()
		if err != nil || a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "" {
			t.Errorf("%v: %d %s", err, a.status, a.body)
		}
		if took := time.Since(begin); took > 4*time.Second { // 2 s, and what a busy machine adds
			t.Errorf("answered after %v", took)
		}
	}
	// The broker: what changes is refused, what reads is not.
	site.broker.stop()
	eventually(t, "the broker's absence counts", func() error { return not(m.server.accepting()) })
	within(func() (answer, error) { return m.try("POST", "/api/maestro/v1/consumers", `{"name":"mc2"}`) })
	within(func() (answer, error) { return m.try("DELETE", "/api/maestro/v1/resource-bundles/w1", "") })
	if err := src.publish(src.event(work.SpecCreate, "mc1", "w2", 0, specData(configMap("x", 1)))); !isCode(
		err, "Unavailable") {
		t.Errorf("publish: %v", err)
	}
	m.want(http.StatusOK, "GET", c.Href, "")
	if missing := m.ops.Missing(t.Context()); len(missing) != 1 || missing[0].Name != "broker" {
		t.Errorf("missing %v", missing)
	}
	site.broker.start()
	eventually(t, "writes are taken again", m.server.accepting)

	// PostgreSQL, killed.
	pg.Kill()
	within(func() (answer, error) { return m.try("GET", c.Href, "") })
	within(func() (answer, error) { return m.try("POST", "/api/maestro/v1/consumers", `{"name":"mc2"}`) })
	begin := time.Now()
	if err := src.publish(src.event(work.SpecCreate, "mc1", "w2", 0, specData(configMap("x", 1)))); !isCode(
		err, "Unavailable") || time.Since(begin) > 4*time.Second {
		t.Errorf("publish: %v after %v", err, time.Since(begin))
	}
	pg.Start()
	m.awaitReady()
	agent := site.agent("mc1")
	agent.awaitValue("w1", 1)
	src.create("mc1", "w3", 3)
	agent.awaitValue("w3", 3)
	m.settled(2)
}

func not(err error) error {
	if err == nil {
		return errors.New("not yet")
	}
	return nil
}

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
	m.settled(90)
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
	m.settled(live)
	for id, value := range acknowledged {
		if value != "" {
			agent.awaitValue(id, value)
		}
	}
	if n := agent.count(); n != live {
		t.Errorf("the agent holds %d of %d works", n, live)
	}
}
