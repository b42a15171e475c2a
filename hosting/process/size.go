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

// withDefaults returns the limits with the default in place of each 0.
func withDefaults(l Limits) Limits {
	return Limits{
		Memory: cmp.Or(l.Memory, 4<<30), Processes: cmp.Or(l.Processes, 4096), CPUWeight: cmp.Or(l.CPUWeight, 100),
	}
}

// limitsOf returns the limits of a plane of a size. all are the limits of a plane without a size, and the upper bound
// of memory and processes of every other one.
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

// idleWeight is the CPU weight of a scratch plane and of a warm plane. The smallest plane of a customer has 100.
const idleWeight = 10

// limits returns the limits of the plane: those of its size. A plane that is no customer's has a smaller CPU weight.
func (x *runner) limits() Limits {
	l := limitsOf(x.record.Size, x.runtime.o.Limits)
	if !x.isCustomers() {
		l.CPUWeight = idleWeight
	}
	return l
}

// softLimit returns the soft memory limit (GOMEMLIMIT) of the plane's next process: three quarters of its memory. The
// rest is for memory that Go does not manage.
func (x *runner) softLimit() int64 {
	soft := x.limits().Memory / 4 * 3
	if x.record.Size == "" {
		soft = min(memoryLimit, soft)
	}
	return soft
}

// sizeState returns the plane's size and limits for its observation.
func (x *runner) sizeState() controlplane.SizeState {
	return controlplane.SizeState{Size: x.record.Size, Wanted: x.record.Wanted, Limits: x.limits(),
		IsEnforced: x.refused == nil && (x.inGroup || x.process == nil && x.runtime.cgroups != nil),
		IsRefused:  x.refused != nil, OutOfMemory: x.record.OutOfMemory}
}

// applySize gives the plane the ordered size, unless the plane uses more than that permits, and applies the limits
// of the size to a running process. It writes the record first, so that the next runtime has the same limits. A
// process that was started without a size, by an earlier version, keeps its limits until its next start.
func (x *runner) applySize(ordered cluster.Size) error {
	had := x.record.Size
	if had == "" && x.record.WasReady && ordered.IsKnown() {
		had = cluster.Large // its limits were no smaller
	}
	size := cluster.EffectiveSize(had, ordered, x.need.Wanted)
	if size == x.record.Size || x.record.Size == "" && x.process != nil && size != cluster.Large {
		// A process that was started without a size aims at more memory than a small one has.
		x.applyLimits()
		return nil
	}
	next := x.record
	next.Size = size
	if err := next.write(x.state); err != nil {
		return err
	}
	x.record = next
	x.log.Info("a plane has another size", "size", size, "before", had, "ordered", ordered, "wanted", x.need.Wanted)
	x.applyLimits()
	x.updateObservation(func(*controlplane.Observation) {}) // after the limits: an observer of the size finds them
	return nil
}

// applyLimits sets the plane's limits in its control group, unless the kernel has accepted them before. The kernel may
// refuse them; the observation shows that, and the next measurement tries again.
func (x *runner) applyLimits() {
	g, ok := x.runtime.group(x.slot)
	if !ok || x.process == nil || x.inGroup && x.accepted == x.limits() {
		return
	}
	if x.inGroup {
		x.recordLimits(g.limit(x.limits()))
	} else {
		x.joinGroup(x.process)
	}
}

// recordLimits records whether the kernel has accepted the plane's limits, and updates the observation. err is the
// reason of a refusal, or nil.
func (x *runner) recordLimits(err error) {
	if err == nil {
		x.accepted = x.limits()
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
	x.updateObservation(func(o *controlplane.Observation) {
		if !o.ReadySince.IsZero() && x.process != nil {
			o.Walls = x.standingWalls(x.process)
		}
	})
}

// writeSize writes a record in which the size, the wanted size or the time of the last lack of memory has changed, and
// updates the observation.
func (x *runner) writeSize(next record) error {
	if err := next.write(x.state); err != nil {
		return err
	}
	x.record = next
	x.updateObservation(func(*controlplane.Observation) {})
	return nil
}

// measure reads the memory that the plane uses, records the size that it needs, and applies the ordered size.
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
	return x.applySize(spec.Size)
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
