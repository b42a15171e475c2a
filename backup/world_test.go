package backup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"atoll.dev/envelope"
)

// fakeEtcd answers the calls of etcd that a Follower makes. Its snapshot is the last revision, as text.
type fakeEtcd struct {
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedWatchServer

	mu        sync.Mutex
	cond      *sync.Cond
	events    []*mvccpb.Event // events[i] has revision i+1
	compacted int64
	padding   int                                       // bytes of a snapshot besides the text
	value     int                                       // bytes of a value besides the text
	snapshot  func(pb.Maintenance_SnapshotServer) error // answers instead; nil: none

	watchReads atomic.Int64 // of the followers from the connections of their watches
	polls      atomic.Int64 // requests for the revision
	sampler    *fakeSampler // nil: an older program runs the plane
}

// startEtcd returns an etcd of a plane that samples its revision, and a function that connects to it. It ends with
// stop.
func startEtcd() (e *fakeEtcd, dial func(Wrap) (*grpc.ClientConn, error), stop func()) {
	return startEtcdWith(&fakeSampler{})
}

// startEtcdWith returns an etcd with a sampler; nil: an older program runs the plane.
func startEtcdWith(s *fakeSampler) (e *fakeEtcd, dial func(Wrap) (*grpc.ClientConn, error), stop func()) {
	e = &fakeEtcd{}
	e.cond = sync.NewCond(&e.mu)
	server := grpc.NewServer()
	endSampling := func() {}
	if s != nil {
		e.sampler = s
		endSampling = s.start(server, e.revision)
	}
	pb.RegisterMaintenanceServer(server, e)
	pb.RegisterWatchServer(server, e)
	l := bufconn.Listen(64 << 10)
	go server.Serve(l)
	return e, func(wrap Wrap) (*grpc.ClientConn, error) {
		return grpc.NewClient("passthrough:///fake", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				conn, err := l.DialContext(ctx)
				if err != nil || wrap == nil {
					return conn, err
				}
				return wrap(&countingConn{Conn: conn, reads: &e.watchReads}), nil
			}))
	}, func() { endSampling(); server.Stop(); l.Close() }
}

// countingConn counts the reads that have returned.
type countingConn struct {
	net.Conn
	reads *atomic.Int64
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.reads.Add(1)
	return n, err
}

// write acknowledges a write and returns its revision.
func (e *fakeEtcd) write() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	revision := int64(len(e.events) + 1)
	e.events = append(e.events, &mvccpb.Event{Kv: &mvccpb.KeyValue{
		Key: []byte("/registry/x"), ModRevision: revision,
		Value: append(fmt.Appendf(nil, "value %d", revision), make([]byte, e.value)...),
	}})
	e.cond.Broadcast()
	return revision
}

// setValue sets how many bytes each later value has besides its text.
func (e *fakeEtcd) setValue(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.value = n
}

// setPadding sets how many bytes each later snapshot has besides its text.
func (e *fakeEtcd) setPadding(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.padding = n
}

func (e *fakeEtcd) revision() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return int64(len(e.events))
}

func (e *fakeEtcd) Snapshot(_ *pb.SnapshotRequest, s pb.Maintenance_SnapshotServer) error {
	if e.snapshot != nil {
		return e.snapshot(s)
	}
	e.mu.Lock()
	blob := append(fmt.Appendf(nil, "snapshot of revision %d\n", len(e.events)), make([]byte, e.padding)...)
	e.mu.Unlock()
	for part := range slices.Chunk(blob, 32<<10) {
		if err := s.Send(&pb.SnapshotResponse{Blob: part}); err != nil {
			return err
		}
	}
	return nil
}

// answerProgress is a watch of a key without changes.
func (e *fakeEtcd) answerProgress(s pb.Watch_WatchServer) error {
	if err := s.Send(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: e.revision()}, Created: true}); err != nil {
		return err
	}
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
		e.polls.Add(1)
		err := s.Send(&pb.WatchResponse{Header: &pb.ResponseHeader{Revision: e.revision()}, WatchId: -1})
		if err != nil {
			return err
		}
	}
}

func (e *fakeEtcd) Watch(s pb.Watch_WatchServer) error {
	r, err := s.Recv()
	if err != nil {
		return err
	}
	create := r.GetCreateRequest()
	if create.RangeEnd == nil {
		return e.answerProgress(s)
	}
	next := create.StartRevision
	defer context.AfterFunc(s.Context(), e.cond.Broadcast)()
	for {
		e.mu.Lock()
		for s.Context().Err() == nil && next > int64(len(e.events)) {
			e.cond.Wait()
		}
		isCompacted := next <= e.compacted
		events := slices.Clone(e.events[min(next-1, int64(len(e.events))):])
		e.mu.Unlock()
		if s.Context().Err() != nil {
			return s.Context().Err()
		}
		if isCompacted {
			return s.Send(&pb.WatchResponse{Canceled: true, CompactRevision: next})
		}
		for len(events) > 0 { // in fragments of at most 2 MiB, as etcd
			n, size := 0, 0
			for n < len(events) && size < 2<<20 {
				size += events[n].Size()
				n++
			}
			if err := s.Send(&pb.WatchResponse{Events: events[:n]}); err != nil {
				return err
			}
			next, events = next+int64(n), events[n:]
		}
	}
}

// memoryStore is a Store with faults, and a clock of its own.
type memoryStore struct {
	mu      sync.Mutex
	objects map[string][]byte
	stored  map[string]time.Time        // of the objects, by the store's clock
	behind  time.Duration               // by how much the store's clock is behind this process's
	fault   func(op, name string) error // of each call; nil: none
}

func newMemoryStore() *memoryStore {
	return &memoryStore{objects: map[string][]byte{}, stored: map[string]time.Time{}}
}

// now returns the time of the store's clock; the caller holds the lock.
func (m *memoryStore) now() time.Time { return time.Now().Add(-m.behind) }

// setBehind sets by how much the store's clock is behind this process's.
func (m *memoryStore) setBehind(d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.behind = d
}

func (m *memoryStore) setFault(f func(op, name string) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fault = f
}

// content returns the object as it is stored, or nil when there is none; faults do not apply.
func (m *memoryStore) content(name string) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// replace stores the object, or removes it when content is nil; faults do not apply.
func (m *memoryStore) replace(name string, content []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if content == nil {
		delete(m.objects, name)
		return
	}
	m.objects[name], m.stored[name] = content, m.now()
}

func (m *memoryStore) check(ctx context.Context, op, name string) error {
	m.mu.Lock()
	fault := m.fault
	m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if fault == nil {
		return nil
	}
	return fault(op, name)
}

func (m *memoryStore) Put(ctx context.Context, name string, content []byte) error {
	if err := m.check(ctx, "put", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[name], m.stored[name] = bytes.Clone(content), m.now()
	return nil
}

func (m *memoryStore) Get(ctx context.Context, name string) ([]byte, error) {
	if err := m.check(ctx, "get", name); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := m.objects[name]; ok {
		return bytes.Clone(o), nil
	}
	return nil, fmt.Errorf("%s: %w", name, ErrNotFound)
}

func (m *memoryStore) List(ctx context.Context, prefix string) (names []string, err error) {
	if err := m.check(ctx, "list", prefix); err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.objects {
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

func (m *memoryStore) Delete(ctx context.Context, name string) error {
	if err := m.check(ctx, "delete", name); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.objects, name)
	return nil
}

func (m *memoryStore) Age(ctx context.Context, name string) (time.Duration, error) {
	if err := m.check(ctx, "age", name); err != nil {
		return 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.objects[name]; !ok {
		return 0, fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	return m.now().Sub(m.stored[name]), nil
}

var testPlane = Plane{"clusters-a", "hc-a"}

func testKeys(t testing.TB) *envelope.KeyFile {
	t.Helper()
	k, err := envelope.ParseKeys([]byte("k1 " + strings.Repeat("QUFB", 10) + "QUE=\n"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// restored is what Fetch has returned: the snapshot's revision and the log's.
type restored struct {
	Fetched
	snapshot int64
	log      []int64
}

// revision is the last one of snapshot and log.
func (r restored) revision() int64 {
	if n := len(r.log); n > 0 {
		return max(r.snapshot, r.log[n-1])
	}
	return r.snapshot
}

// fetch fetches and checks that no revision is missing.
func fetch(t *testing.T, store Store, at time.Time) (restored, error) {
	t.Helper()
	return fetchWith(t, store, testKeys(t), at)
}

func fetchWith(t *testing.T, store Store, kms envelope.KMS, at time.Time) (restored, error) {
	t.Helper()
	got, err := Fetch(t.Context(), store, kms, testPlane, at, t.TempDir())
	if err != nil {
		return restored{}, err
	}
	r := restored{Fetched: got}
	content, err := os.ReadFile(got.Snapshot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(string(content), "snapshot of revision %d\n", &r.snapshot); err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(got.Log)
	if err != nil {
		t.Fatal(err)
	}
	in := bytes.NewReader(log)
	for {
		size, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			break
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(in, data); err != nil {
			t.Fatal(err)
		}
		var e mvccpb.Event
		if err := e.Unmarshal(data); err != nil {
			t.Fatal(err)
		}
		if n := len(r.log); n > 0 && e.Kv.ModRevision != r.log[n-1]+1 || n == 0 && e.Kv.ModRevision > r.snapshot+1 {
			t.Fatalf("revision %d follows %v (snapshot %d)", e.Kv.ModRevision, r.log, r.snapshot)
		}
		if want := fmt.Sprintf("value %d", e.Kv.ModRevision); string(bytes.TrimRight(e.Kv.Value, "\x00")) != want {
			t.Fatalf("revision %d has %.40q", e.Kv.ModRevision, e.Kv.Value)
		}
		r.log = append(r.log, e.Kv.ModRevision)
	}
	return r, nil
}
