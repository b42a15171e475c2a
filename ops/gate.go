package ops

import (
	"slices"
	"sync"
	"time"
)

// stage is whether a step begins the work on an operation, or continues it.
type stage int

const (
	beginning stage = iota
	continuing
)

// beginningShare is that each so many turns one goes to a step that begins an operation, if such a step waits. The
// others go to steps that continue operations first: an operation whose work is done ends soon, and a process that
// cannot keep up begins later.
const beginningShare = 4

// gate limits how many steps of operations run at once: calls of the worker, each with the commit of its outcome. The
// limit is that of a pace; a step that takes longer than longStep counts no more. Steps of one stage get their turns in
// the order in which they came.
type gate struct {
	mu      sync.Mutex
	pace    pace
	running int
	granted int // turns, since the last one for a beginning
	waiting [2][]*turn
}

// turn is the right to run one step, from the moment when ready is closed.
type turn struct {
	ready   chan struct{}
	stage   stage
	isReady bool
}

func newGate(now time.Time) *gate { return &gate{pace: newPace(now)} }

// join returns a turn, which is ready as soon as the limit permits. The caller gives it back with leave, whether it was
// ready or not.
func (g *gate) join(of stage, now time.Time) *turn {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := &turn{ready: make(chan struct{}), stage: of}
	g.waiting[of] = append(g.waiting[of], t)
	g.pace = g.pace.withoutRequests(now)
	g.grant()
	return t
}

// leave gives a turn back.
func (g *gate) leave(t *turn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !t.isReady {
		g.waiting[t.stage] = slices.DeleteFunc(g.waiting[t.stage], func(other *turn) bool { return other == t })
		return
	}
	g.running--
	g.grant()
}

// observe takes into account how long a request of a scope took.
func (g *gate) observe(scope string, took time.Duration, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pace = g.pace.observe(scope, took, now)
	g.grant()
}

// grant makes as many turns ready as the limit permits. The caller holds g.mu.
func (g *gate) grant() {
	for g.running < g.pace.limit {
		next := continuing
		if len(g.waiting[continuing]) == 0 || g.granted >= beginningShare-1 && len(g.waiting[beginning]) > 0 {
			next = beginning
		}
		if len(g.waiting[next]) == 0 {
			return
		}
		t := g.waiting[next][0]
		g.waiting[next] = g.waiting[next][1:]
		if g.granted++; next == beginning {
			g.granted = 0
		}
		g.running++
		t.isReady = true
		close(t.ready)
	}
}
