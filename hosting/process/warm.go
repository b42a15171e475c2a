package process

import (
	"cmp"
	"slices"
	"time"

	"atoll.dev/hosting/controlplane"
)

// Warm describes the pool of warm planes: planes that run, belong to no cluster, and wait until Ensure gives each to a
// new cluster.
type Warm struct {
	Planes int // number of planes that wait; 0: none is started, and existing ones are deleted
	// Spec is the spec of every warm plane. Its only server name is a wildcard, and its Name has no effect. A cluster gets
	// a warm plane only if its spec equals this one, but for its names, which the wildcard must cover.
	Spec controlplane.Spec
	// Memory returns the bytes that this machine can give to other processes. While it has little, warm planes end.
	// Default: it always has enough.
	Memory func() (int64, error)
	// Room returns how many warm planes the management cluster has room for by its capacity. With less room than Planes
	// there are fewer, so that no plane waits for a cluster that cannot be placed. Default: no limit.
	Room func() int
}

// wanted returns how many planes wait, by the number that is ordered and the room for them.
func (w Warm) wanted() int {
	if w.Room == nil || w.Planes == 0 {
		return w.Planes
	}
	return min(w.Planes, max(w.Room(), 0))
}

// fits reports whether the pool's planes can serve a cluster's first start.
func (w Warm) fits(spec controlplane.Spec) bool {
	return w.Planes > 0 && len(spec.ServerNames) > 0 && coversAll(w.Spec.ServerNames, spec.ServerNames) &&
		spec.Release == w.Spec.Release && spec.ServiceCIDR == w.Spec.ServiceCIDR && spec.Size == w.Spec.Size &&
		spec.Data == "" && spec.Copy == "" && spec.EmulatedVersion == "" && spec.Rotations == controlplane.Rotations{}
}

// isMadeFor reports whether the plane of a record can wait in a pool.
func (r record) isMadeFor(w Warm) bool {
	return w.Planes > 0 && r.Release == w.Spec.Release && r.ServiceCIDR == w.Spec.ServiceCIDR && r.Size == w.Spec.Size &&
		slices.Equal(r.Hosts, w.Spec.ServerNames)
}

// Limits of the free memory of the machine, for warm planes. A warm plane takes about 250 MiB, so that the end of one
// does not make room for the start of the next.
const (
	// warmEnd is the sum of what a small plane may take and of the reserve of a restore drill: a warm plane ends when the
	// machine has less. So customers' planes and drills find the same room as without warm planes.
	warmEnd = 1<<30 + 256<<20
	// warmStart is the free memory that the start of another warm plane requires.
	warmStart = 2 << 30
)

const (
	warmAge   = 24 * time.Hour  // a plane that has waited for so long is replaced: its certificates and data stay young
	warmLimit = 5 * time.Minute // until a plane is ready; then it is replaced: its data may be damaged
	warmRest  = time.Second     // without an order of a customer's plane, before another warm plane starts
	warmEvery = 2 * time.Second // between two looks at the pool
)

// warmPlane is a plane of the pool.
type warmPlane struct {
	ID      controlplane.ID
	Made    time.Time
	Known   time.Time // when this runtime made the plane, or found it
	IsReady bool      // the plane runs and answers; only in the input of decideWarm
	MustEnd bool      // the plane must be deleted, or is being deleted: no cluster gets it
}

// warmSituation is the input of decideWarm.
type warmSituation struct {
	Planes []warmPlane
	Wanted int
	Memory int64     // of the machine, in bytes, for other processes; negative: not known
	Busy   time.Time // when a customer's plane was last ordered or started
}

// decideWarm returns the planes of the pool that end, and whether another one starts. At most one starts at a time, and
// only while no customer's plane starts.
func decideWarm(s warmSituation, now time.Time) (end []controlplane.ID, start bool) {
	var kept []warmPlane
	for _, p := range s.Planes {
		if p.MustEnd || !p.IsReady && now.Sub(p.Known) > warmLimit {
			end = append(end, p.ID)
		} else {
			kept = append(kept, p)
		}
	}
	// Ready planes come first, the oldest before the others: the last one ends first.
	slices.SortFunc(kept, func(a, b warmPlane) int {
		if a.IsReady != b.IsReady {
			return cmp.Compare(readyRank(a), readyRank(b))
		}
		return cmp.Or(a.Made.Compare(b.Made), cmp.Compare(a.ID.Name, b.ID.Name))
	})
	areReady := !slices.ContainsFunc(kept, func(p warmPlane) bool { return !p.IsReady })
	switch surplus := len(kept) - s.Wanted; {
	case surplus > 0:
		for _, p := range kept[s.Wanted:] {
			end = append(end, p.ID)
		}
	case len(kept) > 0 && s.Memory >= 0 && s.Memory < warmEnd:
		end = append(end, kept[len(kept)-1].ID)
	case surplus == 0 && len(kept) > 0 && now.Sub(oldestOf(kept).Made) > warmAge:
		end = append(end, oldestOf(kept).ID)
	case surplus < 0 && areReady && s.Memory >= warmStart && now.Sub(s.Busy) >= warmRest:
		start = len(end) == 0 // an ending plane still uses memory
	}
	return end, start
}

func readyRank(p warmPlane) int {
	if p.IsReady {
		return 0
	}
	return 1
}

func oldestOf(planes []warmPlane) warmPlane {
	return slices.MinFunc(planes, func(a, b warmPlane) int { return a.Made.Compare(b.Made) })
}
