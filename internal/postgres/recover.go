package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pgsession"
)

// Recovery is the data of a base backup and the WAL after it, from which a server recovers its databases.
type Recovery struct {
	Data string // directory; Recover moves it to the cluster's DataDir
	WAL  string // directory of segments; the cluster's user must be able to reach it
	// Until is the moment of the recovery, by the clock of the copied server: transactions that committed before it are
	// there, later ones are not. Zero means the end of the WAL.
	Until time.Time
	// End is the end of the WAL. A server that stops before, at WAL that it cannot read, is an error.
	End uint64
}

// Recover makes the data directory of c, which must not exist, from a base backup: a server applies the WAL, begins a
// new timeline, and is stopped again. After an error or a kill the caller begins again with another copy of the data.
func (c *Cluster) Recover(ctx context.Context, r Recovery) error {
	a, err := c.fillDefaults()
	if err != nil {
		return err
	}
	if _, err := os.Lstat(c.DataDir); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("recovering postgres: %s exists already", c.DataDir)
	}
	if err := os.MkdirAll(filepath.Dir(c.DataDir), 0o755); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	if err := errors.Join(a.checkReachable(c.DataDir), a.checkReachable(r.Data), a.checkReachable(r.WAL)); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	if err := errors.Join(a.chownTree(r.Data), a.chownTree(r.WAL)); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	// The server recovers where its data is; its socket is beside the later one, so that no service finds it.
	recovering := &Cluster{DataDir: r.Data, Port: c.Port, User: a.name, Binaries: c.Binaries,
		Settings: map[string]string{}}
	for k, v := range c.Settings {
		recovering.Settings[k] = v
	}
	if !a.switches {
		recovering.User = ""
	}
	if _, err := recovering.fillDefaults(); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	if err := a.makeOwned(recovering.SocketDir); err != nil {
		return fmt.Errorf("recovering postgres: socket directory: %w", err)
	}
	defer os.RemoveAll(recovering.SocketDir)
	if err := recovering.applyWAL(ctx, a, r); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	if err := c.writeSettings(a, r.Data); err != nil { // without those of the recovery
		return fmt.Errorf("recovering postgres: settings: %w", err)
	}
	if err := os.Rename(r.Data, c.DataDir); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	if err := atomicfile.SyncDir(filepath.Dir(c.DataDir)); err != nil {
		return fmt.Errorf("recovering postgres: %w", err)
	}
	return nil
}

// applyWAL runs a server until it has applied the WAL and has begun a new timeline.
func (c *Cluster) applyWAL(ctx context.Context, a account, r Recovery) error {
	c.Settings["restore_command"] = quoteSetting("cp " + quoteShell(r.WAL+"/") + `%f "%p"`)
	c.Settings["recovery_target_action"] = "promote"
	c.Settings["archive_mode"] = "off"
	if !r.Until.IsZero() {
		c.Settings["recovery_target_time"] = quoteSetting(r.Until.UTC().Format("2006-01-02 15:04:05.000000") + "+00")
		c.Settings["recovery_target_inclusive"] = "off"
	}
	signal := filepath.Join(c.DataDir, "recovery.signal")
	err := errors.Join(os.WriteFile(signal, nil, 0o600), a.chownTree(signal), c.writeSettings(a, c.DataDir))
	if err != nil {
		return err
	}
	log := &bytes.Buffer{}
	applied, err := c.runRecovery(ctx, log)
	isAtEnd := r.Until.IsZero()
	// The server refuses to end before it has seen a transaction after the moment. When the WAL has none, all of it is
	// from before the moment.
	const endedBefore = "recovery ended before configured recovery target"
	if err != nil && !r.Until.IsZero() && strings.Contains(log.String(), endedBefore) {
		delete(c.Settings, "recovery_target_time")
		delete(c.Settings, "recovery_target_inclusive")
		if err := c.writeSettings(a, c.DataDir); err != nil {
			return err
		}
		log.Reset()
		applied, err = c.runRecovery(ctx, log)
		isAtEnd = true
	}
	if err == nil && isAtEnd && applied+maxRecord < r.End {
		err = fmt.Errorf("the WAL is damaged at %X/%08X: it ends at %X/%08X, and changes after the damage would be lost; "+
			"restore to an earlier moment", applied>>32, uint32(applied), r.End>>32, uint32(r.End))
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, log)
	}
	return nil
}

// maxRecord is more than the size of any record that PostgreSQL writes for Atoll, in bytes. The last record of a copy
// may be incomplete; no acknowledged transaction needs it.
const maxRecord = 1 << 20

// runRecovery starts the server, waits until its recovery has ended, and stops it. It returns the position up to which
// the server has applied the WAL.
func (c *Cluster) runRecovery(ctx context.Context, log *bytes.Buffer) (applied uint64, err error) {
	p, err := c.Start(ctx, log)
	if err != nil {
		return 0, err
	}
	for {
		isInRecovery, applied, err := c.readRecovery(ctx)
		if err == nil && !isInRecovery {
			return applied, p.Stop()
		}
		select {
		case <-p.Done():
			return 0, errors.New("the server ended during recovery")
		case <-ctx.Done():
			p.Kill()
			return 0, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// readRecovery reads whether the server still recovers, and the position up to which it has applied the WAL.
func (c *Cluster) readRecovery(ctx context.Context) (isInRecovery bool, applied uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	conn, err := pgsession.Connect(ctx, c.DSN("postgres", Superuser))
	if err != nil {
		return false, 0, err
	}
	defer conn.Close(ctx)
	var position int64
	err = conn.QueryRow(ctx, `select pg_is_in_recovery(), (coalesce(pg_last_wal_replay_lsn(), '0/0') - '0/0')::bigint`).
		Scan(&isInRecovery, &position)
	return isInRecovery, uint64(position), err
}

// chownTree gives a file, or a directory and everything below it, to the account.
func (a account) chownTree(path string) error {
	if !a.switches {
		return nil
	}
	return filepath.WalkDir(path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, a.uid, a.gid)
	})
}

// quoteSetting returns a text as the value of a setting in PostgreSQL's configuration.
func quoteSetting(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// quoteShell returns a text as one word of a shell's command, in which PostgreSQL replaces nothing.
func quoteShell(text string) string {
	return strings.ReplaceAll("'"+strings.ReplaceAll(text, "'", `'\''`)+"'", "%", "%%")
}
