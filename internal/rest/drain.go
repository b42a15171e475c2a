package rest

import (
	"context"
	"net/http"
	"time"
)

// drain describes how one run of a Server ends:
//
//	begun ── Drain ──> over ── Grace ──> the requests that still run are cut
//
// Between begun and over the server accepts connections and executes requests as before, because load balancers and
// clients still send to it. Each answer moves its client away: HTTP/1.1 answers with Connection: close, and an
// HTTP/2 connection gets a GOAWAY, after which the client opens a connection elsewhere for its next request. Without
// that, the requests of kept connections would meet a closed connection, and a client cannot know whether
// a change was executed.
type drain struct {
	begun context.Context // ends when the server begins to stop
	over  context.Context // ends when the listener closes; watches end with it
	end   context.CancelFunc
}

func newDrain(begun context.Context) *drain {
	d := &drain{begun: begun}
	d.over, d.end = context.WithCancel(context.WithoutCancel(begun))
	return d
}

// handler returns next; its answers after begun make their clients open another connection.
func (d *drain) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.begun.Err() != nil {
			w.Header().Set("Connection", "close") // net/http sends GOAWAY for it on HTTP/2
		}
		next.ServeHTTP(w, r)
	})
}

// wait returns after the time limit, or earlier when the server has ended, with its error, or a part has failed.
func (d *drain) wait(limit time.Duration, served <-chan error, failed <-chan struct{}) error {
	if limit <= 0 {
		return nil
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-served:
		return err
	case <-failed:
		return nil
	case <-timer.C:
		return nil
	}
}
