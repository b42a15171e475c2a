package rest

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// minCompressed is the size in bytes below which compression of an answer of known length
// is not worth its time.
const minCompressed = 1400

// Compress compresses answers with gzip when the client accepts it. The caller puts it
// inside of Observe. Watches and short answers are not compressed.
func Compress(next http.Handler) http.Handler {
	// The fastest level: between two processes of a region, time costs more than bytes.
	pool := &sync.Pool{New: func() any {
		z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // errs only for unknown levels
		return z
	}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept-Encoding")
		if r.Method == http.MethodHead || !acceptsGzip(r.Header.Values("Accept-Encoding")) {
			next.ServeHTTP(w, r)
			return
		}
		z := &gzipWriter{ResponseWriter: w, pool: pool}
		next.ServeHTTP(z, r)
		// Not deferred: after a panic the client must notice that the answer is incomplete.
		z.close()
	})
}

// acceptsGzip reports whether values of Accept-Encoding allow gzip.
func acceptsGzip(values []string) bool {
	for _, v := range values {
		for coding := range strings.SplitSeq(v, ",") {
			name, weight, _ := strings.Cut(coding, ";")
			if name = strings.TrimSpace(name); name != "*" && !strings.EqualFold(name, "gzip") {
				continue
			}
			q, found := strings.CutPrefix(strings.ReplaceAll(weight, " ", ""), "q=")
			n, err := strconv.ParseFloat(q, 64)
			return !found || err == nil && n > 0
		}
	}
	return false
}

// gzipWriter decides at the header whether the answer is compressed.
type gzipWriter struct {
	http.ResponseWriter
	pool    *sync.Pool
	z       *gzip.Writer // nil: the answer is not compressed
	decided bool
}

func (w *gzipWriter) WriteHeader(status int) {
	if status < 200 {
		w.ResponseWriter.WriteHeader(status)
		return
	}
	h := w.Header()
	if !w.decided {
		w.decided = true
		length, err := strconv.Atoi(h.Get("Content-Length"))
		known := err == nil
		switch {
		case status == http.StatusNoContent, status == http.StatusNotModified, h.Get("Content-Encoding") != "":
		case strings.Contains(h.Get("Content-Type"), "stream="), known && length < minCompressed:
		default:
			h.Set("Content-Encoding", "gzip")
			h.Del("Content-Length")
			w.z = w.pool.Get().(*gzip.Writer)
			w.z.Reset(w.ResponseWriter)
		}
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *gzipWriter) Write(p []byte) (int, error) {
	if !w.decided {
		w.WriteHeader(http.StatusOK)
	}
	if w.z == nil {
		return w.ResponseWriter.Write(p)
	}
	return w.z.Write(p)
}

// FlushError flushes compressed bytes, too; http.ResponseController calls it.
func (w *gzipWriter) FlushError() error {
	if w.z != nil {
		if err := w.z.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *gzipWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// close writes the end of a compressed answer and returns the compressor to the pool.
func (w *gzipWriter) close() {
	if w.z != nil {
		_ = w.z.Close() // an error means that the client has left
		w.z.Reset(nil)
		w.pool.Put(w.z)
	}
}
