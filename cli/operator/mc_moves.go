package operator

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/cli/terminal"
	"atoll.dev/cluster"
)

// mover is the part of the connection to the lifecycle manager that moves of several clusters use.
type mover interface {
	PlacedOn(ctx context.Context, managementCluster cluster.ManagementCluster) ([]cluster.ID, error)
	Move(ctx context.Context, id cluster.ID, o fleet.MoveOrder) (fleet.Placement, error)
	moveWatcher
}

// moveWatcher is the part of the connection to the lifecycle manager that shows the progress of a move.
type moveWatcher interface {
	Placement(ctx context.Context, id cluster.ID) (fleet.Placement, error)
	// MoveReport returns what the management cluster of the placement last reported of a move, which may be an earlier
	// one.
	MoveReport(ctx context.Context, id cluster.ID) (cluster.MoveData, error)
}

// moves moves clusters, several at once, and records what became of each. Drains, recoveries and rebalancings use it.
type moves struct {
	step     fleet.MoveStep // Start or Recover
	parallel int            // moves at once
	timeout  time.Duration  // of the wait for one cluster
	fleet    mover

	mu       sync.Mutex
	progress io.Writer
	moved    []outcome
	stayed   []outcome
}

// outcome says what became of one cluster: To is its new management cluster, or Error says why it stays.
type outcome struct {
	ClusterID cluster.ID `json:"cluster_id"`
	To        string     `json:"to,omitempty"`
	Error     string     `json:"error,omitempty"`
}

// wantedMove is a cluster that leaves a management cluster; the region chooses the target when to is "".
type wantedMove struct {
	id   cluster.ID
	from cluster.ManagementCluster
	to   string
}

// pass moves clusters, in their order and parallel at once, and returns when all have ended. A cluster that cannot move
// does not stop the others. The error is that ctx has ended.
func (m *moves) pass(ctx context.Context, wanted []wantedMove) error {
	slots := make(chan struct{}, m.parallel)
	var running sync.WaitGroup
	for _, w := range wanted {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-slots }()
			m.moveOne(ctx, w)
		})
	}
	running.Wait()
	return context.Cause(ctx)
}

// hasTried reports whether a cluster has moved, or has failed to.
func (m *moves) hasTried(id cluster.ID) bool {
	is := func(r outcome) bool { return r.ClusterID == id }
	return slices.ContainsFunc(m.moved, is) || slices.ContainsFunc(m.stayed, is)
}

// moveOne moves a cluster, or waits for the move away that has begun, and records what became of it.
func (m *moves) moveOne(ctx context.Context, w wantedMove) {
	p, err := m.fleet.Placement(ctx, w.id)
	if err == nil && !m.isLeaving(p, w.from) {
		p, err = m.fleet.Move(ctx, w.id, fleet.MoveOrder{Step: m.step, To: w.to})
	}
	if err == nil {
		p, err = awaitMove(ctx, m.fleet, p, m.step, m.timeout, io.Discard)
	}
	if ctx.Err() != nil {
		return // a move goes on, and the next drain waits for it; a recovery goes on without being awaited
	}
	r := outcome{ClusterID: w.id}
	if err != nil {
		r.Error = explainError(err).Error()
		m.printf("%s stays: %s\n", w.id, terminal.OneLine(r.Error))
	} else {
		r.To = p.Move.To
		m.printf("%s %s: it is on %s\n", w.id, m.past(), r.To)
	}
	m.record(r)
}

// record records what became of a cluster.
func (m *moves) record(r outcome) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r.Error != "" {
		m.stayed = append(m.stayed, r)
	} else {
		m.moved = append(m.moved, r)
	}
}

// isLeaving reports whether a move of the cluster away from a management cluster has begun. A recovery has no such
// state: the placement changes when it begins.
func (m *moves) isLeaving(p fleet.Placement, from cluster.ManagementCluster) bool {
	return m.step == fleet.Start && p.Move != nil && p.Move.Phase == fleet.Moving && p.Move.From == string(from)
}

// past returns the word for what was done with a cluster.
func (m *moves) past() string {
	if m.step == fleet.Recover {
		return "recovered"
	}
	return "moved"
}

func (m *moves) printf(format string, args ...any) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(m.progress, format, args...)
}
