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

// startSamples returns a reader of the samples that the plane takes from now on. The error is plane.ErrNoSamples when
// an older program runs the plane.
func startSamples(ctx context.Context, conn *grpc.ClientConn) (*samples, error) {
	s := &samples{conn: conn}
	if _, err := s.read(ctx); err != nil {
		return nil, err
	}
	return s, nil
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
// A chain's times never decrease. When the clock was set back (the period of now is not the given one),
// addPlaneSamples adds the samples up to the first whose time is earlier than that of the one before. Some of them
// may be of after the step; a restore to a moment never uses those, because their times belong to the new period.
// When the clock was not set back, errUntrue is a time after now, one that is not in a later second than that of the
// sample before, and a revision that is lower than the one before. Then no sample is added: when one is untrue,
// nobody knows which others are.
func (p *pendingLog) addPlaneSamples(list []plane.Sample, stored Sample, now reading, period time.Time) error {
	isSetBack := !now.period.Equal(period)
	last := stored
	if n := len(p.samples); n > 0 {
		last = p.samples[n-1]
	}
	var added []Sample
	for i, s := range list {
		if isSetBack && i > 0 && s.Time.Before(list[i-1].Time) {
			break
		}
		if s.Revision < 0 || !isSetBack && s.Time.After(now.now) || i > 0 && contradicts(s, list[i-1]) {
			return errUntrue
		}
		if s.Time.After(last.Time) && s.Revision >= last.Revision { // else the log has a later one
			last = Sample{Time: s.Time, Revision: s.Revision}
			added = append(added, last)
		}
	}
	for _, s := range added {
		p.addSample(s)
	}
	return nil
}

// contradicts reports whether no plane takes the sample s next after before, while nobody sets its clock back.
func contradicts(s, before plane.Sample) bool {
	return s.Revision < before.Revision || !s.Time.Truncate(time.Second).After(before.Time.Truncate(time.Second))
}

// dropIncompleteSamples removes the samples whose changes have not come.
func (p *pendingLog) dropIncompleteSamples() {
	p.samples = slices.DeleteFunc(p.samples, func(s Sample) bool { return s.Revision > p.received })
}
