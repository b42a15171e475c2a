package maestro

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/quick"
	"atoll.dev/maestro/wire"
	"atoll.dev/pki"
)

// A subscriber that never reads, while 4,000 statuses flow, delays no other subscriber and costs the server a bounded
// queue. The server ends its stream with the reason, and it gets everything when it subscribes again. The medians of
// the times before and after it bound the median beside it, because the load of the machine may change meanwhile.
func TestASubscriberThatNeverReadsSlowsNobody(t *testing.T) {
	quick.Slow(t, "fills the buffers of a connection with events")
	site := newSite(t)
	m := site.start(func(o *Options) { o.Stuck = 10 * time.Second }) // a busy machine makes any reader slow
	m.consumer("mc1")
	src := m.source()
	agent := site.agent("mc1")
	good := m.subscribe(t, testSource)
	const works, round = 100, 50
	for n := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	for range works {
		good.next()
	}
	// flow has so many statuses reported, a few at a time, and returns how long
	// each took to the good subscriber.
	turn := 0
	flow := func(statuses int) (took []time.Duration) {
		for range statuses / round {
			turn++
			sent := map[string]time.Time{}
			for n := range round {
				id := fmt.Sprintf("w%d", (turn*round+n)%works)
				sent[id] = time.Now()
				agent.report(work.ID(id), fmt.Sprintf("Turn%d", turn))
			}
			for len(sent) > 0 {
				ev := good.next()
				id := ev.Extensions[work.ExtResourceID]
				if at, mine := sent[id]; mine && strings.Contains(string(ev.Data), fmt.Sprintf("Turn%d\"", turn)) {
					took = append(took, time.Since(at))
					delete(sent, id)
				}
			}
		}
		slices.Sort(took)
		return took
	}
	median := func(took []time.Duration) time.Duration { return took[len(took)/2] }
	before := median(flow(500))
	heap := func() int64 {
		runtime.GC()
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	deaf, err := m.dial(pki.ServiceName("platform-api")).Subscribe(ctx, &cloudevents.SubscriptionRequest{
		Source: testSource})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deaf.Header(); err != nil {
		t.Fatal(err)
	}
	empty := heap()
	with := median(flow(4_000))
	grown := heap() - empty
	eventually(t, "the server ends the stream", func() error { // a fast machine has reported 4,000 statuses before
		if n := gauge(t, m, "maestro_grpc_streams"); n != 1 {
			flow(round)
			return fmt.Errorf("%v streams are open", n)
		}
		return nil
	})
	if grown > 80<<20 {
		t.Errorf("%d MB more in memory", grown>>20)
	}
	got := 0
	for err = nil; err == nil; got++ {
		_, err = deaf.Recv()
	}
	if !isCode(err, "ResourceExhausted") || !strings.Contains(err.Error(), "reconnect and resync") {
		t.Errorf("after %d events it ended with %v", got, err)
	}
	after := median(flow(500))
	t.Logf("median before it %s, beside it %s, after it %s; %d KB more in memory", before, with, after, grown>>10)
	if with > 3*max(before, after)+2*time.Second {
		t.Errorf("a subscriber that never reads delays others: median %s, before it %s, after it %s", with, before, after)
	}
	// It subscribes again and requests everything, in the latest state.
	again := m.subscribe(t, testSource)
	ask(t, again.client, testSource)
	have := map[string]bool{}
	for len(have) < works {
		ev := again.next()
		have[ev.Extensions[work.ExtResourceID]] = true
	}
}

func ask(t *testing.T, c cloudevents.CloudEventServiceClient, name string, hashes ...work.StatusHash) {
	t.Helper()
	data, err := json.Marshal(work.StatusHashes{Hashes: hashes})
	if err != nil {
		t.Fatal(err)
	}
	src := &source{t: t, client: c, name: name}
	if err := src.publish(wire.ToProto(bus.Event{DataContentType: wire.JSONType, ID: uuid.NewString(), Source: name, Type: work.StatusResync,
		Data: data})); err != nil {
		t.Fatal(err)
	}
}

// Who asks is answered, on the connection on which it asks; others hear
// nothing of it.
func TestAResyncIsAnsweredToTheAskerOnly(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone)
	m.consumer("mc1")
	m.grpcAgent("mc1")
	src := m.source()
	const works = 250 // more than a page
	for n := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	for n := range works {
		m.awaitObserved(work.ID(fmt.Sprintf("w%d", n)), 1)
	}
	asker, other := m.subscribe(t, testSource), m.subscribe(t, testSource)
	ask(t, asker.client, testSource)
	ask(t, asker.client, testSource, work.StatusHash{ID: "w7", Hash: "old"}, work.StatusHash{ID: "w8",
		Hash: hexHash("hash-w8-1")})
	got := map[string]int{}
	for range works + 1 {
		got[asker.next().Extensions[work.ExtResourceID]]++
	}
	if len(got) != works || got["w7"] != 2 || got["w8"] != 1 {
		t.Errorf("%d works, w7 %d times, w8 %d times", len(got), got["w7"], got["w8"])
	}
	select {
	case ev := <-other.events:
		t.Errorf("another subscriber got %s", ev.Extensions[work.ExtResourceID])
	default:
	}
	// A proxy stands between: the question comes on a connection of its own.
	ask(t, src.client, testSource, work.StatusHash{ID: "w9", Hash: "old"})
	for _, s := range []*statusStream{asker, other} {
		if id := s.next().Extensions[work.ExtResourceID]; id != "w9" {
			t.Errorf("got %s", id)
		}
	}
	// Another source's bundles are nobody's business.
	stranger := m.subscribe(t, "stranger")
	ask(t, stranger.client, "stranger")
	ask(t, stranger.client, "stranger", work.StatusHash{ID: "w1", Hash: "old"})
	m.grpcAgentReports(t, "mc1", asker)
	select {
	case ev := <-stranger.events:
		t.Errorf("another source got %s", ev.Extensions[work.ExtResourceID])
	default:
	}
}

// grpcAgentReports makes a change and waits until a stream has it.
func (i *instance) grpcAgentReports(t *testing.T, consumer work.Consumer, s *statusStream) {
	t.Helper()
	i.source().create(consumer, "last", 1)
	for s.next().Extensions[work.ExtResourceID] != "last" {
	}
}

// A resync that waits for a slow reader and what changes meanwhile never take
// a bundle back.
func TestI1AResyncNeverTakesABundleBack(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start(withAgents(site), alone)
	m.consumer("mc1")
	agent := m.grpcAgent("mc1")
	src := m.source()
	const works = 120
	for n := range works {
		src.create("mc1", work.ID(fmt.Sprintf("w%d", n)), n)
	}
	for n := range works {
		m.awaitObserved(work.ID(fmt.Sprintf("w%d", n)), 1)
	}
	s := m.subscribe(t, testSource)
	for turn := range 20 {
		ask(t, s.client, testSource)
		for n := range 10 {
			agent.report(work.ID(fmt.Sprintf("w%d", (turn*7+n)%works)), "Available")
		}
	}
	m.grpcAgentReports(t, "mc1", s)
	// The stream is in order; sequences grow with each status of an agent.
	last := map[string]string{}
	for {
		select {
		case ev := <-s.events:
			id, seq := ev.Extensions[work.ExtResourceID], ev.Extensions[work.ExtSequenceID]
			if len(seq) < len(last[id]) || len(seq) == len(last[id]) && seq < last[id] {
				t.Fatalf("%s went back from %s to %s", id, last[id], seq)
			}
			last[id] = seq
			continue
		default:
		}
		break
	}
}

func TestSourcesSendStructuredEvents(t *testing.T) {
	t.Parallel()
	m := newSite(t).start()
	m.consumer("mc1")
	src := m.source()
	e := &cloudevents.CloudEvent{
		Id: "1", Source: testSource, SpecVersion: "1.0", Type: work.SpecCreate,
		Attributes: map[string]*cloudevents.CloudEvent_CloudEventAttributeValue{"contenttype": textAttribute(
			"application/cloudevents+json")},
		Data: &cloudevents.CloudEvent_BinaryData{BinaryData: fmt.Appendf(
			nil, `{"specversion":"1.0","id":"1","source":%q,"type":%q,"clustername":"mc1","resourceid":"w1","resourceversion":0,
			"datacontenttype":"application/json","data":%s}`, testSource, work.SpecCreate, specData(configMap("x", 1)))},
	}
	if err := src.publish(e); err != nil {
		t.Fatal(err)
	}
	if v := m.bundle("w1").Version; v != 1 {
		t.Errorf("version %d", v)
	}
	e.Data = &cloudevents.CloudEvent_BinaryData{BinaryData: []byte(`{"specversion":"1.0"}`)}
	if err := src.publish(e); !isCode(err, "InvalidArgument") {
		t.Error(err)
	}
}

// The flags that make it as the original is.
func TestCompatibilityFlags(t *testing.T) {
	t.Parallel()
	m := newSite(t).start(func(o *Options) { o.PlainErrors, o.AnySource = true, true })
	m.consumer("mc1")
	src := m.source()
	src.create("mc1", "w1", 1)
	err := src.publish(src.event(work.SpecUpdate, "mc1", "w1", 7, specData(configMap("x", 2))))
	if err == nil || !strings.HasSuffix(err.Error(),
		"desc = failed to update resource: maestro-6: the resource version is not the latest, the latest version: 1") {
		t.Errorf("a plain error: %v", err)
	}
	other := &source{t: t, client: src.client, name: "another"}
	if err := other.publish(other.event(work.SpecUpdate, "mc1", "w1", 0, specData(configMap("x", 2)))); err != nil {
		t.Errorf("another source's update: %v", err)
	}
	if err := other.publish(other.event(work.SpecDelete, "mc1", "w1", 0, nil)); err != nil {
		t.Errorf("another source's deletion: %v", err)
	}
	if b := m.bundle("w1"); b.Version != 2 || b.DeletedAt == nil {
		t.Errorf("version %d, deleted at %v", b.Version, b.DeletedAt)
	}
}
