package customer

import (
	"fmt"

	"atoll.dev/api/platform"
)

// sizeText returns the size class of a control plane with its limits, and what is not as it should be; "" without one.
func sizeText(s *platform.ClusterSize) string {
	if s == nil {
		return ""
	}
	text := fmt.Sprintf("%s: %d nodes, %d MiB of memory, %d processes", s.Class, s.Nodes, s.MemoryMiB, s.Processes)
	if s.OutOfMemoryAt != nil {
		text += ", out of memory at " + s.OutOfMemoryAt.UTC().Format("2006-01-02 15:04:05Z")
	}
	if s.Message != "" {
		text += "; " + s.Message
	}
	return text
}
