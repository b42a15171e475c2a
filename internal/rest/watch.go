package rest

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"
)

// EventType is the kind of change that an event reports.
type EventType string

// The types of events, as Kubernetes names them.
const (
	Added    EventType = "ADDED"
	Modified EventType = "MODIFIED"
	Deleted  EventType = "DELETED"
	Bookmark EventType = "BOOKMARK" // no further event up to the cursor
	Failed   EventType = "ERROR"    // the object is an error body; the stream ends
)

// An Event is one line of a watch.
type Event struct {
	Type   EventType       `json:"type"`
	Object json.RawMessage `json:"object,omitempty"`
	Cursor string          `json:"cursor,omitempty"` // a later watch may continue from here
}

// WatchOptions bound a watch. The zero value is useful.
type WatchOptions struct {
	Bookmark     time.Duration // time without an event after which a bookmark is sent; default 15 s
	WriteTimeout time.Duration // for writing one event; a slower client is disconnected; default 10 s

	Limits *WatchLimits // nil: no bound
	Caller string       // the caller whose watches Limits counts; "": the watch is not counted
}

func (o WatchOptions) withDefaults() WatchOptions {
	if o.Bookmark <= 0 {
		o.Bookmark = 15 * time.Second
	}
	if o.WriteTimeout <= 0 {
		o.WriteTimeout = 10 * time.Second
	}
	return o
}

// Stream is an open watch. Its methods may be called from several goroutines.
type Stream struct {
	w      http.ResponseWriter
	rc     *http.ResponseController
	opts   WatchOptions
	cancel context.CancelCauseFunc
	opened func() // called once, when the answer begins

	mu     sync.Mutex
	open   bool
	cursor string
	timer  *time.Timer // next bookmark
	err    error       // first failed write; later ones are refused with it
	done   bool
}

// Watch runs feed, which sends events until its context ends: when the client has closed
// the connection or is too slow, or when the server stops. The answer begins with the
// first Send or Open. An error that feed returns before that is answered as any other (an
// unknown cursor is 410, too many watches of the caller are 429); a later error becomes
// an ERROR event. Watch ignores an error that feed returns after its context has ended. When the
// context of the request ends with a cause that is an *Error, that becomes an ERROR event, too.
func Watch(w http.ResponseWriter, r *http.Request, o WatchOptions, feed func(ctx context.Context,
	s *Stream) error) error {
	callOf(r.Context()).isWatch = true
	release, err := o.Limits.acquire(o.Caller)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	stop := context.AfterFunc(Stopping(ctx), func() { cancel(errStopping) })
	defer stop()

	s := &Stream{w: w, rc: http.NewResponseController(w), opts: o.withDefaults(), cancel: cancel,
		opened: watchOpened(ctx)}
	// The deadlines of the server are for requests that end.
	if err := errors.Join(s.rc.SetReadDeadline(time.Time{}), s.rc.SetWriteDeadline(time.Time{})); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return err
	}
	err = feed(ctx, s)
	opened := s.close()
	refusal, isRefused := context.Cause(ctx).(*Error)
	switch {
	case isRefused && !opened:
		return refusal
	case isRefused:
		err = refusal
	case ctx.Err() != nil:
		if !opened && context.Cause(ctx) == errStopping {
			e := Errorf(http.StatusServiceUnavailable, "stopping", "the server is stopping; try again").Because(
				errStopping)
			e.RetryAfter = time.Second
			return e
		}
		return nil
	case err == nil:
		return nil
	case !opened:
		return err
	}
	c := callOf(r.Context())
	e := c.classify(r, err)
	if e.Status >= http.StatusInternalServerError {
		c.opts.Log.LogAttrs(ctx, slog.LevelWarn, "watch failed",
			slog.String("operation_id", c.id), slog.String("path", r.URL.Path),
			slog.String("code", e.Code), slog.Any("error", err))
	}
	_ = s.write(Event{Type: Failed, Object: c.renderError(r.Context(), e)})
	return nil
}

type watchOpenKey struct{}

// OnWatchOpen returns a context with a function that Watch calls when the stream of a request with
// the context opens. Middleware that limits running requests ends its count by it: a watch lasts
// long, and has limits of its own. call must not block.
func OnWatchOpen(ctx context.Context, call func()) context.Context {
	return context.WithValue(ctx, watchOpenKey{}, call)
}

// watchOpened returns the function of OnWatchOpen.
func watchOpened(ctx context.Context) func() {
	if call, ok := ctx.Value(watchOpenKey{}).(func()); ok {
		return call
	}
	return func() {}
}

var errStopping = errors.New("server stopping")

// Open begins the answer, so that a client knows that its watch is open before the first
// event. It sets the cursor of bookmarks until an event comes.
func (s *Stream) Open(cursor string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done { // feed has returned, and Watch is writing its error
		return http.ErrHandlerTimeout
	}
	if cursor != "" {
		s.cursor = cursor
	}
	return s.begin()
}

// Advance sets the cursor of the next bookmark: the watch has no further event up to it.
func (s *Stream) Advance(cursor string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cursor = cursor
}

// Send writes one event and flushes it.
func (s *Stream) Send(e Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return http.ErrHandlerTimeout
	}
	if err := s.begin(); err != nil {
		return err
	}
	if e.Cursor != "" {
		s.cursor = e.Cursor
	}
	s.timer.Reset(s.opts.Bookmark)
	return s.write(e)
}

// begin sends the headers, once, and starts the bookmarks.
func (s *Stream) begin() error {
	if s.open {
		return s.err
	}
	s.open = true
	s.opened()
	h := s.w.Header()
	h.Set("Content-Type", "application/json;stream=watch")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	s.setDeadline()
	s.w.WriteHeader(http.StatusOK)
	s.timer = time.AfterFunc(s.opts.Bookmark, s.bookmark)
	return s.flush()
}

// flush sends what was written, and ends its deadline: HTTP/2 resets a stream at its deadline, also a quiet one.
func (s *Stream) flush() error {
	err := s.fail(s.rc.Flush())
	_ = s.rc.SetWriteDeadline(time.Time{}) // a test's httptest.ResponseRecorder has no deadlines
	return err
}

// bookmark sends a bookmark and starts the timer of the next one.
func (s *Stream) bookmark() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done || s.err != nil {
		return
	}
	if s.write(Event{Type: Bookmark, Cursor: s.cursor}) == nil {
		s.timer.Reset(s.opts.Bookmark)
	}
}

// write writes one event and flushes it. The caller holds the lock, or has closed the
// stream.
func (s *Stream) write(e Event) error {
	if s.err != nil {
		return s.err
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err // the object is not JSON: the feed's fault, not the client's
	}
	s.setDeadline()
	if _, err := s.w.Write(append(line, '\n')); err != nil {
		return s.fail(err)
	}
	return s.flush()
}

func (s *Stream) setDeadline() {
	// A test's httptest.ResponseRecorder has no deadlines.
	_ = s.rc.SetWriteDeadline(time.Now().Add(s.opts.WriteTimeout))
}

// fail records the first failed write and cancels the feed. It returns err.
func (s *Stream) fail(err error) error {
	if err != nil && s.err == nil {
		s.err = err
		s.cancel(err)
	}
	return err
}

// close stops the bookmarks, and returns whether the answer has begun.
func (s *Stream) close() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = true
	if s.timer != nil {
		s.timer.Stop()
	}
	return s.open
}
