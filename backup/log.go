package backup

import (
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	segmentEvery = 4 * time.Second // time between two segments while etcd changes
	segmentSize  = 1 << 20         // bytes of changes from which a segment is stored at once
	segmentMax   = 4 << 20         // bytes of changes from which a segment is stored although no sample is complete
	markEvery    = 6 * time.Second // time between two marks while etcd does not change
	allKeys      = "\x00"          // key and end of a range of all keys
)

// boundary is the end of a revision's changes in pending events.
type boundary struct {
	revision int64
	end      int
}

// pendingLog are the changes and samples that are in no segment yet.
type pendingLog struct {
	events     []byte
	boundaries []boundary
	samples    []Sample // in order; a sample is complete when all changes up to its revision have come
	received   int64    // revision of the last change
	sampled    int64    // revision of the last sample; 0: there was none
}

// addChanges takes changes from the watch.
func (p *pendingLog) addChanges(r *pb.WatchResponse) (err error) {
	for _, e := range r.Events {
		if p.events, err = appendEvent(p.events, e); err != nil {
			return err
		}
		p.received = e.Kv.ModRevision
		if n := len(p.boundaries); n > 0 && p.boundaries[n-1].revision == p.received {
			p.boundaries[n-1].end = len(p.events)
		} else {
			p.boundaries = append(p.boundaries, boundary{p.received, len(p.events)})
		}
	}
	return nil
}

// addSample adds a sample. Of consecutive samples with one revision the first and the last stay.
func (p *pendingLog) addSample(s Sample) {
	p.sampled = s.Revision
	if n := len(p.samples); n > 1 && p.samples[n-1].Revision == s.Revision && p.samples[n-2].Revision == s.Revision {
		p.samples[n-1] = s
		return
	}
	p.samples = append(p.samples, s)
}

// lastCompleteSample returns the last sample all of whose changes have come.
func (p *pendingLog) lastCompleteSample() (to Sample, ok bool) {
	for i := len(p.samples) - 1; i >= 0; i-- {
		if p.samples[i].Revision <= p.received {
			return p.samples[i], true
		}
	}
	return Sample{}, false
}

// hasAll reports whether a sample was taken, and all changes up to the revision of the last one have come.
func (p *pendingLog) hasAll() bool { return p.sampled > 0 && p.sampled <= p.received }

// addSampleAtBoundary adds a sample with the last revision all of whose changes have come, and returns it. The sample's
// time is that of the last complete sample, or else that of stored, the end of the stored log: etcd has sent every
// write that it acknowledged before that time. A response may end within a revision, so the last revision that came
// does not count.
func (p *pendingLog) addSampleAtBoundary(stored Sample) (to Sample, ok bool) {
	n := len(p.boundaries) - 1
	if n < 1 {
		return Sample{}, false
	}
	to = Sample{Time: stored.Time, Revision: p.boundaries[n-1].revision}
	at := 0
	for at < len(p.samples) && p.samples[at].Revision <= to.Revision {
		to.Time = p.samples[at].Time
		at++
	}
	p.samples = slices.Insert(p.samples, at, to)
	return to, true
}

// cutUpTo removes the samples and changes up to a sample from p, and returns them.
func (p *pendingLog) cutUpTo(to Sample) (samples []Sample, events []byte) {
	n := 0
	for n < len(p.samples) && !p.samples[n].Time.After(to.Time) && p.samples[n].Revision <= to.Revision {
		n++
	}
	samples, p.samples = p.samples[:n:n], append([]Sample(nil), p.samples[n:]...)
	end, used := 0, 0
	for used < len(p.boundaries) && p.boundaries[used].revision <= to.Revision {
		end = p.boundaries[used].end
		used++
	}
	events = p.events[:end:end]
	rest := append(make([]byte, 0, len(p.events)-end), p.events[end:]...)
	boundaries := make([]boundary, 0, len(p.boundaries)-used)
	for _, m := range p.boundaries[used:] {
		boundaries = append(boundaries, boundary{m.revision, m.end - end})
	}
	p.events, p.boundaries = rest, boundaries
	return samples, events
}

// keepLog stores all changes after the snapshot, in segments, until ctx or etcd ends. It always returns an error.
//
// The watch's gate opens each second, before etcd is asked for its revision, and closes when all changes up to that
// revision have come. So a second's changes are read at once, and everything that etcd has sent is read without a pause
// while the watch is behind.
func (c *chain) keepLog() error {
	ctx, cancel := context.WithCancel(c.ctx)
	w, err := c.startWatch(ctx, c.last.Revision+1)
	if err != nil {
		cancel()
		return err
	}
	defer func() { cancel(); <-w.ended }()

	p := &pendingLog{received: c.last.Revision}
	tick := time.NewTimer(untilNext(sampleEvery))
	defer tick.Stop()
	stored, isComplete := time.Now(), false
	for {
		if p.hasAll() {
			w.gate.close()
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-w.ended:
			return c.storeRest(p, w.err)
		case r := <-w.responses:
			if err := p.addChanges(r); err != nil {
				return err
			}
			if len(p.events) < segmentSize || len(p.events) < segmentMax && len(p.samples) > 0 {
				continue
			}
		case <-tick.C:
			tick.Reset(untilNext(sampleEvery))
		}
		w.gate.open()
		s, err := c.takeSample()
		if err != nil {
			return c.endLog(p, w, err)
		}
		p.addSample(s)
		to, ok := p.lastCompleteSample()
		if len(p.events) >= segmentMax && (!ok || to.Revision == c.last.Revision) {
			to, ok = p.addSampleAtBoundary(c.last) // etcd sends many changes at once, and the next sample is after them all
		}
		if !ok {
			continue
		}
		age, isIdle := time.Since(stored), to.Revision == c.last.Revision
		switch {
		case isIdle && (age >= markEvery || !isComplete):
			err = c.storeMark(to)
		case !isIdle && (age >= segmentEvery || len(p.events) >= segmentSize || !isComplete):
			err = c.storeSegment(p, to)
		default:
			continue
		}
		if err != nil {
			return err
		}
		stored = time.Now()
		if !isComplete {
			isComplete = true
			close(c.complete)
		}
	}
}

// endLog ends the log for a cause, which it returns, or the error of the store. When etcd has ended, endLog stores all
// that etcd has sent. When the clock was set back, it stores the changes up to the last sample: the later ones belong
// to the next chain. It waits for them for a second at most, because etcd may hang.
func (c *chain) endLog(p *pendingLog, w *watch, cause error) error {
	w.gate.open()
	limit := time.NewTimer(sampleEvery)
	defer limit.Stop()
	hasEnough := func() bool { return len(p.events) >= segmentMax || errors.Is(cause, errSetBack) && p.hasAll() }
	for !hasEnough() {
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case r := <-w.responses:
			if err := p.addChanges(r); err != nil {
				return err
			}
		case <-w.ended:
			return c.storeRest(p, cause)
		case <-limit.C:
			return c.storeRest(p, cause)
		}
	}
	return c.storeRest(p, cause)
}

// storeRest stores the changes that etcd has sent before it ended. No sample was taken after the last changes, so their
// segment gets the time of the last complete sample: it has every write acknowledged before that time. storeRest
// returns cause, or the error of the store.
func (c *chain) storeRest(p *pendingLog, cause error) error {
	at := c.last.Time
	if to, ok := p.lastCompleteSample(); ok {
		at = to.Time
	}
	if p.received > c.last.Revision {
		p.samples = append(p.samples[:0:0], Sample{Time: at, Revision: p.received})
		if err := c.storeSegment(p, p.samples[0]); err != nil {
			return err
		}
	}
	return cause
}

// storeSegment stores the segment that ends with a sample.
func (c *chain) storeSegment(p *pendingLog, to Sample) error {
	s := segment{Number: c.number, Previous: c.previous, From: c.last, To: to}
	s.Samples, s.events = p.cutUpTo(to)
	plain, err := s.encode(c.compress)
	if err != nil {
		return err
	}
	name := c.prefix + segmentName(s.Number)
	object, err := c.key.Seal(name, plain)
	if err != nil {
		return err
	}
	if err := c.f.put(c.ctx, name, object); err != nil {
		return err
	}
	c.number, c.previous, c.last = c.number+1, sha256Of(object), to
	c.f.recordStored(c.period, to.Time)
	before := c.size
	if c.size += len(s.events); c.size >= chainSize && before < chainSize {
		close(c.large)
	}
	return nil
}
