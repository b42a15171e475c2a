package etcd

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func TestAClientReadsWritesAndWatches(t *testing.T) {
	s, err := Start(Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	c, other := s.Client(), s.Client()
	events := c.Watch(clientv3.WithRequireLeader(t.Context()), "a", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if created := <-events; !created.Created {
		t.Fatalf("the watch begins with %+v", created)
	}
	lease, err := c.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	put := clientv3.OpPut("a1", "one", clientv3.WithLease(lease.ID))
	done, err := c.Txn(t.Context()).If(clientv3.Compare(clientv3.ModRevision("a1"), "=", 0)).Then(put).Commit()
	if err != nil || !done.Succeeded {
		t.Fatalf("%+v, %v", done, err)
	}
	got, err := other.Get(t.Context(), "a1")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "one" {
		t.Fatalf("%+v, %v", got, err)
	}
	if e := <-events; len(e.Events) != 1 || string(e.Events[0].Kv.Value) != "one" {
		t.Fatalf("%+v", e)
	}
	if err := c.RequestProgress(clientv3.WithRequireLeader(t.Context())); err != nil {
		t.Fatal(err)
	}
	if e := <-events; !e.IsProgressNotify() || e.Header.Revision != got.Header.Revision {
		t.Errorf("progress is %+v, want revision %d", e, got.Header.Revision)
	}
	if got, err := c.Status(t.Context(), Endpoint); err != nil || got.Version == "" {
		t.Errorf("%+v, %v", got, err)
	}

	// What the API server does not need could outlive the member.
	if _, err := c.Leases(t.Context()); status.Code(err) != codes.Unimplemented {
		t.Errorf("the leases: %v", err)
	}
	if _, err := c.Revoke(t.Context(), lease.ID); status.Code(err) != codes.Unimplemented {
		t.Errorf("the end of a lease: %v", err)
	}

	// A client that closes, as the storage of a deleted custom resource does, leaves the others alone.
	c.Close()
	if _, err := other.Get(t.Context(), "a1"); err != nil {
		t.Error(err)
	}
	s.Stop()
	if _, err := other.Get(t.Context(), "a1"); err == nil {
		t.Error("a stopped member answers")
	}
}

func TestLargeRequestsAreRefused(t *testing.T) {
	s, err := Start(Options{Dir: filepath.Join(t.TempDir(), "etcd")})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	if _, err := s.Client().Put(t.Context(), "a", string(make([]byte, 2<<20))); err == nil {
		t.Error("a request of 2 MiB was accepted")
	}
}

// slowKV answers a Range when it may.
type slowKV struct {
	pb.KVServer
	answer chan struct{}
}

func (s slowKV) Range(context.Context, *pb.RangeRequest) (*pb.RangeResponse, error) {
	<-s.answer
	return &pb.RangeResponse{}, nil
}

// slowWatch is a watch that ends some time after its context.
type slowWatch struct {
	pb.WatchServer
	end chan struct{}
}

func (s slowWatch) Watch(stream pb.Watch_WatchServer) error {
	<-stream.Context().Done()
	<-s.end
	return stream.Context().Err()
}

// watchStream is a stream whose client stays.
type watchStream struct {
	pb.Watch_WatchServer
	ctx context.Context
}

func (s watchStream) Context() context.Context { return s.ctx }

func TestTheEndCancelsWatchesAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &services{watch: slowWatch{end: make(chan struct{})}, opened: make(chan struct{})}
		v.stopped, v.cancel = context.WithCancel(context.Background())
		v.open()
		watched, stopped := make(chan error, 1), make(chan struct{})
		go func() { watched <- v.Watch(watchStream{ctx: t.Context()}) }()
		synctest.Wait() // the watch is in progress
		if v.calls.TryLock() {
			t.Error("the end would not wait for a watch")
			v.calls.Unlock()
		}
		go func() { v.stop(); close(stopped) }()
		close(v.watch.(slowWatch).end)
		if err := <-watched; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch in progress: %v", err)
		}
		<-stopped
		if err := v.Watch(watchStream{ctx: t.Context()}); err == nil {
			t.Error("a watch began after the end")
		}
	})
}

func TestCallsWaitForTheOpeningAndTheEndWaitsForCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &services{kv: slowKV{answer: make(chan struct{})}, opened: make(chan struct{})}
		v.stopped, v.cancel = context.WithCancel(context.Background())
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := v.Range(cancelled, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("a call that is cancelled before the opening: %v", err)
		}
		answered := make(chan error, 1)
		go func() {
			_, err := v.Range(t.Context(), nil)
			answered <- err
		}()
		synctest.Wait()
		v.open()
		synctest.Wait() // the call is in progress
		stopped := make(chan struct{})
		go func() { v.stop(); close(stopped) }()
		<-v.stopped.Done()
		select {
		case <-stopped:
			t.Error("the end did not wait for a call")
		default:
		}
		close(v.kv.(slowKV).answer)
		if err := <-answered; err != nil {
			t.Errorf("the call in progress: %v", err)
		}
		<-stopped
		if _, err := v.Range(t.Context(), nil); err == nil {
			t.Error("a call began after the end")
		}
	})
}
