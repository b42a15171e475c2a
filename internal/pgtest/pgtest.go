// Package pgtest gives tests real PostgreSQL databases.
//
// One server is started per test process, when the first test asks for a database, and each test gets a database of
// its own. Nothing has to be set up or torn down: a watcher process ends the server and removes its directory as soon
// as the test process is gone, whether the tests passed, failed, panicked or were killed, so no TestMain is needed and
// no goroutine is left for a leak detector to find.
//
// It is for tests only.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"atoll.dev/internal/pgsession"
	"atoll.dev/internal/postgres"
	"atoll.dev/internal/quick"
)

var shared struct {
	once    sync.Once
	cluster *postgres.Cluster
	err     error
	count   atomic.Int64
}

// DSN returns the DSN of a fresh, empty database that is dropped when the test ends. The shared server has PostgreSQL's
// default settings, but for its socket, its log and its number of connections, and it does not fsync, because no test
// can crash the machine.
func DSN(t testing.TB) string {
	t.Helper()
	skipShort(t)
	shared.once.Do(func() { shared.cluster, shared.err = startShared() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	name := fmt.Sprintf("t%d", shared.count.Add(1))
	createDatabase(t, shared.cluster, name)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
		defer cancel()
		if err := execOn(ctx, shared.cluster, "drop database if exists "+name+" with (force)"); err != nil {
			t.Errorf("dropping the test's database: %v", err)
		}
	})
	return shared.cluster.DSN(name, postgres.Superuser)
}

// skipShort skips a test that needs a server when tests run with -short, as "make quick" runs them.
func skipShort(t testing.TB) {
	t.Helper()
	quick.LeavesOut(t, "needs a PostgreSQL server")
}

// NewDatabase makes a database on the server c, owned by the superuser, and returns its DSN. The database exists as
// long as the server's data directory.
func NewDatabase(t testing.TB, c *postgres.Cluster) string {
	t.Helper()
	name := fmt.Sprintf("t%d", shared.count.Add(1))
	createDatabase(t, c, name)
	return c.DSN(name, postgres.Superuser)
}

func createDatabase(t testing.TB, c *postgres.Cluster, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
	defer cancel()
	if err := execOn(ctx, c, "create database "+name+" template template0"); err != nil {
		t.Fatalf("making the test's database: %v", err)
	}
}

func execOn(ctx context.Context, c *postgres.Cluster, sql string) error {
	conn, err := pgsession.Connect(ctx, c.DSN("postgres", postgres.Superuser))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}

// startShared makes and starts the server of this test process.
func startShared() (*postgres.Cluster, error) {
	c, err := newCluster(map[string]string{"fsync": "off", "full_page_writes": "off", "max_connections": "300"})
	if err != nil {
		return nil, err
	}
	cmd, err := c.Command()
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(filepath.Dir(c.DataDir), "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd.Stderr = log
	// No goroutine waits for the server: this process may end at any moment, and then the watcher ends the server.
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting postgres: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
	defer cancel()
	for {
		err := c.Ping(ctx)
		if err == nil {
			return c, nil
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			return nil, fmt.Errorf("starting postgres: %w\n%s", err, text)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// newCluster initialises a cluster in a temporary directory, which the watcher removes when this process ends.
func newCluster(settings map[string]string) (*postgres.Cluster, error) {
	removeLeftovers()
	// The name has the owner, so that a later process can find that the owner is dead.
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-%s-", dirPrefix, os.Getpid(), startTime(os.Getpid())))
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	if err := startWatcher(dir); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	// PostgreSQL's own defaults, so that tests also cover servers that Atoll did not start.
	all := map[string]string{"wal_compression": "off", "min_wal_size": "80MB"}
	maps.Copy(all, settings)
	c := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s"), Settings: all}
	ctx, cancel := context.WithTimeout(context.Background(), hangLimit)
	defer cancel()
	if err := copyTemplate(c); err != nil {
		return nil, err
	}
	if err := c.Init(ctx); err != nil {
		return nil, err
	}
	saveTemplate(c)
	return c, nil
}

// hangLimit is how long a test waits for a server. The start, and a new database, wait for many fsyncs of a busy disk.
const hangLimit = 3 * time.Minute

// dirPrefix begins the names of the temporary directories.
const dirPrefix = "atoll-pgtest-"

// watcher ends the server in $1 and removes $1 when its standard input closes, which is when the test process ends.
const watcher = `
trap '' INT TERM HUP
cat >/dev/null
i=0
while pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && [ -n "$pid" ] && [ $i -lt 100 ]; do
	if [ $i -lt 50 ]; then kill -QUIT "$pid"; else kill -KILL "$pid"; fi
	sleep 0.05
	i=$((i+1))
done 2>/dev/null
rm -rf "$1" || { sleep 1; rm -rf "$1"; }
`

// stdin pipes of the watchers: kept open, and referenced so that no finalizer closes them, until the process ends.
var (
	pipesMu sync.Mutex
	pipes   []*os.File
)

// startWatcher starts a process that runs the script watcher for a directory.
func startWatcher(dir string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	cmd := exec.Command("/bin/sh", "-c", watcher, "pgtest-watcher", dir)
	cmd.Stdin = r
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // so that Ctrl-C in a terminal does not reach it
	if err := cmd.Start(); err != nil {
		w.Close()
		return fmt.Errorf("starting the watcher of the test server: %w", err)
	}
	pipesMu.Lock()
	defer pipesMu.Unlock()
	pipes = append(pipes, w)
	return nil
}

// removeLeftovers ends the servers and removes the directories of dead test processes whose watcher was killed, too.
func removeLeftovers() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		parts := strings.Split(strings.TrimPrefix(filepath.Base(dir), dirPrefix), "-")
		if len(parts) != 3 {
			continue
		}
		pid, err := strconv.Atoi(parts[0])
		info, statErr := os.Stat(dir)
		if err != nil || statErr != nil || startTime(pid) == parts[1] || time.Since(info.ModTime()) < time.Minute {
			continue // alive, not ours, or its watcher is still at work
		}
		c := &postgres.Cluster{DataDir: filepath.Join(dir, "data"), SocketDir: filepath.Join(dir, "s")}
		if server := c.PID(); server != 0 {
			syscall.Kill(server, syscall.SIGQUIT)
		}
		os.RemoveAll(dir)
	}
}

// startTime distinguishes a process from a later process with the same pid; "" when there is no such process.
func startTime(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return ""
		}
		return "0" // no /proc here
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(rest); len(fields) > 19 {
		return fields[19]
	}
	return "0"
}
