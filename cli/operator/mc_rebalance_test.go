package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

// plannedMoves is a lifecycle manager that plans to move all clusters away from "full", and counts its moves.
type plannedMoves struct {
	*movesInMemory
	others int         // moves of other commands
	end    time.Time   // of these
	limits map[int]int // of the plans
}

func newPlannedMoves(clusters int) *plannedMoves {
	m := &plannedMoves{movesInMemory: &movesInMemory{placed: map[cluster.ID]fleet.Placement{},
		arrives: map[cluster.ID]time.Time{}}, limits: map[int]int{}}
	for i := range clusters {
		id := cluster.ID(fmt.Sprint("c-", i))
		m.placed[id] = fleet.Placement{ClusterID: string(id), ManagementCluster: "full"}
	}
	return m
}

func (m *plannedMoves) PlanRebalance(ctx context.Context, limit int, stay []cluster.ID) (p fleet.RebalancePlan,
	err error) {
	for i := range len(m.placed) {
		_, _ = m.Placement(ctx, cluster.ID(fmt.Sprint("c-", i))) // it notes a move that has ended
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limits[limit]++
	p.Moving = len(m.arrives)
	if time.Now().Before(m.end) {
		p.Moving += m.others
	}
	for i := range len(m.placed) {
		id := cluster.ID(fmt.Sprint("c-", i))
		_, isMoving := m.arrives[id]
		if m.placed[id].ManagementCluster == "full" && !isMoving && !slices.Contains(stay, id) && len(p.Moves) < limit {
			p.Moves = append(p.Moves, fleet.PlannedMove{ClusterID: string(id), From: "full", To: "other"})
		}
	}
	return p, nil
}

func (m *plannedMoves) rebalance(limit int) *rebalance {
	return &rebalance{planner: m, moves: moves{step: fleet.Start, parallel: limit, timeout: time.Minute, fleet: m,
		progress: io.Discard}}
}

func TestARebalancingThatWaitsMovesAllThatCanMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPlannedMoves(7)
		m.refuses = "c-1"
		m.others, m.end = 3, time.Now().Add(30*time.Second)
		m.start("c-4") // by a rebalancing that was interrupted
		r, began := m.rebalance(3), time.Now()
		if err := r.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(r.moved) != 5 || len(r.stayed) != 1 || r.stayed[0].ClusterID != "c-1" || r.stayed[0].Error != "no room" {
			t.Errorf("moved %v, stayed %v", r.moved, r.stayed)
		}
		if m.most > 3 || len(m.limits) != 1 || m.limits[3] == 0 {
			t.Errorf("%d clusters moved at once, the limits of the plans were %v", m.most, m.limits)
		}
		if took := time.Since(began); took < 30*time.Second {
			t.Errorf("it ended after %s, before the moves of others", took)
		}
	})
}

func TestARebalancingThatDoesNotWaitStartsAsManyAsTheLimitLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPlannedMoves(9)
		for _, want := range []int{3, 0} { // the second call finds all places taken
			r := m.rebalance(3)
			if err := r.start(t.Context()); err != nil || len(r.started) != want || len(r.moved)+len(r.stayed) > 0 {
				t.Errorf("%v, started %v, moved %v, stayed %v", err, r.started, r.moved, r.stayed)
			}
		}
		<-time.After(5 * time.Second) // the moves have ended
		if r := m.rebalance(2); r.start(t.Context()) != nil || len(r.started) != 2 {
			t.Errorf("after their end it started %v", r.started)
		}
	})
}

func TestARebalancingEndsWhileTheMovesOfOthersDoNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newPlannedMoves(1)
		m.others, m.end = 2, time.Now().Add(time.Hour)
		r := m.rebalance(1)
		if err := r.run(t.Context()); !errors.Is(err, errOthersMove) || len(r.moved)+len(r.stayed) > 0 {
			t.Errorf("%v, moved %v, stayed %v", err, r.moved, r.stayed)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := m.rebalance(1).run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an interrupted one: %v", err)
		}
	})
}
