package rest

import (
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// compressible is the size from which compressing an answer of known length is
// worth it.
const compressible = 1400

// Compress answers with gzip when the client takes it. It belongs inside of
// Observe. Watches and short answers go out as they are.
func Compress(next http.Handler) http.Handler {
	// The fastest level: on the way between two processes of a region, time is
	// worth more than bytes.
	pool := &sync.Pool{New: func() any {
		z, _ := gzip.NewWriterLevel(nil, gzip.BestSpeed) // the level is one that exists
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
		// Not deferred: an answer that is cut by a panic must not end well.
		z.close()
	})
}

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
	z       *gzip.Writer // nil: it is not
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
		case strings.Contains(h.Get("Content-Type"), "stream="), known && length < compressible:
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

// FlushError is for http.ResponseController.
func (w *gzipWriter) FlushError() error {
	if w.z != nil {
		if err := w.z.Flush(); err != nil {
			return err
		}
	}
	return http.NewResponseController(w.ResponseWriter).Flush()
}

func (w *gzipWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *gzipWriter) close() {
	if w.z != nil {
		_ = w.z.Close() // a client that is gone misses nothing
		w.z.Reset(nil)
		w.pool.Put(w.z)
	}
}
