package restore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"atoll.dev/kube/etcd"
)

const all = "\x00"

// member is an etcd of a test.
type member struct {
	server *etcd.Server
	client *clientv3.Client // reads and writes, in memory
	reads  *grpc.ClientConn // the socket
}

func start(t *testing.T, dir string) *member {
	t.Helper()
	socket := filepath.Join(filepath.Dir(dir), "etcd.sock")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	server, err := etcd.Start(etcd.Options{Dir: dir, Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	client := server.Client()
	t.Cleanup(func() { client.Close() })
	reads, err := grpc.NewClient("passthrough:///etcd", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialUnix(ctx, socket) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reads.Close() })
	return &member{server, client, reads}
}

// state returns all keys as of a revision; 0 is the present.
func (m *member) state(t *testing.T, revision int64) (string, int64) {
	t.Helper()
	r, err := etcdserverpb.NewKVClient(m.reads).Range(t.Context(), &etcdserverpb.RangeRequest{
		Key: []byte(all), RangeEnd: []byte(all), Revision: revision,
	})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, kv := range r.Kvs {
		fmt.Fprintf(&b, "%s=%s created %d modified %d version %d\n", kv.Key, kv.Value,
			kv.CreateRevision, kv.ModRevision, kv.Version)
	}
	return b.String(), r.Header.Revision
}

// write makes one write of a kind that depends on i.
func (m *member) write(t *testing.T, i int) {
	t.Helper()
	ctx, key, value := t.Context(), fmt.Sprintf("/registry/things/%d", i%7), fmt.Sprintf("value %d", i)
	var err error
	switch i % 5 {
	case 0, 1:
		_, err = m.client.Put(ctx, key, value)
	case 2:
		_, err = m.client.Delete(ctx, key)
	case 3: // several keys in one revision
		if _, err = m.client.Put(ctx, "/registry/others", value); err != nil {
			break
		}
		_, err = m.client.Txn(ctx).Then(clientv3.OpPut(key, value), clientv3.OpPut(key+"/second", value),
			clientv3.OpDelete("/registry/others")).Commit()
	case 4:
		var lease *clientv3.LeaseGrantResponse
		if lease, err = m.client.Grant(ctx, 3600); err == nil {
			_, err = m.client.Put(ctx, "/registry/events/"+key, value, clientv3.WithLease(lease.ID))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *member) snapshot(t *testing.T, path string) {
	t.Helper()
	stream, err := etcdserverpb.NewMaintenanceClient(m.reads).Snapshot(t.Context(), &etcdserverpb.SnapshotRequest{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(r.Blob); err != nil {
			t.Fatal(err)
		}
	}
}

// events returns the changes from revision from to revision to.
func (m *member) events(t *testing.T, from, to int64) (list []*mvccpb.Event) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	stream, err := etcdserverpb.NewWatchClient(m.reads).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{Key: []byte(all), RangeEnd: []byte(all), StartRevision: from},
	}}); err != nil {
		t.Fatal(err)
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range r.Events {
			if e.Kv.ModRevision > to {
				return list
			}
			list = append(list, e)
		}
		if n := len(list); n > 0 && list[n-1].Kv.ModRevision == to {
			return list
		}
	}
}

func encode(t *testing.T, list []*mvccpb.Event, to int64) []byte {
	t.Helper()
	var b []byte
	for _, e := range list {
		if e.Kv.ModRevision > to {
			break
		}
		data, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		b = append(binary.AppendUvarint(b, uint64(len(data))), data...)
	}
	return b
}

func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestEveryRestoredRevisionIsWhatTheMemberHad(t *testing.T) {
	m := start(t, filepath.Join(t.TempDir(), "etcd"))
	for i := range 40 {
		m.write(t, i)
	}
	snapshot := filepath.Join(t.TempDir(), "snapshot")
	m.snapshot(t, snapshot)
	_, first := m.state(t, 0)
	for i := range 60 {
		m.write(t, 40+i)
	}
	_, last := m.state(t, 0)
	log := m.events(t, first-10, last) // it begins before the snapshot's end: both overlap

	const bump = 1000
	for _, to := range []int64{first, first + 1, first + 17, last - 1, last} {
		dir := filepath.Join(t.TempDir(), "etcd")
		r, err := Run(Options{Snapshot: snapshot, Log: writeFile(t, encode(t, log, to)), Dir: dir, Bump: bump})
		if err != nil {
			t.Fatalf("revision %d: %v", to, err)
		}
		if r.SnapshotRevision != first || r.Revision != to || r.NewRevision != to+bump {
			t.Errorf("revision %d: %+v", to, r)
		}
		want, _ := m.state(t, to)
		restored := start(t, dir)
		got, revision := restored.state(t, 0)
		if got != want {
			t.Errorf("revision %d: restored\n%s\nwant\n%s", to, got, want)
		}
		if revision != to+bump {
			t.Errorf("revision %d: the restored member is at %d, want %d", to, revision, to+bump)
		}
		put, err := restored.client.Put(t.Context(), "/registry/new", "x")
		if err != nil || put.Header.Revision != to+bump+1 {
			t.Errorf("revision %d: a write after it: %v, %v", to, put, err)
		}
		restored.server.Stop()
	}

	// A change is missing, cut short, or damaged: nothing is restored.
	complete := encode(t, log, last)
	gap := append(bytes.Clone(encode(t, log, first+3)), encode(t, m.events(t, first+5, last), last)...)
	for name, content := range map[string][]byte{"gap": gap, "cut short": complete[:len(complete)-3]} {
		dir := filepath.Join(t.TempDir(), "etcd")
		if _, err := Run(Options{Snapshot: snapshot, Log: writeFile(t, content), Dir: dir}); err == nil {
			t.Errorf("log with a %s: restored", name)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("log with a %s: the directory exists", name)
		}
	}
	data, err := os.ReadFile(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if _, err := Run(Options{Snapshot: writeFile(t, data), Dir: filepath.Join(t.TempDir(), "etcd")}); err == nil {
		t.Error("a snapshot with a changed bit: restored")
	}
}

func TestTheSocketOnlyReads(t *testing.T) {
	// Longer than the name of a Unix socket may be.
	m := start(t, filepath.Join(t.TempDir(), strings.Repeat("long", 40), "etcd"))
	_, err := etcdserverpb.NewKVClient(m.reads).Put(t.Context(), &etcdserverpb.PutRequest{Key: []byte("a")})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("put: %v", err)
	}
	_, err = etcdserverpb.NewMaintenanceClient(m.reads).Defragment(t.Context(), &etcdserverpb.DefragmentRequest{})
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("defragment: %v", err)
	}
	alive, err := etcdserverpb.NewLeaseClient(m.reads).LeaseKeepAlive(t.Context())
	if err == nil {
		_, err = alive.Recv()
	}
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("keeping a lease alive: %v", err)
	}
	s, err := etcdserverpb.NewMaintenanceClient(m.reads).Status(t.Context(), &etcdserverpb.StatusRequest{})
	if err != nil || s.DbSizeQuota != etcd.DefaultQuota || s.DbSize == 0 {
		t.Errorf("status: %v, %v", s, err)
	}
}

// dialUnix opens a Unix socket whose path may be longer than the name of a socket.
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var d net.Dialer
	return d.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(path)))
}
