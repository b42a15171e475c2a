package inprocess

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
)

const (
	// publishAt is how many unread bytes the client may read although the handler has not flushed them.
	publishAt = 32 << 10
	// maxUnread is how many unread bytes a response has at most: with so many, Write waits for the client.
	maxUnread = 256 << 10
)

// response connects a handler with its client: the handler writes it as an [http.ResponseWriter], the client reads it
// as the body of an [http.Response]. The client may read what the handler has written as soon as the handler flushes,
// returns, or has written publishAt bytes.
//
// It ends when the handler returns, when the client closes the body, or when the context of the client's request is
// done.
type response struct {
	request *http.Request      // the client's
	header  http.Header        // only the handler uses it
	cancel  context.CancelFunc // of the context of the handler's request
	detach  func() bool        // removes the callback from the context of the client's request
	gone    chan bool          // closed when the client has closed the body, or its context is done

	mu         sync.Mutex
	changed    sync.Cond   // broadcast when any of the following changes
	status     int         // 0: the handler has not written the header
	sent       http.Header // as it was when the handler wrote it
	unread     []byte
	readable   int   // how many bytes of unread the client may read
	ended      error // what the client reads after the last byte, io.EOF after a success; nil: neither side has ended it
	published  bool  // await need not wait any more
	goneClosed bool
}

func newResponse(r *http.Request, cancel context.CancelFunc) *response {
	w := &response{request: r, header: http.Header{}, cancel: cancel, gone: make(chan bool)}
	w.changed.L = &w.mu
	w.detach = context.AfterFunc(r.Context(), func() { w.abandon(r.Context().Err()) })
	return w
}

// Header implements [http.ResponseWriter].
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter]. Only its first call with a status of 200 or more has an effect.
func (w *response) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *response) writeHeader(status int) {
	if w.status == 0 && status >= http.StatusOK {
		w.status, w.sent = status, w.header.Clone()
	}
}

// Write implements [http.ResponseWriter]. After the end of the response it returns io.ErrClosedPipe.
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	if w.request.Method == http.MethodHead {
		return len(p), nil
	}
	written := 0
	for len(p) > 0 {
		for len(w.unread) >= maxUnread && w.ended == nil {
			w.publish()
			w.changed.Wait()
		}
		if w.ended != nil {
			return written, io.ErrClosedPipe
		}
		n := min(len(p), maxUnread-len(w.unread))
		w.unread = append(w.unread, p[:n]...)
		p, written = p[n:], written+n
	}
	if len(w.unread) >= publishAt {
		w.publish()
	}
	return written, nil
}

// Flush implements [http.Flusher].
func (w *response) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.publish()
}

// publish lets the client read what the handler has written so far.
func (w *response) publish() {
	w.readable, w.published = len(w.unread), true
	w.changed.Broadcast()
}

// CloseNotify implements [http.CloseNotifier], which filters of the API server require beside [http.Flusher]. They wait
// for the channel's end as for a value.
func (w *response) CloseNotify() <-chan bool { return w.gone }

// end ends the response when the handler has returned. The client reads what is unread, and then gets err, which is not
// nil.
func (w *response) end(err error) {
	w.mu.Lock()
	if w.status == 0 && err == io.EOF {
		w.writeHeader(http.StatusOK)
	}
	if w.ended == nil {
		w.ended = err
	}
	w.publish()
	w.mu.Unlock()
	w.detach()
	w.cancel()
}

// abandon ends the response when the client does not want it any more. It drops what is unread.
func (w *response) abandon(err error) {
	w.mu.Lock()
	if w.ended == nil || w.ended == io.EOF {
		w.ended = err
	}
	w.unread, w.readable, w.published = nil, 0, true
	if !w.goneClosed {
		w.goneClosed = true
		close(w.gone)
	}
	w.changed.Broadcast()
	w.mu.Unlock()
	w.cancel()
}

// await waits until the handler has flushed something or the response has ended, and returns the response.
func (w *response) await() (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.published {
		w.changed.Wait()
	}
	if w.status == 0 || w.goneClosed {
		return nil, w.ended
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.sent, Body: body{w}, ContentLength: w.contentLength(),
		Request: w.request,
	}, nil
}

// contentLength returns the length that the header has, or that of a body which is complete already; -1 if neither is
// known.
func (w *response) contentLength() int64 {
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		return n
	}
	if w.ended == io.EOF && w.request.Method != http.MethodHead {
		return int64(len(w.unread))
	}
	return -1
}

// body is the client's end of a response.
type body struct{ response *response }

// Read implements [io.Reader].
func (b body) Read(p []byte) (int, error) {
	w := b.response
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.readable == 0 && w.ended == nil {
		w.changed.Wait()
	}
	if w.readable == 0 {
		return 0, w.ended
	}
	n := copy(p, w.unread[:w.readable])
	w.readable -= n
	if w.unread = w.unread[n:]; len(w.unread) == 0 {
		w.unread = nil // an idle watch keeps no buffer
	}
	w.changed.Broadcast()
	return n, nil
}

// Close implements [io.Closer].
func (b body) Close() error {
	b.response.detach()
	b.response.abandon(http.ErrBodyReadAfterClose)
	return nil
}
