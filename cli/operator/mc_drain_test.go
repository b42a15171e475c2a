package operator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/cluster"
)

// movesInMemory moves clusters from one management cluster to another, each in some seconds.
type movesInMemory struct {
	mu      sync.Mutex
	placed  map[cluster.ID]fleet.Placement
	arrives map[cluster.ID]time.Time
	refuses cluster.ID
	waits   cluster.ID // its move never ends
	most    int        // moves at once
}

func (m *movesInMemory) PlacedOn(_ context.Context, mc cluster.ManagementCluster) (ids []cluster.ID, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, p := range m.placed {
		if p.ManagementCluster == string(mc) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, nil
}

func (m *movesInMemory) Move(_ context.Context, id cluster.ID, o fleet.MoveOrder) (fleet.Placement, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id == m.refuses {
		return fleet.Placement{}, errors.New("no room")
	}
	m.start(id)
	return m.placed[id], nil
}

// start starts the move of a cluster. The caller holds mu.
func (m *movesInMemory) start(id cluster.ID) {
	p := m.placed[id]
	p.Move = &fleet.Move{ID: "m-" + string(id), From: p.ManagementCluster, To: "other", At: p.ManagementCluster,
		Phase: fleet.Moving}
	m.placed[id], m.arrives[id] = p, time.Now().Add(5*time.Second)
	m.most = max(m.most, len(m.arrives))
}

func (m *movesInMemory) Placement(_ context.Context, id cluster.ID) (fleet.Placement, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.placed[id]
	if at, isMoving := m.arrives[id]; isMoving && id != m.waits && !time.Now().Before(at) {
		move := *p.Move
		move.Phase = fleet.Forwarding
		p.Move, p.ManagementCluster = &move, move.To
		m.placed[id] = p
		delete(m.arrives, id)
	}
	return p, nil
}

// MoveReport has the reason of waits for a cluster that waits, and otherwise an earlier move.
func (m *movesInMemory) MoveReport(_ context.Context, id cluster.ID) (cluster.MoveData, error) {
	if id == m.waits {
		return cluster.MoveData{ID: "m-" + string(id), Phase: "Waiting", Message: "there are no backups"}, nil
	}
	return cluster.MoveData{ID: "earlier", Message: "an earlier move"}, nil
}

func TestADrainMovesAllClustersThatCanMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &movesInMemory{placed: map[cluster.ID]fleet.Placement{}, arrives: map[cluster.ID]time.Time{}, refuses: "c-2"}
		for i := range 6 {
			id := cluster.ID(fmt.Sprint("c-", i))
			m.placed[id] = fleet.Placement{ClusterID: string(id), ManagementCluster: "drained"}
		}
		m.start("c-4") // by a drain that was interrupted
		d := &drain{moves: moves{step: fleet.Start, parallel: 2, timeout: time.Minute, fleet: m, progress: io.Discard},
			from: "drained"}
		if err := d.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if len(d.moved) != 5 || len(d.stayed) != 1 || d.stayed[0].ClusterID != "c-2" || d.stayed[0].Error != "no room" {
			t.Errorf("moved %v, stayed %v", d.moved, d.stayed)
		}
		if m.most > 3 { // two of this drain, beside the one that had begun
			t.Errorf("%d clusters moved at once", m.most)
		}
		if left, _ := m.PlacedOn(t.Context(), "drained"); len(left) != 1 {
			t.Errorf("%v are left", left)
		}
	})
}

func TestAnInterruptedDrainRecordsNothingOfItsMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &movesInMemory{placed: map[cluster.ID]fleet.Placement{"c": {ClusterID: "c", ManagementCluster: "drained"}},
			arrives: map[cluster.ID]time.Time{}}
		d := &drain{moves: moves{step: fleet.Start, parallel: 1, timeout: time.Minute, fleet: m, progress: io.Discard},
			from: "drained"}
		ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
		defer cancel()
		if err := d.run(ctx); !errors.Is(err, context.DeadlineExceeded) || len(d.moved)+len(d.stayed) > 0 {
			t.Errorf("%v, moved %v, stayed %v", err, d.moved, d.stayed)
		}
		if err := d.run(t.Context()); err != nil || len(d.moved) != 1 {
			t.Errorf("the next drain: %v, moved %v", err, d.moved)
		}
	})
}
