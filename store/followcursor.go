package store

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// rewind moves the follower back to its last safe position, after an interruption that may have
// been a crash.
func (f *follower) rewind() {
	if f.current != nil && f.current.flushed {
		return // the run continues after its last chunk; its beginning is safe, too
	}
	skip := map[docKey]int64{}
	for k, v := range f.skipVersions {
		skip[k] = v
	}
	for _, u := range f.unflushed {
		for k, v := range u.delivered {
			skip[k] = v
		}
	}
	if f.current != nil {
		for k, v := range f.current.delivered {
			skip[k] = v
		}
	}
	if f.safe.snapshot == "" {
		skip = nil // a relist delivers all documents
	}
	f.at, f.atRequestedAt, f.skipVersions, f.unflushed, f.current = f.safe, time.Time{}, skip, nil, nil
}

// restart drops the follower's position, so that the next run is a relist.
func (f *follower) restart() {
	f.at, f.atRequestedAt, f.safe, f.skipVersions, f.unflushed, f.current, f.loaded = position{}, time.Time{},
		position{}, nil,
		nil, nil,
		true
}

// load reads the durable cursor, if the follower has a name.
func (f *follower) load(ctx context.Context) error {
	if f.opts.Name != "" {
		var text Cursor
		err := f.s.read(ctx, f.s.pool, func(ctx context.Context, c *pgx.Conn) error {
			return c.QueryRow(ctx, `select coalesce((select cursor from follower where name = $1), '')`,
				f.opts.Name).Scan(
				&text)
		})
		if err != nil {
			return err
		}
		if text != "" {
			if f.at, err = text.position(); err != nil {
				return err
			}
			f.safe, f.saved = f.at, f.at
		}
	}
	f.loaded, f.savedAt = true, time.Now()
	return nil
}

const saveSQL = `insert into follower (name, cursor) values ($1, $2)
	on conflict (name) do update set cursor = $2, updated_at = now()`

// saving determines whether save waits until SaveEvery has passed since the last save.
type saving int

const (
	whenDue saving = iota
	atEnd          // Follow returns: save does not wait
)

// save writes the durable cursor if there is one that changed. The commit puts all earlier WAL on
// disk, so f.at is safe. A failure is logged and has no other effect.
func (f *follower) save(ctx context.Context, when saving) {
	if f.opts.Name == "" || f.at.snapshot == "" || f.at.snapshot == f.saved.snapshot {
		return
	}
	wait := f.opts.SaveEvery
	if !f.dirty {
		wait = time.Minute // there was no change, but Compact makes old cursors unusable
	}
	if when == atEnd && !f.dirty || when == whenDue && time.Since(f.savedAt) < wait {
		return
	}
	err := f.s.read(ctx, f.s.pool, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, saveSQL, f.opts.Name, string(f.at.cursor()))
		return err
	})
	if err != nil {
		f.s.log.Warn("saving a follower's cursor failed; after a restart it gets some changes again", "follower",
			f.opts.Name,
			"error", err)
		return
	}
	f.dirty, f.saved, f.savedAt = false, f.at, time.Now()
}
