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

var versions = []string{
	v20240610: "2024-06-10-preview",
	v20251223: "2025-12-23-preview",
	v20260630: "2026-06-30-preview",
	v20260901: "2026-09-01-preview",
}

// parseVersion returns the api-version of a name.
func parseVersion(name string) (v version, known bool) {
	i := slices.Index(versions, name)
	return version(i), i >= 0
}
