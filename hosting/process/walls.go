package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

// WallMemory is the wall that a control group is; Observation.Walls lists it beside those of the process.
const WallMemory = "memory"

// allWalls are the walls of a plane that is shut in completely.
var allWalls = []string{plane.WallNetwork, plane.WallMounts, plane.WallUser, plane.WallPrivileges, plane.WallFiles,
	plane.WallCalls, WallMemory}

// probeLimit bounds the search for the walls of a machine that is very busy.
const probeLimit = time.Minute

// walls finds out, once for each program, which walls stand on this machine.
type walls struct {
	mu       sync.Mutex
	found    map[string]plane.Walls // by path of the program
	searches map[string]*search     // in progress, by path of the program
}

// search is a search for the walls with one program, which all callers wait for. walls and err are set before done is
// closed.
type search struct {
	done  chan struct{}
	walls plane.Walls
	err   error
}

// forBinary returns the walls that stand with a program. It waits for a search of another caller with the same
// program, and searches itself when that one fails. A search with one program delays no caller with another one.
func (w *walls) forBinary(ctx context.Context, binary string) (plane.Walls, error) {
	for {
		w.mu.Lock()
		found, isKnown := w.found[binary]
		running := w.searches[binary]
		if !isKnown && running == nil {
			own := &search{done: make(chan struct{})}
			if w.searches == nil {
				w.searches = map[string]*search{}
			}
			w.searches[binary] = own
			w.mu.Unlock()
			w.find(ctx, binary, own)
			return own.walls, own.err
		}
		w.mu.Unlock()
		if isKnown {
			return found, nil
		}
		select {
		case <-running.done:
		case <-ctx.Done():
			return plane.Walls{}, fmt.Errorf("finding the walls of this machine: %w", ctx.Err())
		}
		if running.err == nil {
			return running.walls, nil
		}
	}
}

// find searches for the walls with a program and ends the search. An error is returned to the searcher, because a plane
// must not start without walls after a failed search.
func (w *walls) find(ctx context.Context, binary string, own *search) {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	own.walls, own.err = plane.FindWalls(ctx, binary)
	w.mu.Lock()
	defer w.mu.Unlock()
	if own.err == nil && own.walls.Process { // otherwise the next start looks again: the program may be another one then
		if w.found == nil {
			w.found = map[string]plane.Walls{}
		}
		w.found[binary] = own.walls
	}
	delete(w.searches, binary)
	close(own.done)
}

// missingWalls names the walls that do not stand, for a log line.
func missingWalls(standing []string) string {
	missing := slices.DeleteFunc(slices.Clone(allWalls), func(wall string) bool { return slices.Contains(standing, wall) })
	return strings.Join(missing, ", ")
}

// openCgroups prepares the control groups. Without them planes run, and the memory wall does not stand.
func (r *Runtime) openCgroups() {
	groups, err := findCgroups(r.o.Dir)
	if err != nil {
		r.o.Log.Warn("planes have no memory limit: control groups cannot be made", "error", err)
		return
	}
	r.cgroups = groups
}

// joinGroup puts a process of the plane into the plane's control group. Without a group the plane runs, and the wall
// does not stand. When the kernel refuses, applyLimits tries again.
func (x *runner) joinGroup(p *plane.Process) {
	x.inGroup = false
	g, ok := x.runtime.group(x.slot)
	if !ok {
		return
	}
	err := g.place(p.PID, x.limits())
	if errors.Is(err, fs.ErrNotExist) { // another runtime has removed the empty directory of the groups
		if err = x.runtime.cgroups.open(); err == nil {
			err = g.place(p.PID, x.limits())
		}
	}
	if err == nil {
		x.inGroup, x.killed = true, g.killed()
	}
	x.recordLimits(err)
}

// exited returns why the plane's process ended.
func (x *runner) exited(p *plane.Process) error {
	if g, ok := x.runtime.group(x.slot); ok && x.inGroup && g.killed() > x.killed {
		err := fmt.Errorf("%w of %d MiB", errOutOfMemory, x.limits().Memory>>20)
		return errors.Join(err, x.recordOutOfMemory(time.Now()))
	}
	return fmt.Errorf("%w: %s", plane.ErrExited, p.LastOutput())
}

// standingWalls returns the walls around a ready plane.
func (x *runner) standingWalls(p *plane.Process) []string {
	var standing []string
	if r, err := p.Config.Readiness(); err == nil {
		standing = r.Walls
	}
	if x.inGroup {
		standing = append(standing, WallMemory)
	}
	return standing
}

// group returns the control group of a slot; false when there are none.
func (r *Runtime) group(slot controlplane.ID) (group, bool) {
	if r.cgroups == nil {
		return group{}, false
	}
	return r.cgroups.group(slot), true
}
