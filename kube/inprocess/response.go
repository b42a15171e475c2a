package inprocess

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"
)

const (
	// flushAt is the size of a response's unread part from which on the client reads it before the handler flushes it.
	flushAt = 32 << 10
	// most is the size of the unread part from which on the handler waits for the client.
	most = 256 << 10
)

// response is both ends of a response: the handler writes it as an [http.ResponseWriter], the client reads it as the
// body of an [http.Response]. What the handler writes is visible to the client when the handler flushes or returns, or
// when it is more than flushAt.
//
// It ends when the handler returns, when the client closes the body, or when the context of the client's request is
// done.
type response struct {
	request *http.Request
	header  http.Header // only the handler uses it
	cancel  context.CancelFunc
	stop    func() bool // stops the wait for the end of the client's context
	gone    chan bool   // closed when the client does not wait any more

	mu      sync.Mutex
	changed sync.Cond // any of the following
	status  int       // 0: the handler has not written the header
	sent    http.Header
	unread  []byte
	visible int   // bytes of unread that the client may read
	ended   error // nil: the handler still runs and the client still waits
	flushed bool  // the client may have the header
	closed  bool  // gone is closed
}

func newResponse(r *http.Request, cancel context.CancelFunc) *response {
	w := &response{request: r, header: http.Header{}, cancel: cancel, gone: make(chan bool)}
	w.changed.L = &w.mu
	w.stop = context.AfterFunc(r.Context(), func() { w.abandon(r.Context().Err()) })
	return w
}

// Header implements [http.ResponseWriter].
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements [http.ResponseWriter]. Only its first call has an effect.
func (w *response) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *response) writeHeader(status int) {
	if w.status == 0 && status >= http.StatusOK { // an informational header would precede the real one
		w.status, w.sent = status, w.header.Clone()
	}
}

// Write implements [http.ResponseWriter].
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	if w.request.Method == http.MethodHead {
		return len(p), nil
	}
	written := 0
	for len(p) > 0 {
		for len(w.unread) >= most && w.ended == nil {
			w.show()
			w.changed.Wait()
		}
		if w.ended != nil {
			return written, w.ended
		}
		n := min(len(p), most-len(w.unread))
		w.unread = append(w.unread, p[:n]...)
		p, written = p[n:], written+n
	}
	if len(w.unread) >= flushAt {
		w.show()
	}
	return written, nil
}

// Flush implements [http.Flusher].
func (w *response) Flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(http.StatusOK)
	w.show()
}

// show lets the client see what the handler has written so far.
func (w *response) show() {
	w.visible, w.flushed = len(w.unread), true
	w.changed.Broadcast()
}

// CloseNotify implements [http.CloseNotifier], which upstream's filters want beside [http.Flusher].
func (w *response) CloseNotify() <-chan bool { return w.gone }

// end ends the response when the handler has returned. The client reads what is unread, and then gets err.
func (w *response) end(err error) {
	w.mu.Lock()
	if w.status == 0 && err == io.EOF {
		w.writeHeader(http.StatusOK)
	}
	if w.ended == nil {
		w.ended = err
	}
	w.show()
	w.mu.Unlock()
	w.stop()
	w.cancel()
}

// abandon ends the response when the client does not want it any more. What is unread is lost.
func (w *response) abandon(err error) {
	w.mu.Lock()
	if w.ended == nil || w.ended == io.EOF {
		w.ended = err
	}
	w.unread, w.visible, w.flushed = nil, 0, true
	if !w.closed {
		w.closed = true
		close(w.gone)
	}
	w.changed.Broadcast()
	w.mu.Unlock()
	w.cancel()
}

// await returns the response when the client may have its header.
func (w *response) await() (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.flushed {
		w.changed.Wait()
	}
	if w.status == 0 || w.closed {
		return nil, w.ended
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/2.0", ProtoMajor: 2, Header: w.sent, Body: body{w}, ContentLength: w.contentLength(),
		Request: w.request,
	}, nil
}

// contentLength returns the length that the handler has announced, or -1.
func (w *response) contentLength() int64 {
	if n, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		return n
	}
	if w.ended == io.EOF {
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
	for w.visible == 0 && w.ended == nil {
		w.changed.Wait()
	}
	if w.visible == 0 {
		return 0, w.ended
	}
	n := copy(p, w.unread[:w.visible])
	w.visible -= n
	if w.unread = w.unread[n:]; len(w.unread) == 0 {
		w.unread = nil // a watch waits for hours between two events
	}
	w.changed.Broadcast()
	return n, nil
}

// Close implements [io.Closer].
func (b body) Close() error {
	b.response.stop()
	b.response.abandon(http.ErrBodyReadAfterClose)
	return nil
}
