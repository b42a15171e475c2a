package postgres

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/filelock"
	"atoll.dev/internal/pgsession"
)

// Superuser is the database role that owns the cluster.
const Superuser = "postgres"

// maxSocketPath is the longest path of a Unix socket that every kernel takes (sun_path less its terminating zero).
const maxSocketPath = 107

// Cluster is one PostgreSQL data directory and the server on it. Set DataDir, leave the other fields zero for their
// defaults, and call Init. A Cluster is a description: two values with the same fields are the same cluster. After Init
// several goroutines may call its methods.
type Cluster struct {
	DataDir   string            // absolute; the user below must be able to reach it (checkReachable)
	SocketDir string            // default: <DataDir>-socket, or a short directory in /tmp when that is too long
	Port      int               // only names the socket file; default 5432
	User      string            // operating system user; default: the caller, or postgres or nobody when that is root
	Binaries  Binaries          // default: Find()
	Settings  map[string]string // added to, or instead of, the ones in defaultSettings
}

// defaultSettings returns the settings that differ from PostgreSQL's own defaults, with the
// reasons. Durability is PostgreSQL's default: fsync and synchronous_commit are on. No setting here
// affects the result or the plan of a statement: sessions set those themselves
// (internal/pgsession), because production runs on servers that this package does not start.
func defaultSettings() map[string]string {
	return map[string]string{
		"listen_addresses":        "''",    // the socket only
		"unix_socket_permissions": "0700",  // trust authentication rests on this and on the directory's mode
		"max_connections":         "150",   // some ten processes with a pool of 16 at most, seldom full
		"shared_buffers":          "128MB", // one machine: most of the cache is the kernel's
		"max_wal_size":            "1GB",
		// recycled WAL files, so that a full disk stops data files first (53100), not WAL (a panic)
		"min_wal_size":    "128MB",
		"wal_compression": "on",
		// WAL that a copy of the region has not stored yet, at most: then the copy begins again, and the disk stays free
		"max_slot_wal_keep_size": "4GB",
		"log_timezone":           "UTC",
		// Logs go to stderr as they come. Terse, and without parameters, so that no document's content gets into them.
		"logging_collector":                 "off",
		"log_destination":                   "stderr",
		"log_line_prefix":                   "'%m [%p] %q%u@%d '",
		"log_error_verbosity":               "terse",
		"log_parameter_max_length":          "0",
		"log_parameter_max_length_on_error": "0",
		"log_checkpoints":                   "off",
		"log_min_duration_statement":        "1s",
	}
}

// fillDefaults sets the empty fields of c to their defaults, and returns the user that the server runs as.
func (c *Cluster) fillDefaults() (account, error) {
	if !filepath.IsAbs(c.DataDir) {
		return account{}, fmt.Errorf("postgres data directory %q is not an absolute path", c.DataDir)
	}
	a, err := lookupAccount(c.User)
	if err != nil {
		return account{}, err
	}
	if c.Binaries.Dir == "" {
		if c.Binaries, err = Find(); err != nil {
			return account{}, err
		}
	}
	if c.Port == 0 {
		c.Port = 5432
	}
	if c.SocketDir == "" {
		c.SocketDir = c.DataDir + "-socket"
		if len(c.socket()) > maxSocketPath {
			sum := sha256.Sum256([]byte(c.DataDir))
			c.SocketDir = "/tmp/atoll-pg-" + hex.EncodeToString(sum[:5])
		}
	}
	if len(c.socket()) > maxSocketPath {
		return account{}, fmt.Errorf("postgres socket %s is longer than the %d bytes that a socket's path may have",
			c.socket(), maxSocketPath)
	}
	return a, nil
}

func (c *Cluster) socket() string {
	return filepath.Join(c.SocketDir, ".s.PGSQL."+strconv.Itoa(c.Port))
}

// Init fills in the defaults of c and makes the data directory if there is none yet. It is idempotent, and it may be
// killed at any moment: the directory is built beside its final place and renamed when it is complete. The settings are
// written each time, so they take effect at the server's next start. Two Inits of one directory wait for each other.
func (c *Cluster) Init(ctx context.Context) error {
	a, err := c.fillDefaults()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.DataDir), 0o755); err != nil {
		return fmt.Errorf("initialising postgres: %w", err)
	}
	if err := errors.Join(a.checkReachable(c.DataDir), a.checkReachable(c.SocketDir)); err != nil {
		return fmt.Errorf("initialising postgres: %w", err)
	}
	unlock, err := lock(ctx, c.DataDir+".lock")
	if err != nil {
		return fmt.Errorf("initialising postgres: %w", err)
	}
	defer unlock()
	if err := a.makeOwned(c.SocketDir); err != nil {
		return fmt.Errorf("initialising postgres: socket directory: %w", err)
	}
	complete, err := removeIncomplete(c.DataDir)
	if err != nil {
		return fmt.Errorf("initialising postgres: %w", err)
	}
	if !complete {
		if err := c.initdb(ctx, a); err != nil {
			return fmt.Errorf("initialising postgres in %s: %w", c.DataDir, err)
		}
	}
	if err := c.writeSettings(a, c.DataDir); err != nil {
		return fmt.Errorf("initialising postgres: settings: %w", err)
	}
	return nil
}

// removeIncomplete reports whether dir holds a complete data directory. It removes dir when that has the remains of an
// initdb that was killed. Any other directory is an error, because another program made it.
func removeIncomplete(dir string) (complete bool, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	if slices.Contains(names, settingsFile) {
		return true, nil
	}
	for _, n := range names {
		if n != "PG_VERSION" && n != "base" && n != "global" && !strings.HasPrefix(n, "pg_") &&
			!strings.HasPrefix(n, "postgresql.") {
			return false, fmt.Errorf("%s is neither empty nor a data directory that was made here (it has %q)", dir, n)
		}
	}
	return false, os.RemoveAll(dir)
}

// settingsFile is the settings file that the data directory includes. It is written before the rename, so
// a directory with it is complete and was made by this package.
const settingsFile = "atoll.conf"

// initdb makes the data directory beside its final place, and renames it when it is complete.
func (c *Cluster) initdb(ctx context.Context, a account) error {
	newDir := c.DataDir + ".new"
	if err := os.RemoveAll(newDir); err != nil {
		return err
	}
	if err := a.makeOwned(newDir); err != nil {
		return err
	}
	args := []string{"-D", newDir, "-U", Superuser, "-E", "UTF8", "--locale=C", "-A", "trust"}
	if c.Settings["fsync"] == "off" {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, c.Binaries.Path("initdb"), args...)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = newDir, serverEnvironment(), a.processAttributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	conf, err := os.OpenFile(filepath.Join(newDir, "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = conf.WriteString("\ninclude '" + settingsFile + "'\n")
	if err := errors.Join(err, conf.Sync(), conf.Close()); err != nil {
		return err
	}
	if err := c.writeSettings(a, newDir); err != nil {
		return err
	}
	if err := os.Rename(newDir, c.DataDir); err != nil || c.Settings["fsync"] == "off" {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(c.DataDir)) // so that a crash does not lose the directory
}

// writeSettings replaces the settings file of a data directory.
func (c *Cluster) writeSettings(a account, dir string) error {
	settings := defaultSettings()
	for k, v := range c.Settings {
		settings[k] = v
	}
	keys := make([]string, 0, len(settings))
	for k := range settings {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	b.WriteString("# Written by atoll at each start; changes made here are lost.\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "%s = %s\n", k, settings[k])
	}
	file, err := atomicfile.New(filepath.Join(dir, settingsFile), 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(b.String())
	if err == nil && a.switches {
		err = file.Chown(a.uid, a.gid)
	}
	if err != nil {
		return errors.Join(err, file.Abort())
	}
	if err := file.Replace(); err != nil {
		return err
	}
	return file.Close()
}

// DSN returns the connection string of a database for a role.
func (c *Cluster) DSN(db, role string) string {
	q := url.Values{"host": {c.SocketDir}, "port": {strconv.Itoa(c.Port)}, "sslmode": {"disable"}}
	u := url.URL{Scheme: "postgres", User: url.User(role), Path: "/" + db, RawQuery: q.Encode()}
	return u.String()
}

// Ping returns nil when the server answers a query, within two seconds at most.
func (c *Cluster) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgsession.Connect(ctx, c.DSN("postgres", Superuser))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

// serverEnvironment returns the environment of PostgreSQL's programs, which has nothing else of the caller's.
func serverEnvironment() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
}

// lock takes a lock file. It waits for other processes until ctx ends.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err = filelock.Try(path)
		if !errors.Is(err, filelock.ErrLocked) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("waiting for %s: %w", path, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
