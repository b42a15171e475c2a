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
	storeEvery         = 5 * time.Second // between two pieces or marks
	baseEvery          = 24 * time.Hour  // between two base backups
	deleteExpiredEvery = time.Hour
	filesEvery         = 5 * time.Second // between two comparisons of the files with the stored ones
	// lateAfter is the age of the copy from which Check fails.
	lateAfter = 30 * time.Second
	maxPause  = 30 * time.Second // between two attempts
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
	Keep  time.Duration // for how long each moment can be restored
	Log   *slog.Logger
}

// Copier copies a region. Use New.
type Copier struct {
	o Options

	mu      sync.Mutex
	covered time.Time // the copy has every transaction acknowledged before, by the server's clock
	asOf    time.Time // when covered was read, by this process's clock
	err     error     // of the last session or upload of WAL; nil once the copy was complete again
	// problems has the errors of the last attempts of base backups, files and retention; none after a success.
	problems map[string]error

	lastBaseBegan time.Time // by the server's clock; zero: the archive has no base backup

	archive archive // "": the next session looks for one. Only continueOrBeginArchive changes it
	end     LSN     // of the stored WAL; only the goroutine that copies the WAL uses it
	// storedFiles is the checksum of the stored files; only the goroutine that copies the files uses it.
	storedFiles [sha256.Size]byte
	// foundFiles has the names of the files that existed earlier; only the goroutine that copies the files uses it.
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

// Age returns the age of the copy: how long ago it had every acknowledged transaction. It returns false when no base
// backup is complete yet.
func (c *Copier) Age() (age time.Duration, isComplete bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.asOf), !c.asOf.IsZero()
}

// noteCovered records that the copy has everything before a moment, which was read from the server at asOf.
func (c *Copier) noteCovered(covered, asOf time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lastBaseBegan.IsZero() {
		return // without a base backup the WAL restores nothing
	}
	c.covered, c.asOf, c.err = covered, asOf, nil
}

// noteProblem records the error of the last attempt of a part; nil means that it succeeded.
func (c *Copier) noteProblem(what string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.problems, what)
		return
	}
	c.problems[what] = err
}

// noteBase records when the archive's last base backup began; zero means that the archive has none.
func (c *Copier) noteBase(began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastBaseBegan = began
}

// lastBase returns when the archive's last base backup began; zero when it has none.
func (c *Copier) lastBase() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastBaseBegan
}

func (c *Copier) noteError(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// Run copies until ctx ends. It begins a new session after every error.
func (c *Copier) Run(ctx context.Context) {
	pause := time.Second
	for {
		begun := time.Now()
		err := c.copy(ctx)
		if ctx.Err() != nil {
			return
		}
		c.noteError(err)
		c.o.Log.Warn("the copy of the region was interrupted; it is tried again", slog.Any("error", err))
		if time.Since(begun) > time.Minute {
			pause = time.Second
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// copyLock is the advisory lock of a server that its Copier holds: a server has at most one.
const copyLock = 0x61746f6c6c62 // "atollb"

// errAlreadyCopied means that another process copies the server.
var errAlreadyCopied = errors.New("another process copies this server already")

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
		return errAlreadyCopied
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

// repeat calls f again after each error until ctx ends. f returns only after an error, or when ctx has ended. An error
// of f stops no other part of the session; Check reports it.
func (c *Copier) repeat(ctx context.Context, what string, f func(context.Context) error) {
	for pause := time.Second; ; pause = min(2*pause, maxPause) {
		err := f(ctx)
		if ctx.Err() != nil {
			return
		}
		c.noteProblem(what, err)
		c.o.Log.Warn("a part of the region's copy failed; it is tried again", slog.String("part", what),
			slog.Any("error", err))
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}
