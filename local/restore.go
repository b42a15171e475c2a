package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"atoll.dev/backup"
	"atoll.dev/backup/region"
	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/postgres"
	"atoll.dev/local/objectstore"
)

// RestoreOptions select the copy of a region that Restore takes.
type RestoreOptions struct {
	Store  string    // file that names the store; "" is that of the home's own backups
	Region string    // "" when the store has one region
	At     time.Time // zero: the latest moment that the store has
}

// Restored describes a region that was restored.
type Restored struct {
	Region string `json:"region"`
	// Moment is that of the databases: every change that was acknowledged before it is there.
	Moment time.Time `json:"moment"`
}

// Restore makes the region of a home that has none from the copy in a store: databases, certificate authority, keys,
// and the region's state. It starts nothing; Up does. Management clusters whose files the home still has go on with the
// restored region. After an error or a kill the caller calls it again. It calls show with each step.
func (h Home) Restore(ctx context.Context, o RestoreOptions, show func(step string)) (r Restored, err error) {
	if err := os.MkdirAll(h.Path("run"), 0o700); err != nil {
		return r, fmt.Errorf("home: %w", err)
	}
	unlock, err := h.lock("state.lock")
	if err != nil {
		return r, fmt.Errorf("%w: another atoll changes this home; wait until it ends", err)
	}
	defer unlock()
	if _, err := h.State(); !errors.Is(err, ErrNoRegion) {
		if err == nil {
			err = fmt.Errorf("home %s holds a region: stop it and remove its %s first, or name another home with --home",
				h.Dir, "region.json")
		}
		return r, err
	}
	if o.Store == "" {
		o.Store = filepath.Join(h.backupsDir(), objectstore.StoreFile)
	}
	closeStore, err := serveOwnStore(ctx, o.Store)
	if err != nil {
		return r, err
	}
	defer closeStore()
	store, keys, err := backup.ReadConfig(o.Store)
	if err != nil {
		return r, err
	}
	defer keys.Close()
	if o.Region == "" {
		if o.Region, err = onlyRegion(ctx, store); err != nil {
			return r, err
		}
	}
	if err := h.removeStaging(); err != nil {
		return r, fmt.Errorf("removing what an earlier restore left: %w", err)
	}
	show("reading the copy of region " + o.Region)
	dirs, err := h.makeStaging()
	if err != nil {
		return r, err
	}
	fetched, err := region.Fetch(ctx, store, keys, o.Region, o.At, dirs)
	if err != nil {
		return r, err
	}
	st, err := h.stagedState(dirs.Files)
	if err != nil {
		return r, err
	}
	show("applying the changes since the base backup of " + fetched.Manifest.Complete.Time.Format(time.RFC3339))
	if err := h.recoverDatabase(ctx, st, dirs, fetched, o.At); err != nil {
		return r, err
	}
	if err := h.placeFiles(dirs.Files, st); err != nil {
		return r, err
	}
	if err := h.removeStaging(); err != nil {
		return r, err
	}
	r = Restored{Region: st.Region, Moment: fetched.Covered}
	if !o.At.IsZero() {
		r.Moment = o.At
	}
	return r, nil
}

// serveOwnStore serves the object store whose file is given until end, when its directory is that of a home on this
// machine and no process serves it: that process belongs to the lost region. The file names the temporary address until
// end.
func serveOwnStore(ctx context.Context, file string) (end func(), err error) {
	dir := filepath.Dir(file)
	if _, err := os.Stat(filepath.Join(dir, "objects")); err != nil || isServed(ctx, file) {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serving the object store: %w", err)
	}
	earlier, missing := os.ReadFile(file)
	s, err := objectstore.New(objectstore.Options{Dir: dir, Endpoint: "http://" + l.Addr().String(),
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		l.Close()
		return nil, err
	}
	server := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l) // ends with Close
	}()
	return func() {
		server.Close()
		<-done
		if missing == nil {
			_ = atomicfile.Write(file, earlier, 0o600) // the store's own process writes the file at its start, too
		}
	}, nil
}

// isServed reports whether the store that a file names answers.
func isServed(ctx context.Context, file string) bool {
	store, keys, err := backup.ReadConfig(file)
	if err != nil {
		return false
	}
	defer keys.Close()
	_, err = store.Get(ctx, "no-object")
	return err == nil || errors.Is(err, backup.ErrNotFound)
}

func onlyRegion(ctx context.Context, store region.DirectoryLister) (string, error) {
	names, err := region.Regions(ctx, store)
	switch {
	case err != nil:
		return "", err
	case len(names) == 0:
		return "", fmt.Errorf("the store has no copy of a region; `atoll up --backups` makes one")
	case len(names) > 1:
		return "", fmt.Errorf("the store has the regions %s: name one", strings.Join(names, ", "))
	}
	return names[0], nil
}

// Names of a restore's directory in the home, and of the file there that names the data directory that it makes.
const (
	stagedFiles   = "restoring"
	stagedDataDir = "restoring.data-directory"
)

// ownerFile is the file in a data directory that names the home whose unfinished restore has made the directory.
const ownerFile = "atoll.restoring"

// databaseStaging is the directory in which the databases are recovered. It is outside the region's own directory of
// databases, on the same file system, and PostgreSQL's user can reach it.
func (h Home) databaseStaging() string {
	sum := sha256.Sum256([]byte(h.Dir))
	return h.postgresDirs(hex.EncodeToString(sum[:6])).Dir + ".restoring"
}

func (h Home) makeStaging() (region.Dirs, error) {
	staging := h.databaseStaging()
	if err := os.MkdirAll(staging, 0o755); err != nil {
		return region.Dirs{}, err
	}
	return region.Dirs{Data: filepath.Join(staging, "data"), WAL: filepath.Join(staging, "wal"),
		Files: h.Path(stagedFiles)}, nil
}

// removeStaging removes the directories of a restore that did not end, and the data directory that it made. It leaves
// a data directory that something else has made since.
func (h Home) removeStaging() error {
	dataDir, err := os.ReadFile(h.Path(stagedDataDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(dataDir) > 0 {
		owner, err := os.ReadFile(filepath.Join(string(dataDir), ownerFile))
		if err == nil && string(owner) == h.Dir {
			err = os.RemoveAll(string(dataDir))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.Join(removeIfExists(h.Path(stagedDataDir)), os.RemoveAll(h.Path(stagedFiles)),
		os.RemoveAll(h.databaseStaging()))
}

// stagedState reads the state of the copied region and adapts it to this home.
func (h Home) stagedState(files string) (State, error) {
	st, err := Home{Dir: files}.State()
	if errors.Is(err, ErrNoRegion) {
		return st, errors.New("the copy has no region.json: `atoll region-backup` ran without --file region.json=" +
			"HOME/region.json, or the home had lost it; name an earlier moment with --at")
	}
	if err != nil {
		return st, fmt.Errorf("the copy: %w", err)
	}
	for name := range markedProcesses(st.ID) {
		isOf := func(mc cluster.ManagementCluster) bool { return strings.HasPrefix(name, string(mc)+"-") }
		if !slices.ContainsFunc(st.Clusters, isOf) {
			return st, fmt.Errorf("process %s of the region runs on this machine: stop it first", name)
		}
	}
	st.Postgres = h.postgresDirs(st.ID)
	return st, nil
}

func (h Home) recoverDatabase(ctx context.Context, st State, dirs region.Dirs, f region.Fetched, at time.Time) error {
	binaries, err := postgres.Find()
	if err != nil {
		return err
	}
	if binaries.Version != f.Manifest.Version {
		return fmt.Errorf("the copy is of PostgreSQL %d, and atoll runs PostgreSQL %d here: install %d, and put its "+
			"programs first in PATH", f.Manifest.Version, binaries.Version, f.Manifest.Version)
	}
	db := databaseOf(st)
	if _, err := os.Lstat(db.DataDir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s exists already: move it away, if it is not needed", db.DataDir)
	}
	if err := atomicfile.Write(filepath.Join(dirs.Data, ownerFile), []byte(h.Dir), 0o600); err != nil {
		return err
	}
	if err := atomicfile.Write(h.Path(stagedDataDir), []byte(db.DataDir), 0o600); err != nil {
		return err
	}
	return db.Recover(ctx, postgres.Recovery{Data: dirs.Data, WAL: dirs.WAL, Until: at, End: uint64(f.End)})
}

// placeFiles moves the copied files into the home; region.json, which makes it a region's home, comes last. Files of
// the home with the same names move to a directory of their own, HOME/before-restore-TIME.
func (h Home) placeFiles(files string, st State) error {
	entries, err := os.ReadDir(files)
	if err != nil {
		return err
	}
	aside := h.Path("before-restore-" + time.Now().UTC().Format("20060102T150405.000Z"))
	for _, e := range entries {
		if e.Name() == "region.json" {
			continue
		}
		if _, err := os.Lstat(h.Path(e.Name())); err == nil {
			if err := os.MkdirAll(aside, 0o700); err != nil {
				return err
			}
			if err := os.Rename(h.Path(e.Name()), filepath.Join(aside, e.Name())); err != nil {
				return err
			}
		}
		if err := os.Rename(filepath.Join(files, e.Name()), h.Path(e.Name())); err != nil {
			return err
		}
	}
	for _, dir := range []string{"logs", "identities", "management"} {
		if err := os.MkdirAll(h.Path(dir), 0o700); err != nil {
			return err
		}
	}
	if err := atomicfile.SyncDir(h.Dir); err != nil {
		return err
	}
	// From here on no restore may remove the data directory.
	dataDir := databaseOf(st).DataDir
	if err := errors.Join(removeIfExists(filepath.Join(dataDir, ownerFile)), atomicfile.SyncDir(dataDir)); err != nil {
		return err
	}
	return h.saveState(st)
}
