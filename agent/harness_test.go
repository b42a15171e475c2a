package agent

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// patience limits every wait of a test; only a hang exceeds it.
const patience = 3 * time.Minute

var (
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
)

// cluster is a bootstrapped management cluster.
type cluster struct {
	plane *plane.Process
	admin dynamic.Interface
	agent *rest.Config
}

var bootstrapped = map[string]*cluster{}

// runs counts the namespaces that each test has got.
var runs = map[string]int{}

// sharedCluster is the test process's plane, bootstrapped, and a namespace in
// it for this test alone.
func sharedCluster(t *testing.T) (*cluster, string) {
	t.Helper()
	p := planetest.Shared(t)
	c := bootstrapped[p.Config.Dir]
	if c == nil {
		c = bootstrap(t, p)
		bootstrapped[p.Config.Dir] = c
	}
	ns := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	ns = strings.Trim(ns[max(0, len(ns)-50):], "-")
	if runs[ns]++; runs[ns] > 1 { // -count repeats the test in the same cluster
		ns = fmt.Sprint(ns, "-", runs[ns])
	}
	c.create(t, namespaces, "", map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": ns}})
	return c, ns
}

func bootstrap(t *testing.T, p *plane.Process) *cluster {
	t.Helper()
	admin, err := p.Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	admin.QPS, admin.Burst = 1000, 1000
	kubeconfig, err := Bootstrap(t.Context(), admin, BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{plane: p, admin: dyn, agent: cfg}
}

func (c *cluster) in(gvr schema.GroupVersionResource, ns string) dynamic.ResourceInterface {
	if ns == "" {
		return c.admin.Resource(gvr)
	}
	return c.admin.Resource(gvr).Namespace(ns)
}

func (c *cluster) create(t *testing.T, gvr schema.GroupVersionResource, ns string,
	obj map[string]any) *unstructured.Unstructured {
	t.Helper()
	made, err := c.in(gvr, ns).Create(t.Context(), &unstructured.Unstructured{Object: obj}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (c *cluster) get(t *testing.T, gvr schema.GroupVersionResource, ns, name string) *unstructured.Unstructured {
	t.Helper()
	obj, err := c.in(gvr, ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return obj
}

// await watches the objects of a kind until ok returns true for the existing ones, by name.
func (c *cluster) await(t *testing.T, what string, gvr schema.GroupVersionResource, ns string,
	ok func(map[string]*unstructured.Unstructured) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for ctx.Err() == nil {
		list, err := c.in(gvr, ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		there := map[string]*unstructured.Unstructured{}
		for i := range list.Items {
			there[list.Items[i].GetName()] = &list.Items[i]
		}
		if ok(there) {
			return
		}
		w, err := c.in(gvr, ns).Watch(ctx, metav1.ListOptions{ResourceVersion: list.GetResourceVersion()})
		if err != nil {
			t.Fatalf("waiting for %s: %v", what, err)
		}
		for e := range w.ResultChan() {
			obj, is := e.Object.(*unstructured.Unstructured)
			if !is || e.Type == watch.Error {
				break
			}
			if e.Type == watch.Deleted {
				delete(there, obj.GetName())
			} else {
				there[obj.GetName()] = obj
			}
			if ok(there) {
				w.Stop()
				return
			}
		}
		w.Stop()
	}
	t.Fatalf("waited %s without success for %s", patience, what)
}

func (c *cluster) awaitObject(t *testing.T, gvr schema.GroupVersionResource, ns, name string,
	ok func(*unstructured.Unstructured) bool) {
	t.Helper()
	c.await(t, gvr.Resource+" "+ns+"/"+name, gvr, ns, func(all map[string]*unstructured.Unstructured) bool {
		return all[name] != nil && ok(all[name])
	})
}

func (c *cluster) awaitGone(t *testing.T, gvr schema.GroupVersionResource, ns, name string) {
	t.Helper()
	c.await(t, gvr.Resource+" "+ns+"/"+name+" gone", gvr, ns, func(all map[string]*unstructured.Unstructured) bool {
		return all[name] == nil
	})
}

// certificates of a test's own authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, pool: x509.NewCertPool()}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) config(t testing.TB, name string) *tls.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(
			time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth,
			x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der},
			PrivateKey: key}}, RootCAs: a.pool, ClientCAs: a.pool, MinVersion: tls.VersionTLS13,
	}
}

// broker is the embedded broker, which can be killed and started again.
type broker struct {
	t    testing.TB
	ca   *authority
	addr string
	stop func()
}

func startBroker(t testing.TB) *broker {
	t.Helper()
	b := &broker{t: t, ca: newAuthority(t)}
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

func (b *broker) start() {
	b.t.Helper()
	cfg := b.ca.config(b.t, "system:broker")
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	br, err := bus.NewBroker(bus.BrokerOptions{TLS: cfg})
	if err != nil {
		b.t.Fatal(err)
	}
	l := testsite.ListenOn(b.t, b.addr)
	b.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = br.Serve(ctx, l)
	}()
	b.stop = sync.OnceFunc(func() { cancel(); <-done })
}

func (b *broker) client(t testing.TB, name string) bus.ClientOptions {
	return bus.ClientOptions{Addr: b.addr, TLS: b.ca.config(t, name)}
}

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

func startServer(t testing.TB, b *broker, consumer work.Consumer) *server {
	t.Helper()
	s := &server{
		t: t, consumer: consumer, changed: make(
			chan struct{}), bundles: map[string]*bundle{}, names: map[string]string{}, gone: map[string]int{},
		topic: bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.SourceEvents}.String(),
	}
	o := b.client(t, "system:maestro")
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

// running is an agent that serves.
type running struct {
	*Agent
	stop func()
}

func agentOptions(t testing.TB, c *cluster, b *broker, consumer work.Consumer, dir string) Options {
	level := slog.LevelWarn
	if os.Getenv("AGENT_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return Options{
		Consumer: consumer, Kube: c.agent, Bus: b.client(t, string(consumer)), BrokerHost: "broker.test:" +
			string(consumer), DataDir: dir,
		Log:       slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level})),
		ListAfter: 20 * time.Millisecond, // the test's server compares no digests
	}
}

// startAgent runs an agent, after change has changed it.
func startAgent(t testing.TB, o Options, change ...func(*Agent)) *running {
	t.Helper()
	a, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range change {
		c(a)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	r := &running{Agent: a, stop: sync.OnceFunc(func() { cancel(); <-done })}
	t.Cleanup(r.stop)
	return r
}

// world is one of everything.
type world struct {
	*cluster
	ns       string
	consumer work.Consumer
	broker   *broker
	server   *server
	dir      string
	agent    *running
}

func newWorld(t *testing.T) *world {
	t.Helper()
	c, ns := sharedCluster(t)
	w := &world{cluster: c, ns: ns, consumer: work.Consumer(ns), broker: startBroker(t), dir: t.TempDir()}
	w.server = startServer(t, w.broker, w.consumer)
	w.agent = startAgent(t, agentOptions(t, c, w.broker, w.consumer, w.dir))
	t.Cleanup(func() {
		if t.Failed() {
			w.logFailure(t)
		}
	})
	return w
}

func (w *world) restart(t *testing.T) {
	t.Helper()
	w.agent.stop()
	w.agent = startAgent(t, agentOptions(t, w.cluster, w.broker, w.consumer, w.dir))
}

func (w *world) amw(id work.ID) string {
	return hubHash("broker.test:"+string(w.consumer)) + "-" + string(id)
}

func configMap(ns, name string, data ...string) json.RawMessage {
	m := map[string]string{}
	for i := 0; i+1 < len(data); i += 2 {
		m[data[i]] = data[i+1]
	}
	return raw(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name,
		"namespace": ns}, "data": m})
}

func raw(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func manifests(m ...json.RawMessage) work.Bundle { return work.Bundle{Manifests: m} }

func dataOf(u *unstructured.Unstructured, key string) string {
	v, _, _ := unstructured.NestedString(u.Object, "data", key)
	return v
}
