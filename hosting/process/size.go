package process

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

func withDefaults(l Limits) Limits {
	return Limits{
		Memory: cmp.Or(l.Memory, 4<<30), Processes: cmp.Or(l.Processes, 4096), CPUWeight: cmp.Or(l.CPUWeight, 100),
	}
}

// limitsOf returns the limits of a size where all is the limit of planes without one.
func limitsOf(size cluster.Size, all Limits) Limits {
	if size == "" {
		return all
	}
	l := size.Limits()
	memory := min(l.Memory, all.Memory)
	if size == cluster.Large {
		memory = all.Memory
	}
	return Limits{Memory: memory, Processes: min(l.Processes, all.Processes), CPUWeight: l.CPUWeight}
}

// yieldingWeight is the weight of the processors of a scratch plane and of a warm one. That of the smallest customer's
// plane is 100.
const yieldingWeight = 10

// limits returns the limits that hold for the plane: those of its size. A plane that is no customer's yields
// the processors.
func (x *runner) limits() Limits {
	l := limitsOf(x.record.Size, x.runtime.o.Limits)
	if !x.isCustomers() {
		l.CPUWeight = yieldingWeight
	}
	return l
}

// softLimit is the memory at which the collector of the plane's next process aims: some must be left for what
// is not the heap.
func (x *runner) softLimit() int64 {
	soft := x.limits().Memory / 4 * 3
	if x.record.Size == "" {
		soft = min(memoryLimit, soft)
	}
	return soft
}

// sizeState returns what the observation shows of the plane's size.
func (x *runner) sizeState() controlplane.SizeState {
	return controlplane.SizeState{Size: x.record.Size, Wanted: x.record.Wanted, Limits: x.limits(),
		IsEnforced: x.refused == nil && (x.limited || x.process == nil && x.runtime.cgroups != nil),
		IsRefused:  x.refused != nil, OutOfMemory: x.record.OutOfMemory}
}

// holdSize makes the ordered size that of the plane, as far as the plane's use permits it, and limits a running process
// by it. The record is written before: the next runtime has the same limits. A process that was started without a size,
// by an earlier version, keeps its limits until its next start.
func (x *runner) holdSize(ordered cluster.Size) error {
	had := x.record.Size
	if had == "" && x.record.Born && ordered.IsKnown() {
		had = cluster.Large // its limits were no smaller
	}
	size := cluster.HeldSize(had, ordered, x.need.Wanted)
	if size == x.record.Size || x.record.Size == "" && x.process != nil && size != cluster.Large {
		// A process that was started without a size aims at more memory than a small one has.
		x.holdLimits()
		return nil
	}
	next := x.record
	next.Size = size
	if err := next.write(x.state); err != nil {
		return err
	}
	x.record = next
	x.log.Info("a plane has another size", "size", size, "before", had, "ordered", ordered, "wanted", x.need.Wanted)
	x.holdLimits()
	x.show(func(*controlplane.Observation) {}) // after the limits: an observer of the size finds them
	return nil
}

// holdLimits gives the plane's limits to the kernel unless the kernel has them. The kernel may refuse them; the
// observation shows that, and the next measurement tries again.
func (x *runner) holdLimits() {
	g, ok := x.runtime.group(x.slot)
	if !ok || x.process == nil || x.limited && x.held == x.limits() {
		return
	}
	if x.limited {
		x.noteLimits(g.limit(x.limits()))
	} else {
		x.place(x.process)
	}
}

// noteLimits records and shows whether the kernel has the plane's limits: err is why it has refused them.
func (x *runner) noteLimits(err error) {
	if err == nil {
		x.held = x.limits()
	}
	changed := (err == nil) != (x.refused == nil)
	x.refused = err
	if !changed {
		return
	}
	if err != nil {
		x.log.Warn("the limits of a plane are refused; they are tried again", "error", err)
	} else {
		x.log.Info("the limits of a plane hold", "size", x.record.Size)
	}
	x.show(func(o *controlplane.Observation) {
		if !o.ReadySince.IsZero() && x.process != nil {
			o.Walls = x.standingWalls(x.process)
		}
	})
}

// writeSize writes a record with another size, need or end, and shows it.
func (x *runner) writeSize(next record) error {
	if err := next.write(x.state); err != nil {
		return err
	}
	x.record = next
	x.show(func(*controlplane.Observation) {})
	return nil
}

// measure reads what the plane uses, and has the size follow it.
func (x *runner) measure(p *plane.Process, spec controlplane.Spec, now time.Time) error {
	x.need = x.need.Next(cluster.SizeUse{Nodes: spec.Nodes, Memory: unreclaimable(p.PID)}, now)
	if x.need.Wanted != x.record.Wanted {
		next := x.record
		next.Wanted = x.need.Wanted
		if err := x.writeSize(next); err != nil {
			return err
		}
		x.log.Info("a plane needs another size", "wanted", next.Wanted, "size", next.Size)
	}
	return x.holdSize(spec.Size)
}

// recordOutOfMemory records that the kernel has ended the plane for want of memory, so that it gets a larger size.
func (x *runner) recordOutOfMemory(now time.Time) error {
	if x.need.Wanted == "" {
		x.need.Wanted = x.record.Size
	}
	if x.need.Wanted != "" {
		x.need = x.need.Next(cluster.SizeUse{OutOfMemory: true}, now)
	}
	next := x.record
	next.Wanted, next.OutOfMemory = x.need.Wanted, now.UTC().Truncate(time.Second)
	return x.writeSize(next)
}

// unreclaimable returns the bytes of a process that the kernel cannot take away, as it can the pages of files; 0 for a
// process that has ended. A plane is one process, so no control group is needed for that.
func unreclaimable(pid int) int64 {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(content)) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
