// Package instancetype is the table of machine types that node pools may name, with
// the vCPUs and the memory that EC2 publishes.
//
// The Platform API refuses a type that is not in the table, and simulated nodes
// have the capacity of their type. The package is data and decides nothing.
package instancetype

import (
	"maps"
	"slices"
)

// Type is one machine type.
type Type struct {
	Name      string
	CPU       int // vCPUs
	MemoryMiB int
	Arch      string // as Go and Kubernetes name it: amd64, arm64
}

// Default is the type of a node pool that names none.
const Default = "m6a.xlarge"

// family is a group of types that have the same memory for each vCPU.
type family struct {
	name   string
	arch   string
	perCPU int // MiB
	sizes  []string
}

// sizes of a family, and their vCPUs.
var sizes = map[string]int{
	"large": 2, "xlarge": 4, "2xlarge": 8, "4xlarge": 16, "8xlarge": 32, "12xlarge": 48, "16xlarge": 64, "24xlarge": 96,
}

// commonSizes has the sizes of most families.
var commonSizes = []string{"large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge"}

var families = []family{
	{"c5", "amd64", 2048, []string{"large", "xlarge", "2xlarge", "4xlarge", "12xlarge", "24xlarge"}},
	{"c6a", "amd64", 2048, commonSizes},
	{"c6g", "arm64", 2048, commonSizes[:7]},
	{"c6i", "amd64", 2048, commonSizes},
	{"c7g", "arm64", 2048, commonSizes[:7]},
	{"c7i", "amd64", 2048, commonSizes},
	{"m5", "amd64", 4096, commonSizes},
	{"m6a", "amd64", 4096, commonSizes},
	{"m6g", "arm64", 4096, commonSizes[:7]},
	{"m6i", "amd64", 4096, commonSizes},
	{"m7a", "amd64", 4096, commonSizes},
	{"m7g", "arm64", 4096, commonSizes[:7]},
	{"m7i", "amd64", 4096, commonSizes},
	{"r5", "amd64", 8192, commonSizes},
	{"r6a", "amd64", 8192, commonSizes},
	{"r6g", "arm64", 8192, commonSizes[:7]},
	{"r6i", "amd64", 8192, commonSizes},
	{"r7g", "arm64", 8192, commonSizes[:7]},
	{"r7i", "amd64", 8192, commonSizes},
}

var table = func() map[string]Type {
	t := map[string]Type{}
	for _, f := range families {
		for _, size := range f.sizes {
			name := f.name + "." + size
			t[name] = Type{Name: name, CPU: sizes[size], MemoryMiB: sizes[size] * f.perCPU, Arch: f.arch}
		}
	}
	// The memory of t3 does not follow the vCPUs.
	for _, x := range []Type{
		{"t3.medium", 2, 4096, "amd64"}, {"t3.large", 2, 8192, "amd64"}, {"t3.xlarge", 4, 16384, "amd64"},
		{"t3.2xlarge", 8, 32768, "amd64"},
	} {
		t[x.Name] = x
	}
	return t
}()

// Lookup finds a type by its name.
func Lookup(name string) (Type, bool) {
	t, ok := table[name]
	return t, ok
}

// Names returns the names of all types, sorted.
func Names() []string { return slices.Sorted(maps.Keys(table)) }
