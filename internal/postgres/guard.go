package postgres

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"atoll.dev/internal/pgsession"
)

// Reserve is how much of the disk is kept for PostgreSQL's own needs: below it, Guard makes the server read only.
const Reserve = 256 << 20

// Guard keeps a full disk from taking the server down: a PostgreSQL that cannot write a checkpoint
// crashes, and does not start again until there is room. Below Reserve the server becomes read
// only, so that writes are refused (SQLSTATE 25006) and reads go on; above twice of that it becomes
// writable again. Guard runs beside the server, over its restarts, until ctx ends. It calls changed,
// which may be nil, after each change.
func (c *Cluster) Guard(ctx context.Context, changed func(readOnly bool, free uint64)) error {
	return guard{free: func() (uint64, error) { return freeSpace(c.DataDir) }, set: c.setReadOnly, changed: changed,
		every: time.Second}.run(ctx)
}

type guard struct {
	free    func() (uint64, error)
	set     func(ctx context.Context, readOnly bool) error
	changed func(readOnly bool, free uint64)
	every   time.Duration
}

func (g guard) run(ctx context.Context) error {
	ticker := time.NewTicker(g.every)
	defer ticker.Stop()
	// the value that was set last; unknown at the start, because an earlier guard may have set it
	isKnown, readOnly := false, false
	for {
		if free, err := g.free(); err == nil {
			want := decide(readOnly, free)
			if !isKnown || want != readOnly {
				// An error means that the server is down: the next tick tries again.
				if err := g.set(ctx, want); err == nil {
					if g.changed != nil && (want || isKnown) {
						g.changed(want, free)
					}
					isKnown, readOnly = true, want
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

// decide returns whether the server should be read only. The two limits differ, so that the server
// does not switch back and forth while a full disk is cleaned up.
func decide(readOnly bool, free uint64) bool {
	if readOnly {
		return free < 2*Reserve
	}
	return free < Reserve
}

func freeSpace(dir string) (uint64, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return 0, err
	}
	return fs.Bavail * uint64(fs.Bsize), nil
}

// setReadOnly changes the default of all sessions, from their next transaction on.
func (c *Cluster) setReadOnly(ctx context.Context, readOnly bool) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgsession.Connect(ctx, c.DSN("postgres", Superuser))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	stmt := `alter system reset default_transaction_read_only`
	if readOnly {
		stmt = `alter system set default_transaction_read_only = on`
	}
	for _, s := range []string{stmt, `select pg_reload_conf()`} {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("making the server read only (%v): %w", readOnly, err)
		}
	}
	return nil
}
