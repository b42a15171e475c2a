package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/pki"
	"atoll.dev/test/testsite"
)

// server is a correct fake of Maestro's side of the wire: it stores the orders and the last status
// of each work, answers resyncs, and repeats unacknowledged deletions.
type server struct {
	t        testing.TB
	consumer work.Consumer
	client   *bus.Client
	topic    string

	mu        sync.Mutex
	changed   chan struct{} // closed and replaced at every change
	bundles   map[string]*bundle
	names     map[string]string // of works on their hub, where they are not their ids
	gone      map[string]int    // deletions acknowledged, by id
	statuses  int               // status events received
	specs     int               // spec events sent
	resyncs   [][]work.SpecVersion
	seen      int
	lastSeen  string // data of the last heartbeat
	responses int
	received  int  // events of all types but Seen
	reduced   bool // statuses may come without their feedback, under the hash of the whole
}

type bundle struct {
	generation int64
	data       []byte
	deleting   bool
	status     *work.Status
	observed   int64
	sequence   int64
	hash       string
	history    []string // of the Applied condition, as status/reason
	ext        map[string]string
	first      time.Time // of the first status of this generation
}

func startServer(t testing.TB, b *testsite.Broker, consumer work.Consumer) *server {
	t.Helper()
	s := &server{
		t: t, consumer: consumer, changed: make(
			chan struct{}), bundles: map[string]*bundle{}, names: map[string]string{}, gone: map[string]int{},
		topic: bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.SourceEvents}.String(),
	}
	o := b.ClientOptions(pki.ServiceName("maestro"))
	o.ClientID = "maestro"
	o.Subscriptions = []string{bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.AgentEvents}.String()}
	o.Handler = s.receive
	up := make(chan struct{}, 16)
	o.OnConnected = func(ctx context.Context) {
		up <- struct{}{}
		s.askStatuses(ctx)
	}
	s.client = bus.NewClient(o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.client.Run(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-up:
	case <-time.After(patience):
		t.Fatal("the test's server does not connect")
	}
	return s
}

func (s *server) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) receive(ctx context.Context, m bus.Message) {
	defer m.Ack()
	ext := m.Event.Extensions
	if m.Event.Type != work.Seen {
		s.mu.Lock()
		s.received++
		s.mu.Unlock()
	}
	if work.Consumer(ext[work.ExtClusterName]) != s.consumer {
		s.t.Errorf("an event for cluster %q on the topic of %q", ext[work.ExtClusterName], s.consumer)
	}
	switch m.Event.Type {
	case work.SpecResync:
		var list work.SpecVersions
		if err := json.Unmarshal(m.Event.Data, &list); err != nil {
			s.t.Error(err)
			return
		}
		if v, ok := ext[work.ExtOriginalSource]; !ok || v != "" {
			s.t.Errorf("a spec resync has originalsource %q, %v; want it empty and there", v, ok)
		}
		go s.resync(ctx, list)
	case work.StatusUpdate, work.StatusResyncResponse:
		s.status(m.Event)
	case work.AgentDigest: // a real Maestro knows none
	case work.Seen:
		s.mu.Lock()
		s.seen++
		s.lastSeen = string(m.Event.Data)
		s.notify()
		s.mu.Unlock()
	default:
		s.t.Errorf("an event of type %s", m.Event.Type)
	}
}

func (s *server) status(e bus.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notify()
	s.statuses++
	if e.Type == work.StatusResyncResponse {
		s.responses++
	}
	id := e.Extensions[work.ExtResourceID]
	var st work.Status
	if err := json.Unmarshal(e.Data, &st); err != nil {
		s.t.Error(err)
		return
	}
	b := s.bundles[id]
	if b == nil {
		return
	}
	seq, err := strconv.ParseInt(e.Extensions[work.ExtSequenceID], 10, 64)
	if err != nil || seq <= b.sequence {
		s.t.Errorf("%s: sequence %q after %d", id, e.Extensions[work.ExtSequenceID], b.sequence)
	}
	if src := e.Extensions[work.ExtOriginalSource]; src != "maestro" && !(b.deleting && src == "") {
		s.t.Errorf("%s: originalsource %q", id, src)
	}
	if b.deleting && meta.IsStatusConditionTrue(st.Conditions, work.ConditionDeleted) {
		delete(s.bundles, id)
		s.gone[id]++
		return
	}
	v, _ := strconv.ParseInt(e.Extensions[work.ExtResourceVersion], 10, 64)
	if v != b.generation {
		return // of another generation: ignored, as Maestro does
	}
	ws := workv1.ManifestWorkStatus{Conditions: st.Conditions, ResourceStatus: workv1.ManifestResourceStatus{
		Manifests: st.ResourceStatus}}
	if got := statusHash(ws); !s.reduced && (got != e.Extensions[work.ExtStatusHash]) {
		s.t.Errorf("%s: statushash %s, the status hashes to %s", id, e.Extensions[work.ExtStatusHash], got)
	}
	if b.observed != v {
		b.first = time.Now()
	}
	b.status, b.observed, b.sequence, b.hash, b.ext = &st, v, seq, e.Extensions[work.ExtStatusHash], e.Extensions
	if c := meta.FindStatusCondition(st.Conditions, workv1.WorkApplied); c != nil {
		b.history = append(b.history, string(c.Status)+"/"+c.Reason)
	}
}

// resync answers as Maestro does: works that the agent lacks or has in an older generation, and
// every deletion.
func (s *server) resync(ctx context.Context, list work.SpecVersions) {
	known := map[string]int64{}
	for _, v := range list.Versions {
		known[string(v.ID)] = v.Version
	}
	s.mu.Lock()
	s.resyncs = append(s.resyncs, list.Versions)
	type send struct {
		id string
		b  bundle
	}
	var sends []send
	for id, b := range s.bundles {
		if v, ok := known[id]; b.deleting || !ok || v < b.generation {
			sends = append(sends, send{id, *b})
		}
	}
	s.notify()
	s.mu.Unlock()
	for _, x := range sends {
		kind := work.SpecUpdate
		if x.b.deleting {
			kind = work.SpecDelete
		}
		if err := s.publish(ctx, kind, work.ID(x.id), x.b); err != nil {
			return // the agent will ask again
		}
	}
}

func (s *server) askStatuses(ctx context.Context) {
	s.mu.Lock()
	var list work.StatusHashes
	for id, b := range s.bundles {
		list.Hashes = append(list.Hashes, work.StatusHash{ID: work.ID(id), Hash: b.hash})
	}
	s.mu.Unlock()
	if len(list.Hashes) == 0 {
		return
	}
	data, err := json.Marshal(list)
	if err != nil {
		s.t.Error(err)
		return
	}
	_ = s.client.Publish(ctx, s.topic, bus.Event{
		ID: fmt.Sprint(
			time.Now().UnixNano()), Source: "maestro", Type: work.StatusResync, DataContentType: "application/json",
		Extensions: map[string]string{work.ExtClusterName: string(s.consumer)}, Data: data,
	})
}

func (s *server) publish(ctx context.Context, kind string, id work.ID, b bundle) error {
	ext := map[string]string{
		work.ExtClusterName: string(s.consumer), work.ExtResourceID: string(id), work.ExtResourceVersion: strconv.FormatInt(
			b.generation, 10),
		work.ExtMetadata: `{"name":"` + string(id) + `"}`,
	}
	if b.deleting {
		ext[work.ExtDeletionTimestamp] = time.Now().UTC().Format(time.RFC3339)
	}
	s.mu.Lock()
	s.specs++
	if name := s.names[string(id)]; name != "" {
		ext[work.ExtMetadata] = `{"name":"` + name + `"}`
	}
	s.mu.Unlock()
	return s.client.Publish(ctx, s.topic, bus.Event{
		ID: fmt.Sprint(
			time.Now().UnixNano()), Source: "maestro", Type: kind, DataContentType: "application/json", Extensions: ext, Data: b.data,
	})
}

// apply orders a bundle: it creates it or makes the next generation. A resync delivers orders that
// the broker dropped.
func (s *server) apply(id work.ID, w work.Bundle) {
	s.t.Helper()
	data, err := json.Marshal(w)
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	b, kind := s.bundles[string(id)], work.SpecUpdate
	if b == nil {
		b, kind = &bundle{}, work.SpecCreate
		s.bundles[string(id)] = b
	}
	b.generation++
	b.data = data
	send := *b
	s.mu.Unlock()
	_ = s.publish(context.Background(), kind, id, send)
}

func (s *server) delete(id work.ID) {
	s.mu.Lock()
	b := s.bundles[string(id)]
	b.deleting = true
	send := *b
	s.mu.Unlock()
	_ = s.publish(context.Background(), work.SpecDelete, id, send)
}

// await waits until ok holds; it is called with the server locked.
func (s *server) await(what string, ok func() bool) {
	s.t.Helper()
	end := time.Now().Add(5 * patience)
	for {
		s.mu.Lock()
		done, changed := ok(), s.changed
		s.mu.Unlock()
		if done {
			return
		}
		// A thousand works may take longer than one patience on a busy machine; between two statuses nothing does.
		select {
		case <-changed:
		case <-time.After(min(patience, time.Until(end))):
			s.mu.Lock()
			defer s.mu.Unlock()
			var all bytes.Buffer
			shown := 0
			for id, b := range s.bundles {
				if len(s.bundles) >= 5 && s.has(work.ID(id), workv1.WorkApplied, metav1.ConditionTrue) {
					continue
				}
				if shown++; shown < 5 {
					st, _ := json.MarshalIndent(b.status, "", " ")
					fmt.Fprintf(&all, "\n%s generation %d observed %d %v: %s", id, b.generation, b.observed, b.history,
						st)
				}
			}
			s.t.Fatalf("waited without success for %s; %d bundles, %d gone%s", what, len(s.bundles), len(s.gone), all.String())
		}
	}
}

// awaitCondition waits for a work condition of the present generation.
func (s *server) awaitCondition(id work.ID, condition string, status metav1.ConditionStatus) {
	s.t.Helper()
	s.await(fmt.Sprintf("%s %s=%s", id, condition, status), func() bool { return s.has(id, condition, status) })
}

func (s *server) has(id work.ID, condition string, status metav1.ConditionStatus) bool {
	b := s.bundles[string(id)]
	if b == nil || b.status == nil || b.observed != b.generation {
		return false
	}
	c := meta.FindStatusCondition(b.status.Conditions, condition)
	return c != nil && c.Status == status
}

// isApplied reports whether the present generation of a work is applied.
func (s *server) isApplied(id work.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.has(id, workv1.WorkApplied, metav1.ConditionTrue)
}

func (s *server) awaitApplied(id work.ID) {
	s.t.Helper()
	s.awaitCondition(id, workv1.WorkApplied, metav1.ConditionTrue)
}

func (s *server) awaitGone(id work.ID) {
	s.t.Helper()
	s.await(string(id)+" gone", func() bool { return s.bundles[string(id)] == nil })
}

// manifest is the last status of one manifest.
func (s *server) manifest(id work.ID, ordinal int) workv1.ManifestCondition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bundles[string(id)].status.ResourceStatus[ordinal]
}
