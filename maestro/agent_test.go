package maestro

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/wire"
	"atoll.dev/pki"
)

// scriptedAgent speaks an agent's side of the protocol on the real broker, as
// Open Cluster Management's work agent does, and remembers instead of
// applying.
type scriptedAgent struct {
	t        testing.TB
	site     *site
	consumer work.Consumer
	addr     string
	client   *bus.Client
	link     *grpcLink // in place of client
	end      func()

	mu       sync.Mutex
	works    map[work.ID]*agentWork
	sequence int64
	events   []bus.Event // the events that the agent received
	sent     []bus.Event // the events that the agent sent
	digests  bool        // it compares digests, as Atoll's agent does

	// Faults. Guarded by mu.
	deaf   bool                              // processes no event
	mute   bool                              // sends nothing
	lose   func(bus.Event) bool              // drops a received event
	mangle func(out []bus.Event) []bus.Event // changes the events to be sent
}

type agentWork struct {
	generation int64
	data       json.RawMessage
	metadata   string
	life       string
	status     []byte
	hash       string
}

func (s *site) agent(consumer work.Consumer) *scriptedAgent {
	return s.agentAt(consumer, s.broker.Address)
}

// agentAt connects by way of an address.
func (s *site) agentAt(consumer work.Consumer, addr string) *scriptedAgent {
	a := &scriptedAgent{t: s.T, site: s, consumer: consumer, addr: addr, works: map[work.ID]*agentWork{},
		sequence: time.Now().UnixMilli() << 22}
	a.start()
	s.T.Cleanup(func() { a.stop() })
	return a
}

func (a *scriptedAgent) start() {
	name := a.consumer + "-agent"
	a.client = bus.NewClient(bus.ClientOptions{
		Addr: a.addr, TLS: a.site.ClientTLS(pki.Name(a.consumer), "broker"), ClientID: string(name) + "-client",
		Subscriptions: []string{bus.Topic{Source: "maestro", Consumer: a.consumer, Kind: bus.SourceEvents}.String()},
		Handler: func(ctx context.Context, m bus.Message) {
			a.take(ctx, m.Event)
			m.Ack()
		},
		OnConnected: func(ctx context.Context) {
			a.mu.Lock()
			digests := a.digests
			a.mu.Unlock()
			if digests {
				a.sayDigest(ctx)
				return
			}
			a.resync(ctx)
		},
		Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.client.Run(ctx)
	}()
	a.end = func() { cancel(); <-done }
	eventually(a.t, "the agent is connected", func() error { return a.client.Check(ctx) })
}

// stop takes the agent off the broker. It keeps what it holds.
func (a *scriptedAgent) stop() {
	if a.end != nil {
		a.end()
		a.end = nil
	}
}

// wipe makes it forget.
func (a *scriptedAgent) wipe() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.works = map[work.ID]*agentWork{}
}

func (a *scriptedAgent) fault(set func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	set()
}

// resync sends what the agent holds.
func (a *scriptedAgent) resync(ctx context.Context) {
	a.mu.Lock()
	versions := []work.SpecVersion{}
	for id, w := range a.works {
		versions = append(versions, work.SpecVersion{ID: id, Version: w.generation})
	}
	a.mu.Unlock()
	data, _ := json.Marshal(work.SpecVersions{Versions: versions})
	m := a.message(work.SpecResync, data)
	m.Extensions[work.ExtOriginalSource] = ""
	a.send(ctx, m)
}

func (a *scriptedAgent) message(kind string, data []byte) bus.Event {
	return bus.Event{
		DataContentType: wire.JSONType, ID: uuid.NewString(), Source: string(a.consumer) + "-agent", Type: kind,
		Time: time.Now(), Data: data,
		Extensions: map[string]string{work.ExtClusterName: string(a.consumer)},
	}
}

func (a *scriptedAgent) send(ctx context.Context, m bus.Event) {
	a.mu.Lock()
	out := []bus.Event{m}
	switch {
	case a.mute:
		out = nil
	case a.mangle != nil:
		out = a.mangle(out)
	}
	a.sent = append(a.sent, out...)
	a.mu.Unlock()
	topic := bus.Topic{Source: "maestro", Consumer: a.consumer, Kind: bus.AgentEvents}.String()
	for _, m := range out {
		if a.link != nil {
			a.link.out <- m
			continue
		}
		// Not waiting: the handler must not. What is lost, resync mends.
		_ = a.client.PublishAsync(ctx, topic, m, func(error) {})
	}
}

// take handles one event as an agent does.
func (a *scriptedAgent) take(ctx context.Context, m bus.Event) {
	a.mu.Lock()
	if a.deaf || a.lose != nil && a.lose(m) {
		a.mu.Unlock()
		return
	}
	a.events = append(a.events, m)
	var replies []bus.Event
	switch m.Type {
	case work.SpecCreate, work.SpecUpdate, work.SpecDelete, work.SpecResyncResponse:
		if reply, ok := a.applySpec(m); ok {
			replies = append(replies, reply)
		}
	case work.StatusResync:
		replies = a.compareStatuses(m)
	case work.ServerDigest:
		defer a.compareDigest(ctx, m)
	case work.ServerSpecs:
		replies = a.heldSpecs(m)
	default:
		a.t.Errorf("agent %s: unexpected event %s", a.consumer, m.Type)
	}
	a.mu.Unlock()
	for _, r := range replies {
		a.send(ctx, r)
	}
}

func (a *scriptedAgent) applySpec(m bus.Event) (bus.Event, bool) {
	id := m.Extensions[work.ExtResourceID]
	generation, err := strconv.ParseInt(m.Extensions[work.ExtResourceVersion], 10, 64)
	if err != nil || work.Consumer(m.Extensions[work.ExtClusterName]) != a.consumer || m.Source != "maestro" {
		a.t.Errorf("agent %s: malformed spec %+v: %v", a.consumer, m.Extensions, err)
		return bus.Event{}, false
	}
	if m.Extensions[work.ExtDeletionTimestamp] != "" {
		w := &agentWork{generation: generation, status: []byte(fmt.Sprintf(
			`{"conditions":[{"type":"Deleted","status":"True","reason":"ManifestsDeleted","message":"The manifests are deleted from the cluster %s","lastTransitionTime":"2026-01-01T00:00:00Z"}]}`, a.consumer))}
		w.hash = "deleted"
		delete(a.works, work.ID(id))
		return a.status(work.ID(id), w, work.StatusUpdate), true
	}
	if have := a.works[work.ID(id)]; have != nil && generation <= have.generation {
		return bus.Event{}, false // known: an agent sends nothing then
	}
	if !json.Valid(m.Data) {
		a.t.Errorf("agent %s: spec of %s without data", a.consumer, id)
		return bus.Event{}, false
	}
	w := &agentWork{generation: generation, data: m.Data, metadata: m.Extensions[work.ExtMetadata], life: m.Extensions[work.ExtLife]}
	w.status = []byte(
		fmt.Sprintf(
			`{"conditions":[{"type":"Applied","status":"True","reason":"AppliedManifestWorkComplete","message":"Apply manifest work complete","observedGeneration":%d,"lastTransitionTime":"2026-01-01T00:00:00Z"}],"resourceStatus":[]}`, generation))
	w.hash = hexHash("hash-%s-%d", id, generation)
	a.works[work.ID(id)] = w
	return a.status(work.ID(id), w, work.StatusUpdate), true
}

func (a *scriptedAgent) status(id work.ID, w *agentWork, kind string) bus.Event {
	a.sequence++
	m := a.message(kind, w.status)
	m.Extensions[work.ExtResourceID] = string(id)
	m.Extensions[work.ExtResourceVersion] = fmt.Sprint(w.generation)
	m.Extensions[work.ExtOriginalSource] = "maestro"
	m.Extensions[work.ExtSequenceID] = fmt.Sprint(a.sequence)
	m.Extensions[work.ExtStatusHash] = w.hash
	m.Extensions[work.ExtMetadata] = w.metadata
	now := time.Now().UTC().Format(time.RFC3339Nano)
	m.Extensions[work.ExtReceivedAt], m.Extensions[work.ExtAppliedAt] = now, now
	return m
}

func (a *scriptedAgent) compareStatuses(m bus.Event) []bus.Event {
	var list work.StatusHashes
	if err := json.Unmarshal(m.Data, &list); err != nil || len(list.Hashes) == 0 {
		a.t.Errorf("agent %s: a status resync that asks for everything: %s %v", a.consumer, m.Data, err)
		return nil
	}
	var replies []bus.Event
	for _, h := range list.Hashes {
		if w := a.works[h.ID]; w != nil && w.hash != h.Hash {
			replies = append(replies, a.status(h.ID, w, work.StatusResyncResponse))
		}
	}
	return replies
}

// report sends another status of a work that it holds.
func (a *scriptedAgent) report(id work.ID, conditionType string) {
	a.mu.Lock()
	w := a.works[id]
	if w == nil {
		a.mu.Unlock()
		a.t.Fatalf("agent %s holds no %s", a.consumer, id)
	}
	w.status = []byte(
		fmt.Sprintf(
			`{"conditions":[{"type":%q,"status":"True","reason":"R","message":"","observedGeneration":%d,"lastTransitionTime":"2026-01-01T00:00:00Z"}]}`, conditionType, w.generation))
	w.hash = hexHash("hash-%s-%d-%s", id, w.generation, conditionType)
	m := a.status(id, w, work.StatusUpdate)
	a.mu.Unlock()
	a.send(context.Background(), m)
}

// hexHash has the form of a real status hash.
func hexHash(format string, args ...any) string {
	sum := sha256.Sum256(fmt.Appendf(nil, format, args...))
	return hex.EncodeToString(sum[:])
}

// holds returns generation and data of what the agent has of a work.
func (a *scriptedAgent) holds(id work.ID) (generation int64, data string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.works[id]; w != nil {
		return w.generation, string(w.data)
	}
	return 0, ""
}

func (a *scriptedAgent) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.works)
}

// received returns what came of a kind.
func (a *scriptedAgent) received(kind string) []bus.Event {
	a.mu.Lock()
	defer a.mu.Unlock()
	var found []bus.Event
	for _, m := range a.events {
		if m.Type == kind {
			found = append(found, m)
		}
	}
	return found
}

// firstDeliveries leaves out what was sent again: a busy machine may answer later than the server waits.
func firstDeliveries(events []bus.Event) []bus.Event {
	var first []bus.Event
	seen := map[[3]string]bool{}
	for _, e := range events {
		key := [3]string{e.Type, e.Extensions[work.ExtResourceID], e.Extensions[work.ExtResourceVersion]}
		if !seen[key] {
			seen[key] = true
			first = append(first, e)
		}
	}
	return first
}

func (a *scriptedAgent) awaitValue(id work.ID, value any) {
	a.t.Helper()
	eventually(a.t, fmt.Sprintf("agent %s holds %s with value %v", a.consumer, id, value), func() error {
		generation, data := a.holds(id)
		if !strings.Contains(data, fmt.Sprintf(`"value":"%v"`, value)) &&
			!strings.Contains(data, fmt.Sprintf(`"value": "%v"`, value)) {
			return fmt.Errorf("it has generation %d: %s", generation, data)
		}
		return nil
	})
}
