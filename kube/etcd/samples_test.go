package etcd

import (
	"context"
	"encoding/json"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A sampler takes a sample as soon as each second has begun, whatever calls come in between.
func TestASamplerTakesASampleInEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		<-time.After(300 * time.Millisecond)
		var revision atomic.Int64
		s := newSampler(revision.Load)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); s.run(ctx) }()
		begun := time.Now()
		for range 100 {
			<-time.After(70 * time.Millisecond)
			revision.Add(1)
			if _, err := s.read(0); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		<-ended
		first, list := s.after(0)
		if first != 1 || len(list) != 8 {
			t.Fatalf("%d samples in 7 s, the first has number %d", len(list), first)
		}
		for i, x := range list {
			at := time.Unix(0, x.Time)
			if want := begun.Truncate(time.Second).Add(time.Duration(i) * time.Second); i > 0 && !at.Equal(want) {
				t.Errorf("sample %d is of %s, want %s", i, at, want)
			}
			if want := int64(at.Sub(begun) / (70 * time.Millisecond)); x.Revision != want && x.Revision != want-1 {
				t.Errorf("sample %d after %s has revision %d", i, at.Sub(begun), x.Revision)
			}
		}
	})
}

// A sample has the time at which it was taken: a late one claims no second before. When the clock was set back, the
// next sample shows that. The oldest samples give way.
func TestASampleHasTheTimeAtWhichItWasTaken(t *testing.T) {
	begun := time.Unix(1_800_000_000, 0)
	now, revision := begun, int64(0)
	s := newSampler(func() int64 { revision++; return revision })
	s.now = func() time.Time { return now }
	take := func(after time.Duration) {
		now = begun.Add(after)
		s.take()
	}
	for _, after := range []time.Duration{100, 900, 1000, 5700, 6000, 2300, 2999, 3000} {
		take(after * time.Millisecond)
	}
	_, list := s.after(0)
	var got []time.Duration
	for i, x := range list {
		if got = append(got, time.Unix(0, x.Time).Sub(begun)/time.Millisecond); x.Revision != int64(i+1) {
			t.Errorf("sample %d has revision %d", i, x.Revision)
		}
	}
	if want := []time.Duration{100, 1000, 5700, 6000, 2300, 3000}; len(got) != len(want) {
		t.Errorf("samples were taken at %d, want %d", got, want)
	} else {
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("sample %d was taken at %d, want %d", i, got[i], want[i])
			}
		}
	}

	for n := range 2 * keptSamples {
		take(time.Duration(100+n) * time.Second)
	}
	const all = 6 + 2*keptSamples
	for after, want := range map[uint64][2]uint64{
		0: {all - keptSamples + 1, keptSamples}, 5: {all - keptSamples + 1, keptSamples},
		all - keptSamples: {all - keptSamples + 1, keptSamples}, all - 3: {all - 2, 3}, all: {all + 1, 0},
		all + 1: {all - keptSamples + 1, keptSamples}, // of the plane's time before a restart
	} {
		if first, list := s.after(after); first != want[0] || len(list) != int(want[1]) {
			t.Errorf("after %d: %d samples from number %d on, want %d from %d on", after, len(list), first, want[1], want[0])
		}
	}
	s.stop()
	take(time.Hour)
	if s.taken != all {
		t.Error("a sampler that was stopped has read the member's revision")
	}
}

// A sample over the socket has every write that was acknowledged before its time, and none that began after the answer.
func TestASampleHasEveryAcknowledgedWrite(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "etcd.sock")
	s, err := Start(Options{Dir: filepath.Join(dir, "etcd"), Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	c := s.Client()
	type write struct {
		began, ended time.Time
		revision     int64
	}
	var journal []write
	for len(journal) < 2 || journal[len(journal)-1].ended.Sub(journal[0].began) < 2500*time.Millisecond {
		w := write{began: time.Now()}
		put, err := c.Put(t.Context(), "a", "x")
		if err != nil {
			t.Fatal(err)
		}
		w.ended, w.revision = time.Now(), put.Header.Revision
		journal = append(journal, w)
	}
	var answer wrapperspb.BytesValue
	if err := conn.Invoke(t.Context(), samplesMethod, wrapperspb.UInt64(0), &answer,
		grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
	answered := time.Now()
	var got struct {
		First   uint64
		Samples []sample
	}
	if err := json.Unmarshal(answer.Value, &got); err != nil || got.First != 1 || len(got.Samples) < 3 {
		t.Fatalf("%s, %v", answer.Value, err)
	}
	for i, x := range got.Samples {
		at := time.Unix(0, x.Time)
		next := answered
		if i+1 < len(got.Samples) {
			next = time.Unix(0, got.Samples[i+1].Time)
		}
		for _, w := range journal {
			if w.ended.Before(at) && w.revision > x.Revision {
				t.Errorf("the sample of %s has revision %d, and %d was acknowledged at %s", at, x.Revision, w.revision, w.ended)
			}
			if w.began.After(next) && w.revision <= x.Revision {
				t.Errorf("the sample of %s has revision %d, and %d began at %s", at, x.Revision, w.revision, w.began)
			}
		}
	}
	if err := conn.Invoke(t.Context(), "/atoll.plane.Samples/Write", wrapperspb.UInt64(0), &answer); status.Code(err) !=
		codes.Unimplemented {
		t.Errorf("a call that the service does not have: %v", err)
	}
	s.Stop()
	taken := s.sampler.taken
	s.sampler.take()
	if s.sampler.taken != taken {
		t.Error("the revision of a stopped member was read")
	}
}
