package etcd

import (
	"testing"
	"time"
)

const mib = 1 << 20

func TestDecideTheCareOfAStore(t *testing.T) {
	for _, c := range []struct {
		name string
		u    usage
		want step
	}{
		{"small", usage{Size: 2 * mib, InUse: mib, SinceDefragment: time.Hour}, rest},
		{"large and in use", usage{Size: 80 * mib, InUse: 70 * mib, SinceDefragment: time.Hour}, rest},
		{"large and half empty", usage{Size: 80 * mib, InUse: 30 * mib, SinceDefragment: time.Hour}, defragment},
		{"large and half empty, defragmented lately",
			usage{Size: 80 * mib, InUse: 30 * mib, SinceDefragment: time.Minute}, rest},
		{"crowded, not compacted", usage{Size: 95 * mib, InUse: 95 * mib, Revision: 7}, compact},
		{"crowded, compacted, in use",
			usage{Size: 95 * mib, InUse: 90 * mib, Revision: 7, Compacted: 7, SinceDefragment: time.Hour}, rest},
		{"crowded, compacted, much free",
			usage{Size: 95 * mib, InUse: 60 * mib, Revision: 7, Compacted: 7, SinceDefragment: time.Hour}, defragment},
		{"crowded, compacted, much free, defragmented lately",
			usage{Size: 95 * mib, InUse: 60 * mib, Revision: 7, Compacted: 7, SinceDefragment: time.Minute}, rest},
		{"full, not compacted", usage{Size: 100 * mib, InUse: 100 * mib, Revision: 7, Compacted: 6, NoSpace: true}, compact},
		{"full, and nothing to free",
			usage{Size: 100 * mib, InUse: 99 * mib, Revision: 7, Compacted: 7, NoSpace: true}, rest},
		{"full, and room can be made at once",
			usage{Size: 100 * mib, InUse: 80 * mib, Revision: 7, Compacted: 7, NoSpace: true}, defragment},
		{"room was made", usage{Size: 80 * mib, InUse: 80 * mib, Revision: 9, Compacted: 7, NoSpace: true}, disarm},
	} {
		c.u.Quota = 100 * mib
		if got := decide(c.u); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Whatever a store has, care comes to rest after a few steps when every step does what it should.
func TestCareComesToRest(t *testing.T) {
	for inUse := int64(0); inUse <= 110; inUse += 5 {
		for size := inUse; size <= 110; size += 5 {
			for _, full := range []bool{false, true} {
				u := usage{Size: size * mib, InUse: inUse * mib, Quota: 100 * mib, Revision: 9, NoSpace: full,
					SinceDefragment: time.Hour}
				steps := 0
				for next := decide(u); next != rest; next = decide(u) {
					switch next {
					case compact:
						u.Compacted = u.Revision
					case defragment:
						u.Size, u.SinceDefragment = u.InUse, 0
					case disarm:
						u.NoSpace = false
					}
					if steps++; steps > 3 {
						t.Fatalf("size %d, in use %d, full %v: no rest after %d steps", size, inUse, full, steps)
					}
				}
				if u.NoSpace && inUse <= 90 {
					t.Errorf("size %d, in use %d: it still refuses writes", size, inUse)
				}
			}
		}
	}
}
