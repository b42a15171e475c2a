package rest

import "net/http"

// SecurityHeaders sets on every answer the headers that keep browsers and caches from using an API in a way
// that nobody wants: no cache keeps an answer (one of them has a private key), no page shows it in a frame or
// runs it, and a browser never uses the server without TLS. A handler may set other values.
func SecurityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'; sandbox")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Strict-Transport-Security", "max-age=31536000")
		h.Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}
