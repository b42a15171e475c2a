package rosa

import (
	"atoll.dev/api/platform"
	"atoll.dev/cluster"
)

// toSize gives the size class of a control plane the shape of the wire; nil while it has none.
func toSize(s cluster.SizeData) *platform.ClusterSize {
	if !s.Class.IsKnown() {
		return nil
	}
	shown := &platform.ClusterSize{
		Class: platform.ClusterSizeClass(s.Class), MemoryMiB: s.MemoryMiB, Processes: s.Processes, CPUWeight: s.CPUWeight,
		Nodes: s.Nodes, Enforced: s.Enforced, Message: s.Message,
	}
	if s.Wanted.IsKnown() {
		shown.Wanted = platform.ClusterSizeWanted(s.Wanted)
	}
	if !s.OutOfMemory.IsZero() {
		shown.OutOfMemoryAt = &s.OutOfMemory
	}
	return shown
}
