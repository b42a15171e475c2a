package remote

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"atoll.dev/internal/rest"
)

// Event is one event of a watch. Types are those of package rest: ADDED,
// MODIFIED, DELETED, BOOKMARK, ERROR; and Relist.
type Event = rest.Event

// Relist is an event that only FollowBundles and Follow make: the stream could not be
// continued, what was seen so far may be out of date, deletions may have been
// missed. What exists follows as ADDED, up to the next BOOKMARK that has a
// cursor.
const Relist rest.EventType = "RELIST"

// WatchOptions select what is watched.
type WatchOptions struct {
	Cursor   string // continue here; empty: begin with what exists
	Consumer string // only bundles of this management cluster
	ID       string // only this bundle
	Kind     string // of all kinds of CLM's resources only this
	Search   string
	Fields   string
	Statuses bool // of CLM's resources with what their adapters reported
}

func (o WatchOptions) Values() url.Values {
	q := url.Values{"watch": {"true"}}
	SetQuery(q, "cursor", o.Cursor)
	SetQuery(q, "consumer", o.Consumer)
	SetQuery(q, "id", o.ID)
	SetQuery(q, "kind", o.Kind)
	SetQuery(q, "search", o.Search)
	SetQuery(q, "fields", o.Fields)
	if o.Statuses {
		q.Set("statuses", "true")
	}
	return q
}

// Watch is an open stream. It belongs to one goroutine, but Close may be
// called by another.
type Watch struct {
	body  io.ReadCloser
	lines *bufio.Reader
	idle  *time.Timer
}

// StreamIdleLimit is how long a stream may be silent. Bookmarks come every 15 s.
const StreamIdleLimit = 45 * time.Second

// maxLine bounds one event: a bundle of 500 KiB of manifests with its status.
const maxLine = 16 << 20

// Watch opens a stream. It fails as any call does, and with 410 when the
// cursor is too old.
func (c *Service) Watch(ctx context.Context, path string, o WatchOptions) (*Watch, error) {
	return c.WatchQuery(ctx, path, o.Values())
}

func (c *Service) WatchQuery(ctx context.Context, path string, q url.Values) (*Watch, error) {
	resp, err := c.Open(ctx, Request{Method: http.MethodGet, Path: path, Query: q}, c.AnswerTimeout)
	if err != nil {
		return nil, err
	}
	body := resp.Body
	return &Watch{
		body:  body,
		lines: bufio.NewReaderSize(body, 64<<10),
		idle:  time.AfterFunc(StreamIdleLimit, func() { _ = body.Close() }),
	}, nil
}

// Next waits for the next event. After an error, io.EOF included, the watch is
// of no more use.
func (w *Watch) Next() (Event, error) {
	var line []byte
	for {
		part, err := w.lines.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return Event{}, fmt.Errorf("watching: an event is larger than %d bytes", maxLine)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return Event{}, fmt.Errorf("watching: %w", err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			break
		}
	}
	w.idle.Reset(StreamIdleLimit)
	var e Event
	if err := json.Unmarshal(line, &e); err != nil {
		return Event{}, fmt.Errorf("watching: reading an event: %w", err)
	}
	return e, nil
}

// Close ends the stream; a Next that waits fails.
func (w *Watch) Close() error {
	w.idle.Stop()
	return w.body.Close()
}

// Follow watches until ctx ends or apply fails, and returns why. Streams that
// break are continued from the last cursor; Relist tells when they cannot be.
func Follow(ctx context.Context, o WatchOptions, open func(context.Context, WatchOptions) (*Watch, error),
	apply func(Event) error) error {
	known := o.Cursor != "" // the caller has something that may be out of date
	for attempt := 0; ; attempt++ {
		w, err := open(ctx, o)
		if err == nil {
			if o.Cursor == "" && known {
				if err := apply(Event{Type: Relist}); err != nil {
					_ = w.Close()
					return err
				}
			}
			var progress bool
			progress, err = drain(ctx, w, &o.Cursor, apply)
			if progress {
				attempt, known = 0, true
			}
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if stop, ok := errors.AsType[*ApplyError](err); ok {
			return stop.Err
		}
		switch status := StatusOf(err); {
		case status == http.StatusGone && o.Cursor != "":
			o.Cursor = ""
		case status >= 400 && status < 500 && status != http.StatusTooManyRequests:
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(Backoff(attempt)):
		}
	}
}

// ApplyError is an error of follow's caller.
type ApplyError struct{ Err error }

func (e *ApplyError) Error() string { return e.Err.Error() }

// drain applies the events of one stream.
func drain(ctx context.Context, w *Watch, cursor *string, apply func(Event) error) (progress bool, err error) {
	defer w.Close()
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	for {
		e, err := w.Next()
		if err != nil {
			return progress, err
		}
		if e.Type == rest.Failed {
			return progress, nil // what it was shows when the stream is continued
		}
		progress = true
		if err := apply(e); err != nil {
			return progress, &ApplyError{err}
		}
		if e.Cursor != "" {
			*cursor = e.Cursor
		}
	}
}
