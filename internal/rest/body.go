package rest

import (
	"bufio"
	"net/http"
	"time"
)

// StreamedBody writes a JSON answer in pieces, with status 200. The headers go out
// with the first bytes. If the handler returns an error after that, the service closes
// the connection, so that the client notices that the answer is incomplete.
type StreamedBody struct{ buf *bufio.Writer }

// How long a client may take for a piece of a long answer, and for all of it.
const (
	pieceTimeout = 10 * time.Second
	bodyTimeout  = 2 * time.Minute
)

// NewStreamedBody begins an answer.
func NewStreamedBody(w http.ResponseWriter) *StreamedBody {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	p := &pacedWriter{w: w, rc: http.NewResponseController(w), end: time.Now().Add(bodyTimeout)}
	return &StreamedBody{bufio.NewWriterSize(p, 64<<10)}
}

// Write adds to the answer.
func (b *StreamedBody) Write(p []byte) (int, error) { return b.buf.Write(p) }

// Close sends the rest of the answer.
func (b *StreamedBody) Close() error { return b.buf.Flush() }

// pacedWriter sets a new write deadline for each piece, because the server's deadline is
// for answers that are written at once. All pieces together end by end.
type pacedWriter struct {
	w   http.ResponseWriter
	rc  *http.ResponseController
	end time.Time
}

func (p *pacedWriter) Write(data []byte) (int, error) {
	deadline := time.Now().Add(pieceTimeout)
	if deadline.After(p.end) {
		deadline = p.end
	}
	_ = p.rc.SetWriteDeadline(deadline) // a test's httptest.ResponseRecorder has no deadlines
	n, err := p.w.Write(data)
	if err != nil {
		return n, Errorf(statusClientClosed, "client-gone", "the client closed the connection, or took too long").Because(err)
	}
	return n, nil
}
