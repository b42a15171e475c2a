package region

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"atoll.dev/backup"
	"atoll.dev/envelope"
	"atoll.dev/internal/pgsession"
)

const (
	storeEvery   = 5 * time.Second // the WAL that has come is stored
	baseEvery    = 24 * time.Hour
	collectEvery = time.Hour
	filesEvery   = 5 * time.Second // the files are read
	// lateAfter is how far behind the copy may be before Check fails.
	lateAfter = 30 * time.Second
	longest   = 30 * time.Second // pause between two attempts
)

// Options describe a Copier. All but Files are required.
type Options struct {
	Region string // name of the region
	// Server is the connection string of the server, for a role that may replicate, create replication slots, and read
	// all settings, such as a superuser.
	Server string
	// BaseBackup is the path of pg_basebackup, of the server's version.
	BaseBackup string
	// Files are the files and directories that are copied, by the names under which Fetch writes them.
	Files map[string]string
	Store backup.Store
	KMS   envelope.KMS
	Keep  time.Duration // a moment longer ago cannot be restored
	Log   *slog.Logger
}

// Copier copies a region. Use New.
type Copier struct {
	o Options

	mu      sync.Mutex
	covered time.Time // the copy has every transaction acknowledged before, by the server's clock
	asOf    time.Time // of this process's clock, when covered was read
	err     error     // of the last attempt; nil: none has failed since
	// problems has the errors of base backups, files and retention, as of their last attempts.
	problems map[string]error

	based time.Time // when the archive's last base backup began; zero: it has none

	archive archive // "": the next session looks for one. Only findArchive changes it
	end     LSN     // of the WAL that is stored; of the goroutine that copies the WAL
	// storedFiles is the checksum of the files that are stored; of the goroutine that copies them.
	storedFiles [sha256.Size]byte
	// foundFiles has the names of the files that were there before; of the same goroutine.
	foundFiles map[string]bool
}

// New returns a Copier, which does nothing before Run.
func New(o Options) *Copier {
	return &Copier{o: o, problems: map[string]error{}, foundFiles: map[string]bool{}}
}

// Check returns nil while the copy is at most 30 s behind and nothing else fails, and otherwise an error with the
// reason.
func (c *Copier) Check(context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, what := range slices.Sorted(maps.Keys(c.problems)) {
		return fmt.Errorf("%s: %w", what, c.problems[what])
	}
	if !c.asOf.IsZero() && time.Since(c.asOf) < lateAfter {
		return nil
	}
	if c.err != nil {
		return fmt.Errorf("the region is not copied: %w", c.err)
	}
	if c.asOf.IsZero() {
		return errors.New("no base backup is complete yet")
	}
	return fmt.Errorf("the copy is %s behind", time.Since(c.asOf).Round(time.Second))
}

// Age returns how long ago the copy was complete; false when it never was.
func (c *Copier) Age() (age time.Duration, isComplete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.asOf), !c.asOf.IsZero()
}

// noteCovered records that the copy has everything before a moment, which was read from the server at asOf.
func (c *Copier) noteCovered(covered, asOf time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.based.IsZero() {
		return // without a base backup the WAL restores nothing
	}
	c.covered, c.asOf, c.err = covered, asOf, nil
}

// noteProblem records the last attempt of a part; nil means that it went well.
func (c *Copier) noteProblem(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.problems, what)
		return
	}
	c.problems[what] = err
}

// noteBase records when the archive's last base backup began.
func (c *Copier) noteBase(began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.based = began
}

// lastBase returns when the archive's last base backup began; zero when it has none.
func (c *Copier) lastBase() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.based
}

func (c *Copier) noteError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// Run copies until ctx ends. Whatever fails is tried again.
func (c *Copier) Run(ctx context.Context) {
	pause := time.Second
	for {
		begun := time.Now()
		err := c.copy(ctx)
		if ctx.Err() != nil {
			return
		}
		c.noteError(err)
		c.o.Log.Warn("copying the region", slog.Any("error", err))
		if time.Since(begun) > time.Minute {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, longest)
	}
}

// copyLock is the advisory lock of the one Copier of a server.
const copyLock = 0x61746f6c6c62 // "atollb"

// errAnother means that another process copies the server.
var errAnother = errors.New("another process copies this server already")

// copy is one session with the server: it copies until ctx ends or something fails.
func (c *Copier) copy(ctx context.Context) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	sql, err := pgsession.Connect(ctx, c.o.Server)
	if err != nil {
		return fmt.Errorf("connecting to the server: %w", err)
	}
	defer sql.Close(context.WithoutCancel(ctx))
	var isLocked bool
	if err := sql.QueryRow(ctx, `select pg_try_advisory_lock($1)`, int64(copyLock)).Scan(&isLocked); err != nil {
		return fmt.Errorf("locking the server for copies: %w", err)
	}
	if !isLocked {
		return errAnother
	}
	replication, err := pgsession.ConnectReplication(ctx, c.o.Server)
	if err != nil {
		return err
	}
	defer replication.Close(context.WithoutCancel(ctx))
	box, err := envelope.NewBox(ctx, c.o.KMS)
	if err != nil {
		return fmt.Errorf("a key for the copy: %w", err)
	}
	s := &session{c: c, box: box, sql: sql, replication: replication}
	if err := s.readServerFacts(ctx); err != nil {
		return err
	}
	if err := s.continueOrBeginArchive(ctx); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for what, f := range map[string]func(context.Context) error{
		"base backup": s.takeBases, "files": s.copyFiles, "retention": s.deleteExpiredHourly,
	} {
		wg.Go(func() { c.repeat(ctx, what, f) })
	}
	if err := s.copyWAL(ctx); err != nil {
		return fmt.Errorf("WAL: %w", err)
	}
	return context.Cause(ctx)
}

// repeat calls f again and again until ctx ends. f works until it fails. Its failures stop nothing else, and Check
// reports them.
func (c *Copier) repeat(ctx context.Context, what string, f func(context.Context) error) {
	for pause := time.Second; ; pause = min(2*pause, longest) {
		err := f(ctx)
		if ctx.Err() != nil {
			return
		}
		c.noteProblem(what, err)
		c.o.Log.Warn("copying the region", slog.String("part", what), slog.Any("error", err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
