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

	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
)

// Event is one event of a watch. Types are those of package rest: ADDED,
// MODIFIED, DELETED, BOOKMARK, ERROR; and Relist.
type Event = rest.Event

// Relist is an event of Follow, not of a service: the stream could not be continued, so that deletions
// may have been missed. All existing objects follow as ADDED, up to the next BOOKMARK with a cursor.
const Relist rest.EventType = "RELIST"

// WatchOptions select the objects and the beginning of a watch.
type WatchOptions struct {
	Cursor   string        // continue here; empty: begin with what exists
	Consumer work.Consumer // only bundles of this management cluster
	ID       string        // only the object with this id: a bundle, a cluster, a resource of CLM
	Kind     string        // only CLM's resources of this kind
	Search   string
	Fields   string
	Statuses bool // CLM's resources with the reports of their adapters
}

func (o WatchOptions) Values() url.Values {
	q := url.Values{"watch": {"true"}}
	SetNonEmpty(q, "cursor", o.Cursor)
	SetNonEmpty(q, "consumer", string(o.Consumer))
	SetNonEmpty(q, "id", o.ID)
	SetNonEmpty(q, "kind", o.Kind)
	SetNonEmpty(q, "search", o.Search)
	SetNonEmpty(q, "fields", o.Fields)
	if o.Statuses {
		q.Set("statuses", "true")
	}
	return q
}

// Watch is an open stream. One goroutine uses it; another may call Close.
type Watch struct {
	body  io.ReadCloser
	lines *bufio.Reader
	idle  *time.Timer
}

// StreamIdleLimit is the time without an event after which a stream counts as broken. Services send a
// bookmark every 15 s.
const StreamIdleLimit = 45 * time.Second

// maxLine bounds one event: a bundle of 500 KiB of manifests with its status.
const maxLine = 16 << 20

// Watch opens a stream. The error has status 410 when the cursor is too old.
func (c *Service) Watch(ctx context.Context, path string, o WatchOptions) (*Watch, error) {
	return c.WatchQuery(ctx, path, o.Values())
}

// WatchQuery opens a stream as Watch does, with any parameters of the URL.
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

// Next waits for the next event. After an error, io.EOF included, every further call fails.
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

// Close ends the stream; a concurrent Next fails.
func (w *Watch) Close() error {
	w.idle.Stop()
	return w.body.Close()
}

// Follow calls apply with every event until ctx ends or apply fails, and returns that error. It
// continues a broken stream from the last cursor. When the server refuses the cursor, it calls apply
// with a Relist event and begins with all existing objects. Another answer of 4xx, except 429, ends
// it with that error, and so does a *SenderError.
func Follow(ctx context.Context, o WatchOptions, open func(context.Context, WatchOptions) (*Watch, error),
	apply func(Event) error) error {
	known := o.Cursor != "" // the caller has objects; without a cursor to continue from they may be out of date
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
			progress, err = applyStream(ctx, w, &o.Cursor, apply)
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
		if _, ok := errors.AsType[*SenderError](err); ok {
			return err
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

// ApplyError wraps an error of the function that applies events.
type ApplyError struct{ Err error }

func (e *ApplyError) Error() string { return e.Err.Error() }

// applyStream calls apply with the events of one stream, and keeps the last cursor. progress is true when there was an
// event.
func applyStream(ctx context.Context, w *Watch, cursor *string, apply func(Event) error) (progress bool, err error) {
	defer w.Close()
	defer context.AfterFunc(ctx, func() { _ = w.Close() })()
	for {
		e, err := w.Next()
		if err != nil {
			return progress, err
		}
		if e.Type == rest.Failed {
			return progress, nil // the next attempt to open the stream reports the cause
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
