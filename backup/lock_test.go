package backup

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// A store with a lock gets each object with a time before which nobody can delete it, and the checksum that stores
// demand with that. Objects that are replaced all the time are not locked.
func TestWhatIsStoredIsLocked(t *testing.T) {
	var mu sync.Mutex
	puts := map[string]http.Header{}
	url, _ := startS3(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPut {
			mu.Lock()
			defer mu.Unlock()
			puts[strings.TrimPrefix(r.URL.Path, "/backups/region-1/")] = r.Header.Clone()
		}
		return false // the server checks the checksum
	})
	chain := "ns/name/20261128T120000.000Z-00000000/"
	isLocked := map[string]bool{
		chain + manifestObject: true, chain + keysObject: true, chain + partName(0): true, chain + segmentName(1): true,
		".regions/r/files-20261128T120000.000Z": true, ".regions/r/archive-20261128T120000.000Z-1/wal-1-2-3-4": true,
		chain + markObject: false, ".regions/r/archive-20261128T120000.000Z-1/mark": false,
		ownersPrefix + "ns/name": false, deletedPrefix + "ns/name": false,
		handoverPrefix(Plane{"ns", "name"}, "m1") + "data": false,
	}
	for config, mode := range map[string]string{
		"lock_days: 7": "GOVERNANCE", "lock_days: 7\nlock_mode: compliance": "COMPLIANCE", "": "",
	} {
		store, _, err := ReadConfig(writeConfig(t, url, config))
		if err != nil {
			t.Fatal(err)
		}
		for name, locked := range isLocked {
			if err := store.Put(t.Context(), name, []byte("content")); err != nil {
				t.Fatalf("%q: %s: %v", config, name, err)
			}
			h := puts[name]
			until, err := time.Parse(time.RFC3339, h.Get("X-Amz-Object-Lock-Retain-Until-Date"))
			switch hasLock := h.Get("X-Amz-Object-Lock-Mode") != ""; {
			case hasLock != (locked && mode != ""):
				t.Errorf("%q: %s is locked: %v", config, name, hasLock)
			case hasLock && (h.Get("X-Amz-Object-Lock-Mode") != mode || h.Get("Content-Md5") == "" || err != nil ||
				time.Until(until.Add(-7*24*time.Hour)).Abs() > time.Minute):
				t.Errorf("%q: %s: %v", config, name, h)
			}
		}
	}
	for _, wrong := range []string{"lock_days: -1", "lock_days: 31", "lock_mode: governance",
		"lock_days: 1\nlock_mode: x"} {
		if _, _, err := ReadConfig(writeConfig(t, url, wrong)); err == nil || !strings.Contains(err.Error(), "lock_") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// While the store locks the objects of a chain, the chain stays whole. A deletion would only hide its objects.
func TestALockedChainStaysUntilItMayBeDeleted(t *testing.T) {
	url, clock := startS3(t, nil)
	first := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		config  string
		age     time.Duration
		has     []string
		deleted bool // the backups of a cluster that was deleted at first
	}{
		{"", 2 * 24 * time.Hour, []string{"chain", "snapshot-00000000"}, false},
		{"", 8 * 24 * time.Hour, []string{"chain", "snapshot-00000000"}, true},
		{"lock_days: 10", 8 * 24 * time.Hour, []string{"chain", "log-00000001", "mark", "snapshot-00000000"}, false},
		{"lock_days: 10", 10*24*time.Hour + time.Minute, []string{"chain", "log-00000001", "mark", "snapshot-00000000"},
			false},
		{"lock_days: 10", 11 * 24 * time.Hour, []string{"chain", "snapshot-00000000"}, true},
		{"lock_days: 10", 100 * 24 * time.Hour, nil, true},
	} {
		store, keys, err := ReadConfig(writeConfig(t, url, c.config))
		if err != nil {
			t.Fatal(err)
		}
		old := testPlane.prefix() + first.Format(chainTime) + "-00000000/"
		for _, chain := range []string{old, testPlane.prefix() + first.Add(time.Hour).Format(chainTime) + "-00000000/"} {
			for _, object := range []string{manifestObject, partName(0), segmentName(1), markObject} {
				if err := store.Put(t.Context(), chain+object, []byte(object)); err != nil {
					t.Fatal(err)
				}
			}
		}
		now := first.Add(c.age)
		if _, err := DeleteExpired(t.Context(), store, testPlane, DefaultRetention(), now); err != nil {
			t.Error(err)
		}
		names, err := store.List(t.Context(), old)
		if err != nil {
			t.Fatal(err)
		}
		for i := range names {
			names[i] = strings.TrimPrefix(names[i], old)
		}
		if !slices.Equal(names, c.has) {
			t.Errorf("%q after %s: %v, want %v", c.config, c.age, names, c.has)
		}
		mark := []byte(tombstone{At: first}.String())
		if err := store.Put(t.Context(), deletedPrefix+testPlane.String(), mark); err != nil {
			t.Fatal(err)
		}
		clock.Advance(c.age)
		n, err := NewRecords(store, keys).RemoveDeleted(t.Context(), func(Plane) bool { return false })
		if err != nil || (n == 1) != c.deleted {
			t.Errorf("%q after %s: the backups of %d deleted clusters were removed, %v", c.config, c.age, n, err)
		}
	}
}
