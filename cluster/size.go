package cluster

import (
	"slices"
	"time"
)

// Size is the size class of a hosted control plane. It bounds what the plane takes of its management cluster's machine,
// and is what the placement reserves there. The empty Size is that of a plane that was ordered before there were
// classes: it has the limits of the largest.
type Size string

// The sizes, the smallest first. Statuses, placements and a label of HostedClusters have these words.
const (
	Small  Size = "small"
	Medium Size = "medium"
	Large  Size = "large"
)

// Sizes are all sizes, the smallest first.
var Sizes = []Size{Small, Medium, Large}

// SizeLimits are the limits of a control plane of one size.
type SizeLimits struct {
	Nodes     int   // ordered for all node pools; more need a larger size
	Memory    int64 // bytes; the kernel ends a plane that needs more
	Processes int   // processes and threads
	CPUWeight int   // share of the processors when all are busy, among the planes of a machine
	Requests  int   // that the API server works on at the same time, watches not counted; of the plane's next start

	// WatchEvents are the changes that the API server keeps of each resource, for watches that begin at an earlier
	// resource version. They change with the plane's next start.
	WatchEvents int

	Units int64 // of a management cluster's capacity: each is what fleet reserves for a small plane
}

// A plane at rest takes some 200 MiB. Limits are two to three times what the units reserve, 350 MiB each: few planes
// of a machine have their peak at the same time. Requests are the seats of API priority and fairness, of which a list
// takes one for each 100 kB that it reads; those of Large are upstream's default. WatchEvents of one resource take a
// tenth of the memory with objects of 64 KiB (Large: a fifth), and hold 75 s of the leases of all nodes.
var sizeLimits = map[Size]SizeLimits{
	Small: {Nodes: 10, Memory: 1 << 30, Processes: 1024, CPUWeight: 100, Requests: 150, WatchEvents: 1600,
		Units: 1},
	Medium: {Nodes: 50, Memory: 2 << 30, Processes: 2048, CPUWeight: 200, Requests: 300, WatchEvents: 3200,
		Units: 3},
	Large: {Nodes: 1000, Memory: 4 << 30, Processes: 4096, CPUWeight: 400, Requests: 600, WatchEvents: 12800,
		Units: 6},
}

// SmallPlane returns the amounts of a management cluster's capacity that a small control plane reserves. A larger one
// reserves them as often as its size has Units.
func SmallPlane() map[string]int64 { return map[string]int64{"planes": 1, "memory_mib": 350} }

// Limits returns the limits of a size; those of Large for the empty or an unknown one.
func (s Size) Limits() SizeLimits {
	if l, ok := sizeLimits[s]; ok {
		return l
	}
	return sizeLimits[Large]
}

// IsKnown reports whether s is one of Sizes.
func (s Size) IsKnown() bool { return slices.Contains(Sizes, s) }

// SizeData is the size class of a control plane, as hosting reports it.
type SizeData struct {
	Class       Size      `json:"class"`
	Wanted      Size      `json:"wanted"` // that its use needs; "" while nothing is known of its use
	MemoryMiB   int64     `json:"memoryMiB"`
	Processes   int       `json:"processes"`
	CPUWeight   int       `json:"cpuWeight"`
	Nodes       int       `json:"nodes"`
	Enforced    bool      `json:"enforced"` // by the kernel
	OutOfMemory time.Time `json:"outOfMemory"`
	Message     string    `json:"message"` // what is not as it should be, for the cluster's owner; "" when all is
}

// Compare returns a negative number when s is smaller than other, and a positive one when it is larger.
// The empty size is smaller than all.
func (s Size) Compare(other Size) int { return slices.Index(Sizes, s) - slices.Index(Sizes, other) }

// larger returns the next larger size; the largest is its own.
func (s Size) larger() Size { return Sizes[min(slices.Index(Sizes, s)+1, len(Sizes)-1)] }

// SizeUse is the load of a control plane at one moment: nodes and memory.
type SizeUse struct {
	Nodes       int   // ordered for all node pools
	Memory      int64 // measured bytes that the kernel cannot reclaim; 0: not measured
	OutOfMemory bool  // the plane was ended for want of memory since the last measurement
}

// The bounds of a size, in hundredths of its limits. A plane gets a larger size above upAt. It gets a smaller one only
// when it was below downAt of that size for downAfter: between the two it keeps its size, so no use that stays the
// same, or goes up and down within a day, changes the size again and again.
const (
	upAt      = 60
	downAt    = 35
	downAfter = 24 * time.Hour
)

// SizeNeed is the history of a control plane's use, as far as the size depends on it. The zero value is that of a plane
// that was never measured.
type SizeNeed struct {
	Wanted   Size      // that the use needs; "" before the first use
	LowSince time.Time // since when a smaller size is enough; zero: it is not
}

// Next returns the need after a use at now. Wanted grows at once, and by more than one size if necessary; it becomes
// smaller after a day, one size at a time.
func (n SizeNeed) Next(u SizeUse, now time.Time) SizeNeed {
	enough := smallestFor(u, upAt)
	if n.Wanted == "" {
		n.Wanted = enough
	}
	if u.OutOfMemory {
		enough = maxSize(enough, n.Wanted.larger())
	}
	if enough.Compare(n.Wanted) > 0 {
		return SizeNeed{Wanted: enough}
	}
	low := smallestFor(u, downAt)
	switch {
	case u.OutOfMemory || u.Memory == 0 || low.Compare(n.Wanted) >= 0:
		n.LowSince = time.Time{}
	case n.LowSince.IsZero():
		n.LowSince = now
	case now.Sub(n.LowSince) >= downAfter:
		return SizeNeed{Wanted: Sizes[slices.Index(Sizes, n.Wanted)-1]}
	}
	return n
}

// smallestFor returns the smallest size of which the use takes at most a share, in hundredths, of the memory. Its nodes
// are an order and no measurement: at upAt all of a size's nodes count, below it four fifths.
func smallestFor(u SizeUse, share int64) Size {
	nodes := 100
	if share < upAt {
		nodes = 80
	}
	for _, s := range Sizes {
		if l := s.Limits(); u.Memory*100 <= l.Memory*share && u.Nodes*100 <= l.Nodes*nodes {
			return s
		}
	}
	return Large
}

// EffectiveSize returns the size whose limits apply to a plane that has the size had and is ordered to have another.
// A larger order applies at once. A smaller one applies down to the size that the plane's use needs: a change of an
// order ends no plane. An unknown order leaves the size as it is.
func EffectiveSize(had, ordered, wanted Size) Size {
	switch {
	case !ordered.IsKnown():
		return had
	case had == "", ordered.Compare(had) >= 0:
		return ordered
	case wanted == "":
		return had
	case wanted.Compare(had) >= 0:
		return had
	}
	return maxSize(ordered, wanted)
}

func maxSize(a, b Size) Size {
	if a.Compare(b) >= 0 {
		return a
	}
	return b
}
