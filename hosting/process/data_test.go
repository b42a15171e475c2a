package process

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"atoll.dev/hosting/controlplane"
)

// The data of a plane is replaced by two renames. Wherever they are interrupted, the next start completes them, or
// undoes them when the order was withdrawn: no plane starts without data.
func TestTheReplacementOfDataCanBeInterrupted(t *testing.T) {
	const own, restored = "own", "restored"
	write := func(t *testing.T, dir, content string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "db"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		etcd, staged, replaced string // content; "" for a directory that does not exist
		want                   string // the order that the plane should have; it had ""
		has                    string // data after the call
		err                    error
	}{
		"nothing was done":               {etcd: own, staged: restored, want: "x", has: restored},
		"the old data was moved away":    {staged: restored, replaced: own, want: "x", has: restored},
		"both were moved":                {etcd: restored, replaced: own, want: "x", has: restored},
		"a new plane":                    {staged: restored, want: "x", has: restored},
		"without the order":              {etcd: own, staged: restored, has: own},
		"withdrawn between the renames":  {staged: restored, replaced: own, has: own},
		"withdrawn after the renames":    {etcd: restored, replaced: own, has: restored},
		"the restored data is not there": {etcd: own, want: "x", has: own, err: errNoData},
		"a plane that is not lost": {etcd: own, staged: restored, want: controlplane.Recovery, has: own,
			err: errNotLost},
		"a lost plane": {staged: restored, want: controlplane.Recovery, has: restored},
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, state := filepath.Join(top, "plane"), filepath.Join(top, "state")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			staging := "state/restored-" + cmp.Or(c.want, "x")
			for path, content := range map[string]string{
				"plane/etcd": c.etcd, staging + "/etcd": c.staged, staging + "/replaced": c.replaced,
			} {
				if content != "" {
					write(t, filepath.Join(top, path), content)
				}
			}
			for range 2 { // the second call changes nothing
				if err := replaceData(dir, state, "", c.want); !errors.Is(err, c.err) {
					t.Fatalf("error %v, want %v", err, c.err)
				}
				content, err := os.ReadFile(filepath.Join(dir, "etcd", "db"))
				if err != nil || string(content) != c.has {
					t.Errorf("the plane has the data %q, %v, want %q", content, err, c.has)
				}
			}
		})
	}
}

// A plane takes the keys that wait beside restored data only when it has none: wherever that is interrupted, the next
// start completes it.
func TestAPlaneWithoutKeysTakesThoseOfItsBackup(t *testing.T) {
	for name, c := range map[string]struct{ own, staged, has, left string }{
		"a lost plane":            {staged: "backup", has: "backup"},
		"a plane that has keys":   {own: "own", staged: "backup", has: "own", left: "backup"},
		"moved before a kill":     {own: "backup", has: "backup"},
		"a backup without keys":   {},
		"no backup, and own keys": {own: "own", has: "own"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, staging := t.TempDir(), t.TempDir()
			for pki, content := range map[string]string{dir: c.own, staging: c.staged} {
				if content == "" {
					continue
				}
				if err := os.Mkdir(filepath.Join(pki, "pki"), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(pki, "pki", "ca.key"), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				if err := takeKeys(dir, staging); err != nil {
					t.Fatal(err)
				}
				for pki, want := range map[string]string{dir: c.has, staging: c.left} {
					content, err := os.ReadFile(filepath.Join(pki, "pki", "ca.key"))
					if string(content) != want || (err == nil) != (want != "") {
						t.Errorf("%s has %q, %v, want %q", pki, content, err, want)
					}
				}
			}
		})
	}
}

// The orders that came with restored data are added behind the known ones, none twice, and the list is bounded.
func TestThePastOfRestoredDataIsAdded(t *testing.T) {
	staging := t.TempDir()
	is := func(past, want []string) {
		t.Helper()
		got, err := addPast(past, staging)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q, %v, want %q", got, err, want)
		}
	}
	is([]string{"b"}, []string{"b"})
	path := filepath.Join(staging, "past.json")
	if err := os.WriteFile(path, []byte(`["c","b","a"]`), 0o600); err != nil {
		t.Fatal(err)
	}
	is([]string{"b"}, []string{"b", "c", "a"})
	long := make([]string, maxPastData+5)
	for i := range long {
		long[i] = fmt.Sprint(i)
	}
	is(long, long[:maxPastData])
	if err := os.WriteFile(path, []byte(`{`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := addPast(nil, staging); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that cannot be read: %v", err)
	}
}
