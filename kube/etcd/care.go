package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap/zapcore"
)

const (
	careEvery = 10 * time.Second // between two measurements
	callLimit = time.Minute      // of one compaction or change of an alarm

	// routineDefragment is the least interval between two defragmentations of a store that has room.
	routineDefragment = time.Hour
	// crowdedDefragment is the least interval between two of a store that is nearly full.
	crowdedDefragment = 10 * time.Minute
	// routineSize is the size from which a store that has room is defragmented.
	routineSize = 64 << 20
)

// usage is one measurement of the store.
type usage struct {
	Size      int64 // of the file, with the pages that are free
	InUse     int64
	Quota     int64
	Revision  int64
	Compacted int64 // the last revision to which care compacted; 0: none yet
	NoSpace   bool  // etcd refuses writes, because Size has reached Quota
	// SinceDefragment is the time since the last defragmentation, or since the start.
	SinceDefragment time.Duration
}

// step is what care does next with the store.
type step string

const (
	rest       step = "rest"
	compact    step = "compact"    // remove the old versions of all objects
	defragment step = "defragment" // give the free pages back; reads and writes wait for it
	disarm     step = "disarm"     // etcd accepts writes again
)

// isCrowded reports whether the store is nearly full: the file has 9/10 of the quota.
func (u usage) isCrowded() bool { return u.Size > u.Quota/10*9 }

// decide returns the next step for a store.
//
// The API server compacts every five minutes. It cannot while etcd refuses writes, because its compaction begins with a
// write. So care compacts a store that is full or nearly full, as often as its revision has changed. Only a
// defragmentation makes the file smaller, on which the quota counts; requests wait for it, therefore it runs only when
// it ends the refusal, or gains enough.
func decide(u usage) step {
	switch {
	case u.NoSpace && !u.isCrowded():
		return disarm
	case (u.NoSpace || u.isCrowded()) && u.Revision > u.Compacted:
		return compact
	case u.NoSpace && u.InUse <= u.Quota/10*9:
		return defragment
	case u.isCrowded() && u.InUse <= u.Quota/4*3 && u.SinceDefragment >= crowdedDefragment:
		return defragment
	case u.Size >= routineSize && u.InUse <= u.Size/2 && u.SinceDefragment >= routineDefragment:
		return defragment
	}
	return rest
}

// caretaker keeps the store of one server within its quota. Its goroutine owns it.
type caretaker struct {
	server       *etcdserver.EtcdServer
	quota        int64
	log          LogFunc
	compacted    int64
	defragmented time.Time
}

// run takes care of the store until ctx ends.
func (c *caretaker) run(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-c.server.ReadyNotify():
	}
	tick := time.NewTicker(careEvery)
	defer tick.Stop()
	for {
		for next := decide(c.measure()); next != rest; next = decide(c.measure()) {
			began := time.Now()
			err := c.do(ctx, next)
			if ctx.Err() != nil {
				return
			}
			c.report(next, time.Since(began), err)
			if err != nil {
				break
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *caretaker) measure() usage {
	backend := c.server.Backend()
	u := usage{
		Size: backend.Size(), InUse: backend.SizeInUse(), Quota: c.quota,
		Revision: c.server.KV().Rev(), Compacted: c.compacted, SinceDefragment: time.Since(c.defragmented),
	}
	for _, a := range c.server.Alarms() {
		u.NoSpace = u.NoSpace || a.Alarm == etcdserverpb.AlarmType_NOSPACE
	}
	return u
}

func (c *caretaker) do(ctx context.Context, next step) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	switch next {
	case compact:
		to := c.server.KV().Rev()
		_, err := c.server.Compact(ctx, &etcdserverpb.CompactionRequest{Revision: to, Physical: true})
		if err != nil && !errors.Is(err, mvcc.ErrCompacted) {
			return err
		}
		c.compacted = to
		return nil
	case defragment:
		c.defragmented = time.Now()
		return c.server.Defragment()
	default: // disarm
		_, err := c.server.Alarm(ctx, &etcdserverpb.AlarmRequest{
			MemberID: uint64(c.server.MemberID()), Action: etcdserverpb.AlarmRequest_DEACTIVATE,
			Alarm: etcdserverpb.AlarmType_NOSPACE,
		})
		return err
	}
}

// report logs a step: each is rare, and a defragmentation explains slow requests.
func (c *caretaker) report(done step, took time.Duration, err error) {
	if c.log == nil {
		return
	}
	u := c.measure()
	fields := map[string]any{"step": string(done), "took": took.String(), "size": u.Size, "in_use": u.InUse,
		"quota": u.Quota}
	if err != nil {
		fields["error"] = err.Error()
		c.log(zapcore.WarnLevel, "the store could not be cared for; it is tried again", fields)
		return
	}
	c.log(zapcore.InfoLevel, "the store was cared for", fields)
}
