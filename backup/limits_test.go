package backup

import (
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"atoll.dev/plane"
)

// A plane may send changes that no etcd sends. They end the chain with an error, and take a bounded memory.
func TestChangesThatNoEtcdSendsEndTheChain(t *testing.T) {
	change := func(revision int64, bytes int) *mvccpb.Event {
		return &mvccpb.Event{Kv: &mvccpb.KeyValue{ModRevision: revision, Value: make([]byte, bytes)}}
	}
	for name, next := range map[string]func(n int64) *pb.WatchResponse{
		"without a key": func(int64) *pb.WatchResponse { return &pb.WatchResponse{Events: []*mvccpb.Event{{}}} },
		"one revision without an end": func(int64) *pb.WatchResponse {
			return &pb.WatchResponse{Events: []*mvccpb.Event{change(6, 1<<20)}}
		},
		"one fragment without an end": func(int64) *pb.WatchResponse {
			return &pb.WatchResponse{Events: []*mvccpb.Event{change(6, 1<<20)}, Fragment: true}
		},
		"falling revisions": func(n int64) *pb.WatchResponse {
			return &pb.WatchResponse{Events: []*mvccpb.Event{change(1000-n, 1)}}
		},
	} {
		p, err := &pendingLog{received: 5}, error(nil)
		for n := int64(0); err == nil && n < 100; n++ {
			err = p.addChanges(next(n))
		}
		if !errors.Is(err, errNoEtcd) || len(p.events) > pendingMax+2<<20 {
			t.Errorf("%s: %d bytes are kept, %v", name, len(p.events), err)
		}
	}
}

// A plane whose watch delivers nothing makes its follower keep a bounded number of samples.
func TestSamplesWithoutTheirChangesAreBounded(t *testing.T) {
	begun := time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)
	p := &pendingLog{received: 5}
	var last Sample
	for n := range 10 * samplesMax {
		at := begun.Add(time.Duration(n+1) * time.Second)
		last = Sample{Time: at, Revision: int64(n + 10)}
		err := p.addPlaneSamples([]plane.Sample{{Time: at, Revision: last.Revision}}, Sample{Time: begun, Revision: 5},
			reading{now: at, period: begun}, begun)
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.samples); n != samplesMax || p.samples[n-1] != last || p.sampledTo != last.Revision {
		t.Errorf("%d samples are kept, the last one is %+v, want %+v", n, p.samples[n-1], last)
	}
}
