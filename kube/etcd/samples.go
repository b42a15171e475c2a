package etcd

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	samplesService = "atoll.plane.Samples"
	samplesMethod  = "/" + samplesService + "/Read"
	// keptSamples bounds the samples that a sampler keeps: those of five minutes.
	keptSamples = 300
)

// sample is a moment, and the revision of the member after it: it has every write that the member acknowledged before
// the moment.
type sample struct {
	Time     int64 `json:"time"` // nanoseconds since 1970, by the wall clock
	Revision int64 `json:"revision"`
}

// sampler takes a sample in each second of the wall clock, as soon as the second has begun, and keeps the last ones. So
// a program that makes backups need not ask for the revision in each second. A sample has the time at which it was
// taken, never the time at which it should have been: a late one claims nothing about the seconds before. When the
// clock was set back, a time may be earlier than that of the sample before. Many goroutines may use a sampler.
type sampler struct {
	now      func() time.Time
	revision func() int64 // of the member

	taking    sync.Mutex // held while a sample is taken: etcd answers nobody while it defragments itself
	isStopped bool       // taking protects it

	mu    sync.Mutex
	kept  []sample // the last samples, in the order in which they were taken, without gaps
	taken uint64   // how many samples were taken; also the number of the last one
}

func newSampler(revision func() int64) *sampler { return &sampler{now: time.Now, revision: revision} }

// run takes samples until ctx ends. It must not be called before the member is ready: until the member has applied its
// log, its revision lacks acknowledged writes.
func (s *sampler) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		s.take()
		now := s.now()
		timer.Reset(now.Truncate(time.Second).Add(time.Second).Sub(now))
	}
}

// take takes a sample, unless the last one is of the same second, or another goroutine is taking one.
func (s *sampler) take() {
	if !s.taking.TryLock() {
		return
	}
	defer s.taking.Unlock()
	now := s.now().Round(0)
	if s.isStopped || s.hasSecond(now) {
		return
	}
	taken := sample{Time: now.UnixNano(), Revision: s.revision()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.kept) == keptSamples {
		s.kept = append(s.kept[:0], s.kept[1:]...)
	}
	s.kept = append(s.kept, taken)
	s.taken++
}

// hasSecond reports whether the last sample is of the second of a moment.
func (s *sampler) hasSecond(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.kept)
	return n > 0 && now.Truncate(time.Second).Equal(time.Unix(0, s.kept[n-1].Time).Truncate(time.Second))
}

// stop waits until nobody reads the member's revision, also while etcd defragments itself. Nobody reads it after that.
func (s *sampler) stop() {
	s.taking.Lock()
	defer s.taking.Unlock()
	s.isStopped = true
}

// after returns the kept samples with greater numbers than n, and the number of the first of them. It returns all when
// n is lower than the number of the first kept one, and when no sample has the number n yet: then n is from before the
// member was started again.
func (s *sampler) after(n uint64) (first uint64, list []sample) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = s.taken - uint64(len(s.kept)) + 1
	skip := uint64(0)
	if n >= first && n <= s.taken {
		skip = n - first + 1
	}
	return first + skip, append([]sample(nil), s.kept[skip:]...)
}

// read answers the call: the samples after a number, as plane/samples.go describes it.
func (s *sampler) read(n uint64) (*wrapperspb.BytesValue, error) {
	s.take()
	first, list := s.after(n)
	answer, err := json.Marshal(struct {
		First   uint64   `json:"first"`
		Samples []sample `json:"samples"`
	}{first, list})
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return wrapperspb.Bytes(answer), nil
}

// service returns the description of the service that answers the call.
func (s *sampler) service() *grpc.ServiceDesc {
	read := func(_ any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
		request := &wrapperspb.UInt64Value{}
		if err := decode(request); err != nil {
			return nil, err
		}
		answer := func(context.Context, any) (any, error) { return s.read(request.Value) }
		if intercept == nil {
			return answer(ctx, request)
		}
		return intercept(ctx, request, &grpc.UnaryServerInfo{Server: s, FullMethod: samplesMethod}, answer)
	}
	return &grpc.ServiceDesc{ServiceName: samplesService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Read", Handler: read}}}
}
