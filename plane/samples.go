package plane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// samplesMethod is the call that returns samples. The request is a UInt64Value, the number after which samples are
	// asked for, and the answer a BytesValue with wireSamples as JSON. kube/etcd/samples.go is the other side.
	samplesMethod = "/atoll.plane.Samples/Read"
	// samplesLimit bounds an answer, in bytes: a plane keeps 300 samples of 60 bytes.
	samplesLimit = 64 << 10
)

// ErrNoSamples is the error of a plane that takes no samples: an older program runs it.
var ErrNoSamples = errors.New("the plane takes no samples of its revision")

// Sample is a moment, and the revision of a plane's etcd that was read after the moment. The revision has every write
// that etcd acknowledged before the moment. The plane takes one in each second of its wall clock, as soon as the
// second has begun.
type Sample struct {
	Time     time.Time
	Revision int64
}

// Samples are consecutive samples of a plane, in the order in which it took them.
type Samples struct {
	// First is the number of the first sample. A plane counts its samples from 1 on since its start.
	First uint64
	List  []Sample
}

// Last returns the number of the last sample; 0 when there is none.
func (s Samples) Last() uint64 {
	if len(s.List) == 0 {
		return 0
	}
	return s.First + uint64(len(s.List)) - 1
}

// wireSamples is the answer of the call.
type wireSamples struct {
	First   uint64       `json:"first"`
	Samples []wireSample `json:"samples"`
}

// wireSample is one sample.
type wireSample struct {
	Time     int64 `json:"time"` // nanoseconds since 1970
	Revision int64 `json:"revision"`
}

// ReadSamples returns the samples of a plane with greater numbers than after, over a connection of DialStore. The plane
// takes one before it answers, when the present second has none. It keeps the samples of five minutes. When it has not
// yet taken so many, because it was started again, it returns all. The error is ErrNoSamples when an older program runs
// the plane.
//
// The caller must not believe what the plane says: ReadSamples bounds only the size of the answer.
func ReadSamples(ctx context.Context, conn *grpc.ClientConn, after uint64) (Samples, error) {
	var answer wrapperspb.BytesValue
	err := conn.Invoke(ctx, samplesMethod, wrapperspb.UInt64(after), &answer, grpc.MaxCallRecvMsgSize(samplesLimit))
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented, codes.PermissionDenied: // an older plane's socket refuses each call that it does not know
		return Samples{}, ErrNoSamples
	default:
		return Samples{}, fmt.Errorf("asking a plane for the samples of its revision: %w", err)
	}
	var wire wireSamples
	if err := json.Unmarshal(answer.Value, &wire); err != nil {
		return Samples{}, fmt.Errorf("the samples of a plane's revision: %w", err)
	}
	s := Samples{First: wire.First, List: make([]Sample, len(wire.Samples))}
	for i, w := range wire.Samples {
		s.List[i] = Sample{Time: time.Unix(0, w.Time).UTC(), Revision: w.Revision}
	}
	return s, nil
}
