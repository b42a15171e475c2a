package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/meta"
	workv1 "open-cluster-management.io/api/work/v1"

	"atoll.dev/api/work"
	"atoll.dev/bus"
)

// newBundle returns a bundle of one ConfigMap.
func (b *bench) newBundle(id string) work.Bundle {
	text := make([]byte, *size)
	for i := range text {
		text[i] = 'a' + byte(b.rand.IntN(26))
	}
	m, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": id, "namespace": "default"},
		"data": map[string]string{"text": string(text)},
	})
	if err != nil {
		panic(err) // strings only
	}
	return work.Bundle{Manifests: []json.RawMessage{m}}
}

// server does Maestro's part of the protocol with the agent, in memory.
type server struct {
	client *bus.Client
	topic  string

	mu    sync.Mutex
	works map[string]*orderedWork
}

// orderedWork is a work that the agent must apply or delete.
type orderedWork struct {
	generation int64
	data       []byte
	deleting   bool
	published  time.Time
	took       time.Duration
	done       chan struct{} // closed when the agent has applied the generation, or deleted the work
	onDone     func()
}

func startServer(ctx context.Context, b *broker) (*server, error) {
	s := &server{works: map[string]*orderedWork{}, topic: bus.Topic{Source: "maestro", Consumer: consumer,
		Kind: bus.SourceEvents}.String()}
	cfg, err := b.tlsConfig("system:maestro")
	if err != nil {
		return nil, err
	}
	up := make(chan struct{}, 16)
	s.client = bus.NewClient(bus.ClientOptions{
		Addr: b.addr, TLS: cfg, ClientID: "maestro", Handler: s.receive,
		Subscriptions: []string{bus.Topic{Source: "maestro", Consumer: consumer, Kind: bus.AgentEvents}.String()},
		OnConnected:   func(context.Context) { up <- struct{}{} },
	})
	go func() { _ = s.client.Run(ctx) }()
	select {
	case <-up:
		return s, nil
	case <-time.After(10 * time.Second):
		return nil, errors.New("the broker does not answer")
	}
}

func (s *server) receive(ctx context.Context, m bus.Message) {
	defer m.Ack()
	switch m.Event.Type {
	case work.StatusUpdate, work.StatusResyncResponse:
		var st work.Status
		if json.Unmarshal(m.Event.Data, &st) == nil {
			s.handleStatus(m.Event.Extensions, st)
		}
	case work.SpecResync:
		var list work.SpecVersions
		if json.Unmarshal(m.Event.Data, &list) == nil {
			go s.handleResync(ctx, list)
		}
	}
}

// handleStatus completes a work whose status confirms the ordered generation or deletion.
func (s *server) handleStatus(ext map[string]string, st work.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.works[ext[work.ExtResourceID]]
	if o == nil || o.took != 0 {
		return
	}
	switch {
	case o.deleting && meta.IsStatusConditionTrue(st.Conditions, work.ConditionDeleted):
	case !o.deleting && ext[work.ExtResourceVersion] == strconv.FormatInt(o.generation, 10) &&
		meta.IsStatusConditionTrue(st.Conditions, workv1.WorkApplied):
	default:
		return
	}
	o.took = time.Since(o.published)
	close(o.done)
	if o.onDone != nil {
		o.onDone()
		o.onDone = nil
	}
}

// handleResync publishes the works that the agent's list does not have at their generation.
func (s *server) handleResync(ctx context.Context, list work.SpecVersions) {
	known := map[string]int64{}
	for _, v := range list.Versions {
		known[string(v.ID)] = v.Version
	}
	s.mu.Lock()
	var ids []string
	for id, o := range s.works {
		if o.deleting && o.took == 0 || !o.deleting && known[id] < o.generation {
			ids = append(ids, id)
		}
	}
	s.mu.Unlock()
	for _, id := range ids {
		s.publish(ctx, id)
	}
}

func (s *server) publish(ctx context.Context, id string) {
	s.mu.Lock()
	o := s.works[id]
	kind, ext := work.SpecUpdate, map[string]string{
		work.ExtClusterName: consumer, work.ExtResourceID: id, work.ExtResourceVersion: strconv.FormatInt(o.generation,
			10),
	}
	if o.deleting {
		kind, ext[work.ExtDeletionTimestamp] = work.SpecDelete, time.Now().UTC().Format(time.RFC3339)
	}
	data := o.data
	s.mu.Unlock()
	e := bus.Event{ID: uuid.NewString(), Source: "maestro", Type: kind, DataContentType: "application/json",
		Extensions: ext, Data: data}
	if err := s.client.PublishAsync(ctx, s.topic, e, func(error) {}); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func (s *server) changeOrder(id string, change func(*orderedWork)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.works[id]
	if o == nil {
		o = &orderedWork{}
		s.works[id] = o
	}
	change(o)
}

// callWhenDone calls f when the agent has applied the work. The caller orders the work after that.
func (s *server) callWhenDone(id string, f func()) {
	s.changeOrder(id, func(o *orderedWork) { o.onDone = f })
}

func (s *server) apply(ctx context.Context, id string, w work.Bundle) {
	data, err := json.Marshal(w)
	if err != nil {
		panic(err) // JSON always encodes
	}
	s.changeOrder(id, func(o *orderedWork) {
		o.generation++
		o.data, o.published, o.took, o.done = data, time.Now(), 0, make(chan struct{})
	})
	s.publish(ctx, id)
}

func (s *server) delete(ctx context.Context, id string) {
	s.changeOrder(id, func(o *orderedWork) {
		o.deleting, o.published, o.took, o.done = true, time.Now(), 0, make(chan struct{})
	})
	s.publish(ctx, id)
}

// await waits until the agent has confirmed works, for two minutes at most, and returns the time of each.
func (s *server) await(ctx context.Context, ids []string) ([]time.Duration, error) {
	var all []time.Duration
	deadline := time.After(2 * time.Minute)
	for _, id := range ids {
		s.mu.Lock()
		o := s.works[id]
		s.mu.Unlock()
		select {
		case <-o.done:
		case <-deadline:
			return nil, fmt.Errorf("the agent did not confirm work %s within two minutes", id)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		all = append(all, o.took)
	}
	return all, nil
}

// broker is an embedded broker with its own certificate authority.
type broker struct {
	addr string
	stop func()
	ca   *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func startBroker() (*broker, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "bench"}, NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(crand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return nil, err
	}
	b := &broker{key: key, pool: x509.NewCertPool()}
	if b.ca, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	b.pool.AddCert(b.ca)
	cfg, err := b.tlsConfig("system:broker")
	if err != nil {
		return nil, err
	}
	cfg.ClientAuth = tls.RequireAndVerifyClientCert
	br, err := bus.NewBroker(bus.BrokerOptions{TLS: cfg})
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = br.Serve(ctx, l)
	}()
	b.stop = func() { cancel(); <-done }
	return b, nil
}

func (b *broker) tlsConfig(name string) (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	if err != nil {
		return nil, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(
			24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth,
			x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(crand.Reader, tmpl, b.ca, key.Public(), b.key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{der},
			PrivateKey: key}}, RootCAs: b.pool, ClientCAs: b.pool, MinVersion: tls.VersionTLS13,
	}, nil
}

// processorTime is the processor time so far: of this process (agent, broker and the bench's server), of the
// plane, and of the API calls.
type processorTime struct {
	self, plane time.Duration
	calls       map[string]float64
	seconds     map[string]float64
}

func (b *bench) readProcessorTime() processorTime {
	u := processorTime{self: cpuOf(os.Getpid()), calls: map[string]float64{}, seconds: map[string]float64{}}
	if b.plane != nil {
		u.plane = cpuOf(b.plane.PID)
	}
	families, err := b.registry.Gather()
	if err != nil {
		return u
	}
	for _, f := range families {
		if f.GetName() != "atoll_agent_kube_call_seconds" {
			continue
		}
		for _, m := range f.GetMetric() {
			name := ""
			for _, l := range m.GetLabel() {
				if l.GetName() == "call" {
					name = l.GetValue()
				}
			}
			u.calls[name] += float64(m.GetHistogram().GetSampleCount())
			u.seconds[name] += m.GetHistogram().GetSampleSum()
		}
	}
	return u
}

// addCPU adds the processor time and the API calls of n works since before.
func (b *bench) addCPU(figures map[string]any, before processorTime, n int) {
	now := b.readProcessorTime()
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 / float64(n) }
	figures["agent_and_bench_cpu_ms_per_work"] = per(now.self - before.self)
	figures["plane_cpu_ms_per_work"] = per(now.plane - before.plane)
	for name, calls := range now.calls {
		if c := calls - before.calls[name]; c > 0 {
			figures["call_"+name+"_mean_ms"] = float64(int((now.seconds[name]-before.seconds[name])/c*1e5)) / 100
			figures["call_"+name+"_count"] = c
		}
	}
}

// cpuOf returns the processor time of a process from /proc, whose ticks are hundredths of a second.
func cpuOf(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, afterName, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(afterName)
	if len(fields) < 13 {
		return 0
	}
	var ticks int
	for _, f := range fields[11:13] {
		n, _ := strconv.Atoi(f)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
