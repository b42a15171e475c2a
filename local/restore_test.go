package local

import (
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/local/objectstore"
)

// A restore that begins again removes the data directory that it made, and never one that something else made there.
func TestARestoreRemovesOnlyItsOwnDataDirectory(t *testing.T) {
	for _, test := range []struct {
		name, owner string // owner: content of the file in the data directory that names the home; "" is no file
		isRemoved   bool
	}{
		{"its own", "this", true},
		{"another home's", "another", false},
		{"that of a region that runs", "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := Home{Dir: filepath.Join(t.TempDir(), "this")}
			data := filepath.Join(t.TempDir(), "data")
			putFile(t, filepath.Join(data, "PG_VERSION"), "15")
			putFile(t, h.Path(stagedDataDir), data)
			if test.owner != "" {
				putFile(t, filepath.Join(data, ownerFile), filepath.Join(filepath.Dir(h.Dir), test.owner))
			}
			if err := h.removeStaging(); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(data); os.IsNotExist(err) != test.isRemoved {
				t.Errorf("the data directory: %v", err)
			}
		})
	}
}

// The databases of a home are not where a restore works: it removes that directory at its beginning and at its end.
func TestARestoreWorksBesideTheDatabases(t *testing.T) {
	h := Home{Dir: t.TempDir()}
	databases, staging := h.postgresDirs("0123456789ab").Dir, h.databaseStaging()
	if staging == databases || strings.HasPrefix(databases, staging+"/") || strings.HasPrefix(staging, databases+"/") {
		t.Errorf("the databases are in %s, and a restore works in %s", databases, staging)
	}
	if filepath.Dir(staging) != filepath.Dir(databases) {
		t.Errorf("%s and %s may be on different file systems", databases, staging)
	}
}

func TestARestoreKeepsTheFilesOfItsHome(t *testing.T) {
	h := Home{Dir: t.TempDir()}
	st := State{Region: "r1", Postgres: PostgresDirs{Dir: filepath.Join(t.TempDir(), "postgres")}}
	putFile(t, filepath.Join(st.Postgres.Dir, "data", ownerFile), h.Dir)
	putFile(t, h.Path("platform", "main.tf"), "mine")
	putFile(t, h.Path(stagedFiles, "platform", "key"), "copied")
	if err := h.placeFiles(h.Path(stagedFiles), st); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(h.Path("platform", "key")); string(text) != "copied" {
		t.Errorf("the copied file is %q", text)
	}
	kept, _ := filepath.Glob(h.Path("before-restore-*", "platform", "main.tf"))
	if len(kept) != 1 {
		t.Errorf("the home's own file is at %q", kept)
	}
	if _, err := os.Stat(filepath.Join(st.Postgres.Dir, "data", ownerFile)); !os.IsNotExist(err) {
		t.Errorf("the data directory still is that of an unfinished restore: %v", err)
	}
}

// A store that a region serves is not served again, and the file that names it stays as it is.
func TestARestoreLeavesTheStoreAsItIs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, objectstore.StoreFile)
	server := httptest.NewUnstartedServer(nil)
	store, err := objectstore.New(objectstore.Options{Dir: dir, Endpoint: "http://" + server.Listener.Addr().String(),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	server.Config.Handler = store
	server.Start()
	before, _ := os.ReadFile(file)
	expectSame := func(when string) {
		t.Helper()
		if now, err := os.ReadFile(file); err != nil || string(now) != string(before) {
			t.Errorf("%s the file is %s, %v; before it was %s", when, now, err, before)
		}
	}
	end, err := serveOwnStore(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	expectSame("while the region serves the store")
	end()
	server.Close()
	if end, err = serveOwnStore(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if !isServed(t.Context(), file) {
		t.Error("the restore does not serve the store")
	}
	end()
	expectSame("after the restore")
}

func putFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
