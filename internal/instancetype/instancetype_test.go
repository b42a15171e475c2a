package instancetype

import "testing"

func TestInstanceTypesEqualThoseOfEC2(t *testing.T) {
	for _, want := range []Type{
		{"m6a.xlarge", 4, 16384, "amd64"}, {"m5.large", 2, 8192, "amd64"}, {"c6g.16xlarge", 64, 131072, "arm64"},
		{"r5.24xlarge", 96, 786432, "amd64"}, {"t3.medium", 2, 4096, "amd64"},
	} {
		if got, ok := Lookup(want.Name); !ok || got != want {
			t.Errorf("%s is %+v, %v; want %+v", want.Name, got, ok, want)
		}
	}
	for _, name := range []string{"", "m6a", "m6a.tiny", "M6A.xlarge", "c6g.24xlarge"} {
		if got, ok := Lookup(name); ok {
			t.Errorf("%q is %+v", name, got)
		}
	}
	if _, ok := Lookup(Default); !ok {
		t.Errorf("the default %s is none", Default)
	}
	for _, name := range Names() {
		if got, _ := Lookup(name); got.Name != name || got.CPU < 2 || got.MemoryMiB < 4096 {
			t.Errorf("%s is %+v", name, got)
		}
	}
}
