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
	mu    sync.Mutex
	found map[string]plane.Walls // by path of the program
}

func (w *walls) of(ctx context.Context, binary string) (plane.Walls, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if found, ok := w.found[binary]; ok {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	found, err := plane.FindWalls(ctx, binary)
	if err != nil {
		return plane.Walls{}, err // a plane must not start without walls because a search failed
	}
	if found.Process { // otherwise the next start looks again: the program may be another one then
		if w.found == nil {
			w.found = map[string]plane.Walls{}
		}
		w.found[binary] = found
	}
	return found, nil
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

// place puts a process of the plane into the plane's control group. Without a group the plane runs, and the wall does
// not stand. A place that the kernel refuses is tried again by holdLimits.
func (x *runner) place(p *plane.Process) {
	x.limited = false
	g, ok := x.runtime.group(x.id)
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
		x.limited, x.killed = true, g.killed()
	}
	x.noteLimits(err)
}

// exited returns why the plane's process ended.
func (x *runner) exited(p *plane.Process) error {
	if g, ok := x.runtime.group(x.id); ok && x.limited && g.killed() > x.killed {
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
	if x.limited {
		standing = append(standing, WallMemory)
	}
	return standing
}

// group returns a plane's control group; false when there are none.
func (r *Runtime) group(id controlplane.ID) (group, bool) {
	if r.cgroups == nil {
		return group{}, false
	}
	return r.cgroups.group(id), true
}
