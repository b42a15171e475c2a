package postgres

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"atoll.dev/internal/pgsession"
)

// reserve is the free space, in bytes, that PostgreSQL needs for itself: when less is free, Guard
// makes the server read only.
const reserve = 256 << 20

// Mode determines which transactions a server runs.
type Mode uint8

// Modes of a server.
const (
	Writable Mode = iota
	ReadOnly      // transactions that write fail with SQLSTATE 25006
)

// Guard makes the server read only before its disk is full: a PostgreSQL that cannot write a
// checkpoint crashes, and does not start again until the disk has room. When less than reserve is
// free, the server refuses writes (SQLSTATE 25006) and serves reads; when more than twice reserve
// is free, it is writable again. Guard runs until ctx ends, also while the server restarts, and
// returns the cause of ctx. It calls changed, which may be nil, after each change.
func (c *Cluster) Guard(ctx context.Context, changed func(now Mode, free uint64)) error {
	return guard{free: func() (uint64, error) { return freeSpace(c.DataDir) }, set: c.setMode, changed: changed,
		every: time.Second}.run(ctx)
}

// guard is one call of Guard.
type guard struct {
	free    func() (uint64, error)
	set     func(context.Context, Mode) error
	changed func(now Mode, free uint64)
	every   time.Duration
}

func (g guard) run(ctx context.Context) error {
	ticker := time.NewTicker(g.every)
	defer ticker.Stop()
	// mode is the value of the last successful set. It is unknown at the start, because an earlier guard may have set
	// another one.
	isKnown, mode := false, Writable
	for {
		if free, err := g.free(); err == nil {
			want := decide(mode, free)
			if !isKnown || want != mode {
				// An error means that the server is down: the next tick tries again.
				if err := g.set(ctx, want); err == nil {
					if g.changed != nil && (want == ReadOnly || isKnown) {
						g.changed(want, free)
					}
					isKnown, mode = true, want
				}
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// decide returns the mode that the server should have after mode. The two limits differ, so that
// the server does not switch back and forth while a full disk is cleaned up.
func decide(mode Mode, free uint64) Mode {
	if free < reserve || mode == ReadOnly && free < 2*reserve {
		return ReadOnly
	}
	return Writable
}

// freeSpace returns how many bytes an ordinary user can write on the disk of a directory.
func freeSpace(dir string) (uint64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

// setMode sets the mode of all sessions, from their next transaction on.
func (c *Cluster) setMode(ctx context.Context, mode Mode) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second) // alter system waits for two fsyncs of a disk that may be busy
	defer cancel()
	conn, err := pgsession.Connect(ctx, c.DSN("postgres", Superuser))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	stmt := `alter system reset default_transaction_read_only`
	if mode == ReadOnly {
		stmt = `alter system set default_transaction_read_only = on`
	}
	for _, s := range []string{stmt, `select pg_reload_conf()`} {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("making the server read only (%v): %w", mode == ReadOnly, err)
		}
	}
	return nil
}
