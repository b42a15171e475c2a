package intake

import (
	"bytes"
	"context"
	"log/slog"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pause"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/fairqueue"
	"atoll.dev/maestro/wire"
	"atoll.dev/store"
)

// A few workers store statuses, for all consumers in turn. One worker at a time
// stores the statuses of a consumer, so no worker waits for another's row lock. A
// worker stores the statuses that have arrived, one or many, in one transaction, and
// acknowledges them to the broker after the commit (I6). So a single status is stored
// at once, and in a flood many statuses share one flush to disk.
const (
	workers   = 4
	batchSize = 128
)

// shares is room for two reports of each of 1,000 works of a consumer.
var shares = fairqueue.Shares{Items: 2048, Bytes: 16 << 20, AllItems: 32 << 10, AllBytes: 128 << 20, Turn: 32}

// statusItem is a status that is not stored yet. ack acknowledges it to the carrier,
// which then does not send it again.
type statusItem struct {
	consumer work.Consumer
	m        bus.Event
	ack      func()
	refused  func(reason string) // called instead of ack for a dropped status; may be nil
	ev       bundle.StatusEvent  // set when a worker has decoded m
}

// acknowledge calls refused for a dropped status, if the item has it, and ack otherwise.
func (i *statusItem) acknowledge() {
	if i.refused != nil && i.ev.Dropped != "" {
		i.refused(i.ev.Dropped)
		return
	}
	i.ack()
}

// put queues a status. It never waits, because meanwhile nothing would read the broker's
// connection. If the status exceeds the consumer's share, put drops it, even if a smaller
// status of the same work is queued; runWorker requests the agent's statuses when it has
// stored the queued ones.
func (in *Intake) put(item statusItem) {
	old, ok := in.queue.Put(item.consumer, item.key(), len(item.m.Data)+512, item, item.replaces)
	switch {
	case !ok:
		in.o.Dropped.WithLabelValues("overflow").Inc()
		item.ack()
	case old != nil:
		in.o.Dropped.WithLabelValues("superseded").Inc()
		old.ack()
	}
}

// putWait queues a status, and waits until its consumer's share has room or ctx ends.
func (in *Intake) putWait(ctx context.Context, item statusItem) error {
	for {
		roomChanged := in.queue.RoomChanged()
		if _, ok := in.queue.Put(item.consumer, "", 512, item, nil); ok {
			return nil
		}
		select {
		case <-roomChanged:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// key returns the work of a status that a later status may replace in the queue, and
// "" for other statuses. No later status replaces a report that a work is deleted.
func (i *statusItem) key() string {
	if i.m.Type != work.StatusUpdate || bytes.Contains(i.m.Data, []byte(`"Deleted"`)) {
		return ""
	}
	return i.m.Extensions[work.ExtResourceID]
}

// replaces reports whether the status replaces an older one of its work in the queue:
// both have the same generation and source, and this one has the later sequence.
func (i *statusItem) replaces(old statusItem) bool {
	same := func(ext string) bool { return i.m.Extensions[ext] == old.m.Extensions[ext] }
	before, now := old.m.Extensions[work.ExtSequenceID], i.m.Extensions[work.ExtSequenceID]
	return same(work.ExtResourceVersion) && same(work.ExtOriginalSource) && same(work.ExtClusterName) &&
		before != "" && bundle.IsNewer(now, before)
}

// runWorker stores queued statuses until ctx ends. Several workers run it.
func (in *Intake) runWorker(ctx context.Context) error {
	for {
		batch := in.queue.Take(ctx, batchSize)
		if len(batch.Items) == 0 {
			return nil
		}
		in.store(ctx, batch.Items)
		for _, consumer := range in.queue.Done(batch) {
			in.o.Resync.AskAgent(consumer)
		}
	}
}

// store stores the items in one transaction and acknowledges them. It tries again while
// the database is down. When an item cannot be stored at all, it stores the items one by
// one and drops that item.
func (in *Intake) store(ctx context.Context, items []statusItem) {
	if items = in.decode(ctx, items); len(items) == 0 {
		return
	}
	in.o.Batch.Observe(float64(len(items)))
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		err := in.storeStatuses(ctx, items)
		switch {
		case err == nil:
			for _, item := range items {
				item.acknowledge()
			}
			if wait > 50*time.Millisecond {
				// While the database was down, the broker may have dropped
				// statuses that waited for this server.
				in.o.Resync.AskAll()
			}
			return
		case ctx.Err() != nil:
			return
		case !store.IsTransient(err) && len(items) > 1:
			for i := range items {
				in.store(ctx, items[i:i+1])
			}
			return
		case !store.IsTransient(err):
			in.o.Dropped.WithLabelValues(bundle.DropMalformed).Inc()
			in.o.Logger.LogAttrs(ctx, slog.LevelWarn, "status dropped: it cannot be stored",
				slog.String("consumer", string(items[0].ev.Topic)),
				slog.String("bundle", string(items[0].ev.Record.ID)), slog.Any("error", err))
			items[0].ev.Dropped = bundle.DropMalformed
			items[0].acknowledge()
			return
		}
		in.o.Logger.LogAttrs(ctx, slog.LevelWarn, "statuses wait for the database", slog.Int("statuses", len(items)),
			slog.Any("error", err))
		if !pause.For(ctx, wait) {
			return
		}
	}
}

// decode decodes the events, drops malformed ones, and returns the others. Workers do
// it rather than put, so that the broker's connection is read without delay.
func (in *Intake) decode(ctx context.Context, items []statusItem) []statusItem {
	good := items[:0]
	for _, item := range items {
		if item.ev.Topic == "" {
			var err error
			if item.ev, err = wire.DecodeStatus(item.consumer, item.m); err != nil {
				in.Drop(ctx, bundle.DropMalformed, item.consumer, item.m, err)
				item.ack()
				continue
			}
			item.m.Data = nil
		}
		good = append(good, item)
	}
	return good
}
