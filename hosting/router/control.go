package router

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Control is hosting's side of the control socket. Hosting sets all routes whenever
// one changes, and reads which names have connections.
//
// HTTP on the socket:
//
//	GET /routes     a stream of lines, each the whole table {"revision","routes"}; the
//	                first when hosting has set one, an empty line every few seconds
//	POST /wake      {"server_name"} -> 200 {"backend"} when the plane serves there; 503 {"error"}
//	                when hosting cannot wake the plane; 404 {"error"} for a name without a route
//	POST /activity  a stream of lines {"revision","names":{NAME:{"open","idle_ms"}}}:
//	                the revision that the router uses, and the names with connections;
//	                the stream ends with the router
type Control struct {
	wake func(ctx context.Context, serverName string) (backend string, err error)
	idle func(serverName string) // see OnIdle

	mu              sync.Mutex
	table           table
	isSet           bool
	changed         chan struct{} // closed and replaced when the table changes
	known           map[string]use
	activityStreams int   // number of streams of activity so far; the last one is the present router's
	routerRevision  int64 // the revision that the router uses; 0 when no router is connected
}

// use counts the open connections of a server name.
type use struct {
	open int
	last time.Time // the end of the last connection, or a time before which nothing is known
}

// activityLine is a line of POST /activity.
type activityLine struct {
	Revision int64               `json:"revision"`
	Names    map[string]nameLine `json:"names"`
}

type nameLine struct {
	Open   int   `json:"open"`
	IdleMS int64 `json:"idle_ms"` // since the last connection ended; 0 while one is open
}

type wakeRequest struct {
	ServerName string `json:"server_name"`
}

type wakeAnswer struct {
	Backend string `json:"backend,omitempty"`
	Error   string `json:"error,omitempty"`
}

// NewControl returns a Control without routes. It calls wake for a connection to a
// backend that sleeps or does not answer; wake returns when the backend serves.
// Several goroutines call wake, also for one name.
func NewControl(wake func(ctx context.Context, serverName string) (backend string, err error)) *Control {
	return &Control{wake: wake, idle: func(string) {}, changed: make(chan struct{}), known: map[string]use{}}
}

// OnIdle sets the function that Control calls when the last connection of a name has
// ended. The function must not block. OnIdle is called before Serve.
func (c *Control) OnIdle(f func(serverName string)) { c.idle = f }

// Set replaces all routes. Until the first Set the router uses the table that it has on
// disk, so the first table must be complete: the router refuses names that are not in
// the table. Open connections stay.
func (c *Control) Set(routes []Route) {
	routes = normalizeRoutes(routes)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isSet && slices.Equal(c.table.Routes, routes) {
		return
	}
	now := time.Now()
	known := make(map[string]use, len(routes))
	for _, r := range routes {
		u, ok := c.known[r.ServerName]
		if !ok {
			u.last = now
		}
		known[r.ServerName] = u
	}
	c.known = known
	// The revision differs from every revision of an earlier process, which the router may have.
	c.table = table{Revision: max(now.UnixNano(), c.table.Revision+1), Routes: routes}
	c.isSet = true
	close(c.changed)
	c.changed = make(chan struct{})
}

// Activity returns the number of open connections of a name, with connections that wait
// for a wake, and the time when the last one ended. That time is never before the first
// Set with the name, because earlier connections are unknown.
func (c *Control) Activity(serverName string) (open int, last time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.known[strings.ToLower(serverName)]
	return u.open, u.last
}

// RouterIsCurrent reports whether the router uses the table of the last Set, and Activity's
// values are newer than that. Without a connected router it is true: a router that
// starts later gets the last table first, and calls wake for sleeping routes.
func (c *Control) RouterIsCurrent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.routerRevision == 0 || c.routerRevision == c.table.Revision
}

// Serve answers the router on l until ctx ends. It owns l.
func (c *Control) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /routes", c.serveRoutes)
	mux.HandleFunc("POST /wake", c.serveWake)
	mux.HandleFunc("POST /activity", c.serveActivity)
	server := &http.Server{Handler: mux, BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: helloTimeout}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	err := server.Serve(l)
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("serving the router: %w", err)
}

func (c *Control) serveRoutes(w http.ResponseWriter, r *http.Request) {
	flush := http.NewResponseController(w)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := json.NewEncoder(w)
	_ = flush.Flush() // the headers show that hosting runs
	var sent int64
	for {
		c.mu.Lock()
		t, changed := c.table, c.changed
		c.mu.Unlock()
		var err error
		if t.Revision != sent {
			sent, err = t.Revision, lines.Encode(t)
		} else {
			_, err = io.WriteString(w, "\n")
		}
		if err == nil {
			err = flush.Flush()
		}
		if err != nil {
			return // the router has ended
		}
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		case <-beat.C:
		}
	}
}

func (c *Control) serveWake(w http.ResponseWriter, r *http.Request) {
	var asked wakeRequest
	if err := json.NewDecoder(io.LimitReader(r.Body, 4096)).Decode(&asked); err != nil {
		writeAnswer(w, http.StatusBadRequest, wakeAnswer{Error: "not JSON: " + err.Error()})
		return
	}
	if !c.awaitRoutes(r.Context()) {
		return
	}
	c.mu.Lock()
	_, known := c.known[asked.ServerName]
	c.mu.Unlock()
	if !known {
		writeAnswer(w, http.StatusNotFound, wakeAnswer{Error: "no such route"})
		return
	}
	backend, err := c.wake(r.Context(), asked.ServerName)
	if err != nil {
		writeAnswer(w, http.StatusServiceUnavailable, wakeAnswer{Error: err.Error()})
		return
	}
	writeAnswer(w, http.StatusOK, wakeAnswer{Backend: backend})
}

func writeAnswer(w http.ResponseWriter, status int, a wakeAnswer) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(a) // fails only when the router has ended
}

// awaitRoutes returns after the first Set.
func (c *Control) awaitRoutes(ctx context.Context) bool {
	for {
		c.mu.Lock()
		isSet, changed := c.isSet, c.changed
		c.mu.Unlock()
		if isSet {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

func (c *Control) serveActivity(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	c.activityStreams++
	mine := c.activityStreams
	c.mu.Unlock()
	defer func() { c.applyReport(mine, activityLine{}, time.Now()) }() // its connections ended with it
	for lines := json.NewDecoder(r.Body); ; {
		var line activityLine
		if lines.Decode(&line) != nil {
			return // the end of the router, or of this server
		}
		c.applyReport(mine, line, time.Now())
	}
}

// applyReport applies a line of an activity stream, unless a later stream has
// begun. A line is complete: a name that is missing has no connection.
func (c *Control) applyReport(stream int, line activityLine, now time.Time) {
	var idle []string
	c.mu.Lock()
	if c.activityStreams != stream {
		c.mu.Unlock()
		return
	}
	c.routerRevision = line.Revision
	for name, u := range c.known {
		reported, ok := line.Names[name]
		switch {
		case ok:
			ended := now.Add(-time.Duration(reported.IdleMS) * time.Millisecond)
			if ended.After(u.last) {
				u.last = ended
			}
		case u.open > 0:
			u.last = now
		}
		if u.open > 0 && reported.Open == 0 {
			idle = append(idle, name)
		}
		u.open = reported.Open
		c.known[name] = u
	}
	c.mu.Unlock()
	for _, name := range idle {
		c.idle(name)
	}
}
