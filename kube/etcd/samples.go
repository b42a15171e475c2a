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

	mu        sync.Mutex
	kept      []sample // consecutive ones, the last one last
	taken     uint64   // the number of all samples, and of the last one
	isStopped bool
}

func newSampler(revision func() int64) *sampler { return &sampler{now: time.Now, revision: revision} }

// run takes samples until ctx ends. The member has applied what its log had when it started: its revision before is
// lower than that of writes that it has acknowledged.
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

// take takes a sample, unless the last one is of the same second.
func (s *sampler) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now().Round(0)
	n := len(s.kept)
	if s.isStopped || n > 0 && now.Truncate(time.Second).Equal(time.Unix(0, s.kept[n-1].Time).Truncate(time.Second)) {
		return
	}
	if n == keptSamples {
		s.kept = append(s.kept[:0], s.kept[1:]...)
	}
	s.kept = append(s.kept, sample{Time: now.UnixNano(), Revision: s.revision()})
	s.taken++
}

// stop returns when nothing reads the member's revision any more.
func (s *sampler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isStopped = true
}

// after returns the kept samples with greater numbers than n, and the number of the first of them. It returns all when
// no sample has the number n yet: it is of a time before the member's start.
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
