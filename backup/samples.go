package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"

	"atoll.dev/plane"
)

// errUntrue is the error of samples that no plane takes: a plane may say anything, so nothing is taken from them.
var errUntrue = errors.New("the samples of the plane contradict each other or the clock of this machine")

// samples reads the samples that a plane takes of its own revision. Only one goroutine may use it.
type samples struct {
	conn *grpc.ClientConn
	last uint64 // number of the last sample that was read
}

// startSamples returns a reader of the samples that the plane takes from now on; nil when an older program runs the
// plane, which takes none, or when it does not answer as a plane does.
func startSamples(ctx context.Context, conn *grpc.ClientConn) *samples {
	s := &samples{conn: conn}
	if _, err := s.read(ctx); err != nil {
		return nil
	}
	return s
}

// read returns the samples since the last call, in the order in which the plane took them. The plane may have lost some
// of them, when the last call was minutes ago.
func (s *samples) read(ctx context.Context) ([]plane.Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	got, err := plane.ReadSamples(ctx, s.conn, s.last)
	if err != nil || len(got.List) == 0 {
		return nil, err
	}
	if got.First <= s.last {
		return nil, fmt.Errorf("%w: sample %d follows number %d", errUntrue, got.First, s.last)
	}
	s.last = got.Last()
	return got.List, nil
}

// addPlaneSamples adds those of the plane's samples to p that are later than stored, the end of the stored log, and
// than the samples of p. now is the time of the wall clock after the samples were read.
//
// A chain's times never decrease. When the clock was set back (period of now is another one), the samples from before
// that are added, and perhaps some from after it: no restore to a moment uses those, because all their times belong to
// the new period. When it was not set back, a time after now, or one before that of the sample before, is errUntrue,
// and so is a revision that is lower than the one before: then only the samples before that are added, of which the
// watch may never deliver the changes.
func (p *pendingLog) addPlaneSamples(list []plane.Sample, stored Sample, now reading, period time.Time) error {
	isSetBack := !now.period.Equal(period)
	last := stored
	if n := len(p.samples); n > 0 {
		last = p.samples[n-1]
	}
	for i, s := range list {
		isEarlier := i > 0 && s.Time.Before(list[i-1].Time)
		switch {
		case isSetBack && isEarlier:
			return nil
		case isEarlier, s.Revision < 0, !isSetBack && s.Time.After(now.now):
			return errUntrue
		case !s.Time.After(last.Time): // taken before the chain began, or before etcd was asked
			continue
		case s.Revision < last.Revision:
			return errUntrue
		}
		last = Sample{Time: s.Time, Revision: s.Revision}
		p.addSample(last)
	}
	return nil
}

// dropIncomplete removes the samples whose changes have not come.
func (p *pendingLog) dropIncomplete() {
	p.samples = slices.DeleteFunc(p.samples, func(s Sample) bool { return s.Revision > p.received })
}
