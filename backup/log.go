package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

const (
	lookEvery    = 8 * time.Second // time between two looks at a plane that samples its revision and changes little
	segmentEvery = 4 * time.Second // time between two segments while etcd changes much, and less than segmentSize
	segmentSize  = 1 << 20         // bytes of changes from which a segment is stored at once
	segmentMax   = 4 << 20         // bytes of changes from which a segment is stored although no sample is complete
	pendingMax   = 16 << 20        // bytes of changes that no segment can end: no etcd has a revision of this size
	samplesMax   = 600             // samples whose changes have not come
	markEvery    = 6 * time.Second // time between two marks while etcd does not change
	slack        = sampleEvery / 2 // by how much an object may be early: looks are at whole seconds, more or less
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
	received   int64    // all changes up to this revision have come
	sampledTo  int64    // revision of the last sample; 0: there was none
	pace       pace
}

// errNoEtcd is the error of a watch that delivers what no etcd delivers. A plane may send anything.
var errNoEtcd = errors.New("the plane sends changes that no etcd sends")

// addChanges takes changes from the watch.
func (p *pendingLog) addChanges(r *pb.WatchResponse) (err error) {
	before, revision := len(p.events), p.received
	for _, e := range r.Events {
		if e.Kv == nil || e.Kv.ModRevision < revision {
			return fmt.Errorf("%w: one without a key, or one that is older than the one before it", errNoEtcd)
		}
		if p.events, err = appendEvent(p.events, e); err != nil {
			return err
		}
		revision = e.Kv.ModRevision
		if n := len(p.boundaries); n > 0 && p.boundaries[n-1].revision == revision {
			p.boundaries[n-1].end = len(p.events)
		} else {
			p.boundaries = append(p.boundaries, boundary{revision, len(p.events)})
		}
	}
	if r.Fragment { // the next response may have more changes of the last revision
		revision--
	}
	p.received = max(p.received, revision)
	p.pace.add(len(r.Events), len(p.events)-before)
	if len(p.events) > pendingMax {
		return fmt.Errorf("%w: %d bytes without the end of a revision", errNoEtcd, len(p.events))
	}
	return nil
}

// addSample adds a sample. Of consecutive samples with one revision the first and the last stay. While samplesMax wait
// for their changes, it replaces the last one: a restore to a second between the two has the changes up to the later.
func (p *pendingLog) addSample(s Sample) {
	p.sampledTo = s.Revision
	n := len(p.samples)
	isSame := n > 1 && p.samples[n-1].Revision == s.Revision && p.samples[n-2].Revision == s.Revision
	if isSame || n >= samplesMax {
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
func (p *pendingLog) hasAll() bool { return p.sampledTo > 0 && p.sampledTo <= p.received }

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
// The watch's gate opens with each look, before the samples are read, and closes when all changes up to the last sample
// have come. So the changes between two looks are read at once, and everything that etcd has sent is read without a
// pause while the watch is behind.
func (c *chain) keepLog() error {
	ctx, cancel := context.WithCancel(c.ctx)
	w, err := c.startWatch(ctx, c.last.Revision+1)
	if err != nil {
		cancel()
		return err
	}
	defer func() { cancel(); w.wait() }()

	p := &pendingLog{received: c.last.Revision}
	p.pace.look(time.Now())
	tick := time.NewTimer(untilNext(sampleEvery, 0))
	defer tick.Stop()
	c.stored = p.pace.at
	for {
		if p.hasAll() {
			w.gate.close()
		}
		isLook, hasCaughtUp, wasBehind := false, false, !p.hasAll()
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-w.ended:
			return c.storeRest(p, w.err)
		case r := <-w.responses:
			if err := p.addChanges(r); err != nil {
				return err
			}
			asksEtcd, isLarge := c.samples == nil, len(p.events) >= segmentSize
			isLook = asksEtcd && isLarge && (len(p.events) >= segmentMax || len(p.samples) == 0)
			hasCaughtUp = wasBehind && p.hasAll()
			if !isLook && !hasCaughtUp && (asksEtcd || !isLarge) {
				continue
			}
		case <-tick.C:
			isLook = true
		}
		if isLook {
			w.gate.open()
			if err := c.look(p); err != nil {
				return c.endLog(p, w, err)
			}
		}
		// When this look has found changes, the gate that it opened delivers them now; they are stored when all have come.
		if isBehind := !p.hasAll(); wasBehind || !isBehind {
			if err := c.storePending(p); err != nil {
				return err
			}
		}
		if isLook || hasCaughtUp {
			tick.Reset(c.untilLook(p))
		}
	}
}

// look reads the plane's samples since the last look, or takes one. When they are untrue, or cannot be read, it takes
// one at each look from now on.
func (c *chain) look(p *pendingLog) error {
	p.pace.look(time.Now())
	var untrue error
	if c.samples != nil {
		list, err := c.samples.read(c.ctx)
		now := c.f.readClock()
		if err == nil {
			err = p.addPlaneSamples(list, c.last, now, c.period)
		}
		if !now.period.Equal(c.period) {
			return errSetBack
		}
		if err == nil {
			return nil
		}
		untrue, c.samples = err, nil
		p.dropIncompleteSamples()
	}
	s, err := c.takeSample()
	if err != nil {
		return err
	}
	if untrue != nil {
		c.f.o.Log.Warn("the samples of a plane's revision are not used any more; the plane is asked each second",
			"error", untrue)
	}
	p.addSample(s)
	return nil
}

// untilLook returns the time until the next look.
func (c *chain) untilLook(p *pendingLog) time.Duration {
	if c.looksSeldom(p) {
		return untilNext(lookEvery, c.f.o.Plane.offset())
	}
	return untilNext(sampleEvery, 0)
}

// looksSeldom reports whether the next look is one lookEvery away: the plane takes samples, all changes up to the last
// one have come, and they were few. Before the first object of the log is stored, looks are each second.
func (c *chain) looksSeldom(p *pendingLog) bool {
	return c.samples != nil && c.hasLog && p.hasAll() && !p.pace.isFast()
}

// storePending stores the changes up to the last complete sample, or a mark when etcd has not changed since the stored
// log. When the next look is soon, it stores nothing a short time after the last object.
func (c *chain) storePending(p *pendingLog) (err error) {
	to, ok := p.lastCompleteSample()
	if len(p.events) >= segmentMax && (!ok || to.Revision == c.last.Revision) {
		to, ok = p.addSampleAtBoundary(c.last) // etcd sends many changes at once, and the next sample is after them all
	}
	if !ok {
		return nil
	}
	age := p.pace.at.Sub(c.stored) + slack
	storesAtOnce := !c.hasLog || c.looksSeldom(p)
	switch isIdle := to.Revision == c.last.Revision; {
	case isIdle && (storesAtOnce || age >= markEvery):
		err = c.storeMark(to)
	case !isIdle && (storesAtOnce || age >= segmentEvery || len(p.events) >= segmentSize):
		err = c.storeSegment(p, to)
	default:
		return nil
	}
	if err != nil {
		return err
	}
	c.stored = p.pace.at
	if !c.hasLog {
		c.hasLog = true
		close(c.complete)
	}
	return nil
}

// endLog ends the log for a cause. It returns the cause, or the error that kept it from storing all that etcd has sent.
// When the clock was set back, it stores the changes up to the last sample: the later ones belong to the next chain. It
// waits for changes for a second at most, because etcd may hang.
func (c *chain) endLog(p *pendingLog, w *watch, cause error) error {
	w.gate.open()
	limit := time.NewTimer(sampleEvery)
	defer limit.Stop()
	for !errors.Is(cause, errSetBack) || !p.hasAll() {
		if len(p.events) >= segmentMax && p.received > c.last.Revision {
			if err := c.storeRest(p, nil); err != nil {
				return err
			}
			limit.Reset(sampleEvery)
		}
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

// storeRest stores the changes that etcd has sent before it ended. No sample was taken after the last changes, so they
// get one with the time of the last complete sample: it has every write acknowledged before that time. storeRest
// returns cause, or the error of the store.
func (c *chain) storeRest(p *pendingLog, cause error) error {
	if p.received <= c.last.Revision {
		return cause
	}
	at := c.last.Time
	if to, ok := p.lastCompleteSample(); ok {
		at = to.Time
	}
	p.samples = slices.DeleteFunc(p.samples, func(s Sample) bool { return s.Revision >= p.received })
	end := Sample{Time: at, Revision: p.received}
	p.samples = append(p.samples, end)
	if err := c.storeSegment(p, end); err != nil {
		return err
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
