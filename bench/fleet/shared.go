package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bench/bed"
)

// slots is the number of slots into which Maestro divides consumers.
const slots = 64

// slotOf returns the slot of a consumer, as Maestro computes it.
func slotOf(consumer string) int {
	h := fnv.New32a()
	h.Write([]byte(consumer))
	return int(h.Sum32() % slots)
}

// measureShared starts a second server, measures the throughput of one and of two, then kills the second server and
// measures when the first delivers to its consumers.
func (f *fleet) measureShared(ctx context.Context) error {
	figures := map[string]any{}
	var many []int
	for k := range min(*changed, f.worksOfEach) {
		many = append(many, f.ofEach(k)...)
	}
	figures["changed_works"] = len(many)
	if err := f.measureChanges(ctx, many, "one", figures); err != nil {
		return err
	}
	alone, err := f.holders(ctx)
	if err != nil {
		return err
	}
	first := alone[0]
	begun := time.Now()
	second, err := f.bed.StartReplica(ctx)
	if err != nil {
		return err
	}
	figures["second_serving_after_s"] = seconds(begun)
	// The division is complete when the second server holds slots and every slot has a holder.
	shared := alone
	if err := bed.Await(ctx, 20*time.Millisecond, func() error {
		if shared, err = f.holders(ctx); err != nil {
			return err
		}
		own := count(shared, first)
		if vacant := count(shared, 0); vacant > 0 || own == slots {
			return fmt.Errorf("the first server holds %d slots, %d have no holder", own, vacant)
		}
		return nil
	}); err != nil {
		return err
	}
	figures["shared_after_s"] = seconds(begun)
	figures["slots_of_first"], figures["slots_of_second"] = count(shared, first), slots-count(shared, first)
	// A server that begins asks all agents to compare. The changes are measured when that is done.
	if err := f.awaitAgreement(ctx, begun, begun, nil, map[string]any{}); err != nil {
		return err
	}
	if err := f.measureChanges(ctx, many, "two", figures); err != nil {
		return err
	}
	if shared, err = f.holders(ctx); err != nil {
		return err
	}
	var moving []int // the first work of each consumer of the second server
	for cluster := range f.clusters {
		if shared[slotOf(bed.Consumer(cluster))] != first {
			moving = append(moving, cluster)
		}
	}
	figures["consumers_of_second"] = len(moving)
	second.Kill()
	if err := f.measureTakeover(ctx, first, moving, figures); err != nil {
		return err
	}
	return f.report("shared", figures)
}

// measureTakeover measures when the first server, after the end of the second, holds all slots and delivers changes to
// the consumers that it takes over. moving has a work of each.
func (f *fleet) measureTakeover(ctx context.Context, first int64, moving []int, figures map[string]any) error {
	begun := time.Now()
	taken := make(chan error, 1)
	go func() {
		err := bed.Await(ctx, 20*time.Millisecond, func() error {
			now, err := f.holders(ctx)
			if err == nil && count(now, first) < slots {
				err = fmt.Errorf("the first server holds %d slots", count(now, first))
			}
			return err
		})
		figures["slots_moved_after_s"] = seconds(begun)
		taken <- err
	}()
	took, err := f.changeAndAwait(ctx, moving)
	if err != nil {
		return err
	}
	if err := <-taken; err != nil {
		return err
	}
	figures["changes_of_moved_consumers_s"] = round(took.Seconds())
	return f.awaitAgreement(ctx, begun, begun, nil, figures)
}

// measureChanges measures how many changed works are delivered and acknowledged in a second.
func (f *fleet) measureChanges(ctx context.Context, works []int, servers string, figures map[string]any) error {
	before, err := bed.ProcessorTime(f.bed.Server.Pid())
	if err != nil {
		return err
	}
	took, err := f.changeAndAwait(ctx, works)
	if err != nil {
		return err
	}
	after, err := bed.ProcessorTime(f.bed.Server.Pid())
	if err != nil {
		return err
	}
	figures[servers+"_changes_per_second"] = round(float64(len(works)) / took.Seconds())
	figures[servers+"_first_server_cores"] = round((after - before).Seconds() / took.Seconds())
	return nil
}

// holders reads the key of each slot's holder; 0 for none.
func (f *fleet) holders(ctx context.Context) (keys []int64, err error) {
	err = f.query(ctx, func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `select holder from delivery_slot order by slot`)
		if err != nil {
			return err
		}
		keys, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		if err == nil && len(keys) != slots {
			err = fmt.Errorf("there are %d slots, not %d", len(keys), slots)
		}
		return err
	})
	return keys, err
}

func count(keys []int64, key int64) (n int) {
	for _, k := range keys {
		if k == key {
			n++
		}
	}
	return n
}
