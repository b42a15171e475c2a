package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/leakcheck"
)

func TestMain(m *testing.M) { leakcheck.Main(m) }

// place is a directory that the server's user can reach; t.TempDir is root's.
func place(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "atoll-postgres-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func cluster(t testing.TB) *Cluster {
	return &Cluster{DataDir: filepath.Join(place(t), "data"), Settings: map[string]string{"fsync": "off"}}
}

func withTimeLimit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func started(t testing.TB, c *Cluster) *Process {
	t.Helper()
	if err := c.Init(withTimeLimit(t)); err != nil {
		t.Fatal(err)
	}
	p, err := c.Start(withTimeLimit(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func ask(t testing.TB, dsn, sql string) (answer string, err error) {
	t.Helper()
	conn, err := pgx.Connect(withTimeLimit(t), dsn)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.Background())
	err = conn.QueryRow(withTimeLimit(t), sql).Scan(&answer)
	return answer, err
}

func TestFindNamesTheMissingPackages(t *testing.T) {
	_, err := findNewest([]string{place(t)})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "apt-get install postgresql") ||
		!strings.Contains(err.Error(), "create_main_cluster = false") {
		t.Fatal(err)
	}
}

func TestFindTakesTheNewestThatIsNewEnough(t *testing.T) {
	dir := place(t)
	var dirs []string
	for _, v := range []string{"14.9", "16.2", "15.1"} {
		d := filepath.Join(dir, v)
		script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + v + "'\n"
		if err := errors.Join(os.Mkdir(d, 0o755), os.WriteFile(d+"/postgres", []byte(script), 0o755),
			os.WriteFile(d+"/initdb", nil, 0o755)); err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, d)
	}
	if b, err := findNewest(dirs); err != nil || b.Version != 16 || b.Dir != dirs[1] {
		t.Fatal(b, err)
	}
	if _, err := findNewest(dirs[:1]); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "is version 14") {
		t.Fatal(err)
	}
}

func TestDurabilityAndEncodingHaveTheRequiredValues(t *testing.T) {
	c := cluster(t)
	c.Settings = nil
	started(t, c)
	for setting, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "listen_addresses": "",
		"server_encoding": "UTF8", "lc_collate": "C",
	} {
		if got, err := ask(t, c.DSN("postgres", Superuser), "show "+setting); err != nil || got != want {
			t.Errorf("%s is %q, %v", setting, got, err)
		}
	}
	info, err := os.Stat(c.SocketDir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Fatal(info.Mode(), err)
	}
}

func TestInitIsIdempotentAndKeepsTheData(t *testing.T) {
	c := cluster(t)
	p := started(t, c)
	conn, err := pgx.Connect(withTimeLimit(t), c.DSN("postgres", Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(withTimeLimit(t), "create table kept as select 'yes' as answer"); err != nil {
		t.Fatal(err)
	}
	p.Stop()
	started(t, c) // Init and Start again
	if got, err := ask(t, c.DSN("postgres", Superuser), "select answer from kept"); err != nil || got != "yes" {
		t.Fatal(got, err)
	}
}

func TestAKilledInitIsRepeated(t *testing.T) {
	c := cluster(t)
	// Killed as soon as it has begun to make files.
	ctx, kill := context.WithCancel(withTimeLimit(t))
	done := make(chan error, 1)
	go func() { done <- c.Init(ctx) }()
	for {
		if _, err := os.Stat(c.DataDir + ".new/PG_VERSION"); err == nil {
			break
		}
		select {
		case err := <-done:
			t.Fatal("it was done before it could be killed: ", err)
		default:
		}
	}
	kill()
	if err := <-done; err == nil {
		t.Fatal("the killed initdb succeeded")
	}
	started(t, c)
}

func TestAPartialDirectoryIsReplacedAndAForeignOneIsNot(t *testing.T) {
	c := cluster(t)
	if err := errors.Join(os.MkdirAll(c.DataDir+"/base/1", 0o700), os.WriteFile(c.DataDir+"/PG_VERSION", []byte("15\n"),
		0o600)); err != nil {
		t.Fatal(err)
	}
	started(t, c)
	foreign := cluster(t)
	if err := errors.Join(os.Mkdir(foreign.DataDir, 0o755), os.WriteFile(foreign.DataDir+"/thesis.tex", nil,
		0o644)); err != nil {
		t.Fatal(err)
	}
	if err := foreign.Init(withTimeLimit(t)); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Fatal(err)
	}
}

func TestTwoInitsOfOneDirectoryWaitForEachOther(t *testing.T) {
	c := cluster(t)
	done := make(chan error, 2)
	for range 2 {
		mine := *c
		go func() { done <- mine.Init(withTimeLimit(t)) }()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Fatal(err)
	}
}

func TestAServerRestartsAfterAKill(t *testing.T) {
	c := cluster(t)
	p := started(t, c)
	if running, ok := errors.AsType[*RunningError](c.Prepare(withTimeLimit(t))); !ok || running.PID != p.PID() {
		t.Fatal("a running server was not noticed")
	}
	if err := c.EnsureDatabase(withTimeLimit(t), "d", "o"); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	p = started(t, c)
	if _, err := ask(t, c.DSN("d", "o"), "select current_user::text"); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	// The pid in the lock files belongs to another program by now, of the same user: this sleep.
	a, err := lookupAccount("")
	if err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "1000")
	other.Dir, other.SysProcAttr = "/", a.processAttributes()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Wait()
	defer other.Process.Kill()
	for _, file := range []string{c.DataDir + "/postmaster.pid", c.socket() + ".lock"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := bytes.Cut(data, []byte("\n"))
		if err := os.WriteFile(file, fmt.Appendf(nil, "%d\n%s", other.Process.Pid, rest), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	started(t, c)
}

func TestOnlyItsOwnerConnectsToADatabase(t *testing.T) {
	c := cluster(t)
	started(t, c)
	done := make(chan error, 6)
	for range 3 { // at once, and again
		for _, name := range []string{"clm", "maestro"} {
			go func() { done <- c.EnsureDatabase(withTimeLimit(t), name, name) }()
		}
	}
	for range 6 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got, err := ask(t, c.DSN("clm", "clm"), "select current_user::text"); err != nil || got != "clm" {
		t.Fatal(got, err)
	}
	if got, err := ask(t, c.DSN("clm", "clm"),
		"select has_schema_privilege('public', 'create')::text"); err != nil || got != "true" {
		t.Fatal(got, err)
	}
	if _, err := ask(t, c.DSN("clm", "maestro"), "select 1::text"); err == nil || !strings.Contains(err.Error(),
		"permission denied") {
		t.Fatal(err)
	}
	if _, err := ask(t, c.DSN("maestro", Superuser), "select 1::text"); err != nil {
		t.Fatal(err)
	}
}

func TestASocketPathThatIsTooLongIsReplacedOrRefused(t *testing.T) {
	long := filepath.Join(place(t), strings.Repeat("long", 30))
	c := &Cluster{DataDir: filepath.Join(long, "data"), Settings: map[string]string{"fsync": "off"}}
	started(t, c)
	t.Cleanup(func() { os.RemoveAll(c.SocketDir) })
	if !strings.HasPrefix(c.SocketDir, "/tmp/atoll-pg-") || len(c.socket()) > maxSocketPath {
		t.Fatal(c.SocketDir)
	}
	given := &Cluster{DataDir: filepath.Join(place(t), "data"), SocketDir: long}
	if err := given.Init(withTimeLimit(t)); err == nil || !strings.Contains(err.Error(), "107 bytes") {
		t.Fatal(err)
	}
}

func TestAnUnreachableDirectoryIsNamed(t *testing.T) {
	a, err := lookupAccount("")
	if err != nil {
		t.Fatal(err)
	}
	closed := filepath.Join(place(t), "closed")
	if err := os.MkdirAll(closed+"/in", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(closed, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(closed, 0o700) })
	if err := a.checkReachable(closed + "/in/data"); err == nil || !strings.Contains(err.Error(), closed+" is closed") {
		t.Fatal(a, err)
	}
	if err := a.checkReachable(filepath.Dir(closed) + "/data"); err != nil {
		t.Fatal(err)
	}
}

func TestASocketDirectoryOfAnotherUserIsRefused(t *testing.T) {
	a, err := lookupAccount("")
	if err != nil {
		t.Fatal(err)
	}
	dir := place(t)
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/tmp", link); err != nil {
		t.Fatal(err)
	}
	if err := a.makeOwned(link); err == nil {
		t.Fatal("a symlink was taken")
	}
	if !a.switches {
		return // only root can make a directory for somebody else
	}
	theirs := filepath.Join(dir, "theirs")
	if err := errors.Join(os.Mkdir(theirs, 0o700), os.Chown(theirs, 12345, 12345)); err != nil {
		t.Fatal(err)
	}
	if err := a.makeOwned(theirs); err == nil || !strings.Contains(err.Error(), "belongs to user 12345") {
		t.Fatal(err)
	}
}

func TestOrphanedServerProcessesAreEnded(t *testing.T) {
	c := cluster(t)
	p := started(t, c)
	conn, err := pgx.Connect(withTimeLimit(t), c.DSN("postgres", Superuser))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	// A session that does not notice that its server died, because it is stopped.
	pid := int(conn.PgConn().PID())
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	p.Kill()
	started(t, c)
	if err := syscall.Kill(pid, 0); err == nil && hasWorkingDir(pid, c.DataDir) {
		t.Fatal("the orphan still works in the data directory")
	}
}
