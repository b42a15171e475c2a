package process

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
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
	} {
		t.Run(name, func(t *testing.T) {
			top := t.TempDir()
			dir, state := filepath.Join(top, "plane"), filepath.Join(top, "state")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for path, content := range map[string]string{
				"plane/etcd": c.etcd, "state/restored-x/etcd": c.staged, "state/restored-x/replaced": c.replaced,
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
