package arm

import "slices"

// version is an api-version, as an index into versions: a later one is greater.
type version int

// The api-versions.
const (
	v20240610 version = iota
	v20251223
	v20260630
	v20260901
	always version = -1 // a field without a first api-version
)

var versions = []string{"2024-06-10-preview", "2025-12-23-preview", "2026-06-30-preview", "2026-09-01-preview"}

// parseVersion returns the api-version of a name.
func parseVersion(name string) (v version, known bool) {
	i := slices.Index(versions, name)
	return version(i), i >= 0
}
