package backup

import (
	"context"
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// fakeSampler samples the revision of a fakeEtcd, as the program of a plane does.
type fakeSampler struct {
	revision func() int64
	reads    atomic.Int64 // calls

	mu    sync.Mutex
	now   func() time.Time // nil: time.Now
	taken []fakeSample
	kept  int                                                          // how many of them; 0: all
	lie   func(first uint64, list []fakeSample) (uint64, []fakeSample) // replaces an answer; nil: none
}

// keptSamples is how many samples a plane keeps.
const keptSamples = 300

type fakeSample struct {
	Time     int64 `json:"time"`
	Revision int64 `json:"revision"`
}

// start takes a sample in each second, until the result is called, and answers the calls.
func (s *fakeSampler) start(server *grpc.Server, revision func() int64) (stop func()) {
	s.revision = revision
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			now := s.clock()
			select {
			case <-ctx.Done():
				return
			case <-time.After(now.Truncate(time.Second).Add(time.Second).Sub(now)):
				s.take()
			}
		}
	}()
	read := func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		after := &wrapperspb.UInt64Value{}
		if err := decode(after); err != nil {
			return nil, err
		}
		s.take()
		s.reads.Add(1)
		content, err := json.Marshal(s.answer(after.Value))
		return wrapperspb.Bytes(content), err
	}
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "atoll.plane.Samples", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Read", Handler: read}}}, s)
	return func() { cancel(); <-ended }
}

func (s *fakeSampler) clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now != nil {
		return s.now()
	}
	return time.Now()
}

func (s *fakeSampler) setClock(now func() time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now = now
}

func (s *fakeSampler) setLie(lie func(first uint64, list []fakeSample) (uint64, []fakeSample)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lie = lie
}

func (s *fakeSampler) take() {
	now := s.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.taken)
	if n == 0 || !time.Unix(0, s.taken[n-1].Time).Truncate(time.Second).Equal(now.Truncate(time.Second)) {
		s.taken = append(s.taken, fakeSample{now.UnixNano(), s.revision()})
	}
}

// answer returns the samples after a number.
func (s *fakeSampler) answer(after uint64) any {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := uint64(1)
	if len(s.taken) > keptSamples {
		first = uint64(len(s.taken)-keptSamples) + 1
	}
	if after <= uint64(len(s.taken)) {
		first = max(first, after+1)
	}
	list := s.taken[first-1:]
	if s.lie != nil {
		first, list = s.lie(first, append([]fakeSample(nil), list...))
	}
	return map[string]any{"first": first, "samples": list}
}
