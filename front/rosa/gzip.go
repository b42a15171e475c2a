package rosa

import (
	"compress/gzip"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// minCompressed is the length from which compressing an answer is worth it.
const minCompressed = 1400

var gzipWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // the level is valid
	return z
}}

// compress answers with gzip when the client asks for it and the answer is
// long. Watches are never compressed: each event is to leave at once.
func compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead || !acceptsGzip(r.Header) {
			next.ServeHTTP(w, r)
			return
		}
		cw := &compressor{ResponseWriter: w}
		next.ServeHTTP(cw, r)
		cw.close() // not when a handler panics: half an answer must not look whole
	})
}

func acceptsGzip(h http.Header) bool {
	for part := range strings.SplitSeq(strings.Join(h.Values("Accept-Encoding"), ","), ",") {
		coding, params, _ := strings.Cut(part, ";")
		if c := strings.ToLower(strings.TrimSpace(coding)); c != "gzip" && c != "*" {
			continue
		}
		q, ok := strings.CutPrefix(strings.ReplaceAll(params, " ", ""), "q=")
		weight, err := strconv.ParseFloat(q, 64)
		return !ok || (err == nil && weight > 0)
	}
	return false
}

// compressor decides when the header is written. http.ResponseController and
// package rest reach the real writer through Unwrap.
type compressor struct {
	http.ResponseWriter
	decided bool
	z       *gzip.Writer // nil: as it is
}

func (c *compressor) WriteHeader(status int) {
	if !c.decided && status >= 200 {
		c.decide(status)
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *compressor) decide(status int) {
	c.decided = true
	h := c.Header()
	kind := h.Get("Content-Type")
	if strings.Contains(kind, "stream=") || !(strings.Contains(kind, "json") || strings.Contains(kind, "yaml")) {
		return
	}
	h.Add("Vary", "Accept-Encoding")
	length, err := strconv.Atoi(h.Get("Content-Length"))
	if status == http.StatusNoContent || status == http.StatusNotModified || h.Get("Content-Encoding") != "" ||
		(err == nil && length < minCompressed) {
		return
	}
	h.Del("Content-Length")
	h.Set("Content-Encoding", "gzip")
	c.z = gzipWriters.Get().(*gzip.Writer)
	c.z.Reset(c.ResponseWriter)
}

func (c *compressor) Write(p []byte) (int, error) {
	if !c.decided {
		c.WriteHeader(http.StatusOK)
	}
	if c.z == nil {
		return c.ResponseWriter.Write(p)
	}
	return c.z.Write(p)
}

// close ends the compressed answer. An error means that the client left.
func (c *compressor) close() {
	if c.z == nil {
		return
	}
	_ = c.z.Close()
	c.z.Reset(io.Discard)
	gzipWriters.Put(c.z)
	c.z = nil
}

func (c *compressor) Unwrap() http.ResponseWriter { return c.ResponseWriter }
