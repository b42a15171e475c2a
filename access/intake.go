package access

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"atoll.dev/internal/rest"
)

// BodyLimits bounds the memory of request bodies that a Router holds at the same time. A body
// counts from its first byte until its request is answered, by the size of its buffer. So a sender
// who declares 4 MiB and sends 4 KiB counts with 4 KiB.
type BodyLimits struct {
	Total     int64 // bytes of all bodies; default 256 MiB
	PerSource int64 // bytes of the bodies of one source; default 64 MiB

	// Unproven is the part of both, in percent, that bodies may take whose sender is not proven yet:
	// a signature without x-amz-content-sha256 is verified after the body was read. Default 25.
	Unproven int64
}

func (l BodyLimits) withDefaults() BodyLimits {
	if l.Total <= 0 {
		l.Total = 256 << 20
	}
	if l.PerSource <= 0 {
		l.PerSource = 64 << 20
	}
	if l.Unproven <= 0 {
		l.Unproven = 25
	}
	return l
}

// refusedBodyTimeout is how long the server waits for the rest of a refused request's body before
// it closes the connection.
const refusedBodyTimeout = 2 * time.Second

// unprovenBodyTimeout is how long the server waits for a body whose sender is not proven before
// the whole body has arrived. A sender who declares the hash of the body has the time of the server.
const unprovenBodyTimeout = 10 * time.Second

// firstChunk is the first size of the buffer of a body.
const firstChunk = 4 << 10

// bodyMemory counts the memory of bodies. Several goroutines may use it.
type bodyMemory struct {
	limits BodyLimits

	mu      sync.Mutex
	total   usage
	sources map[netip.Prefix]usage
	peak    int64 // the largest total so far
}

// usage is the memory of bodies in bytes. all includes unproven.
type usage struct{ all, unproven int64 }

func newBodyMemory(limits BodyLimits) *bodyMemory {
	return &bodyMemory{limits: limits.withDefaults(), sources: map[netip.Prefix]usage{}}
}

// held returns the bytes that bodies hold now, and the most that they ever held.
func (m *bodyMemory) held() (now, peak int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.total.all, m.peak
}

// bodyLease is the memory of one request's body. One goroutine uses it.
type bodyLease struct {
	memory     *bodyMemory
	source     netip.Prefix
	held       usage
	connection *http.ResponseController
}

type bodyLeaseKey struct{}

// lease returns the request with a lease, by which readBody counts. The caller releases it after
// the answer.
func (m *bodyMemory) lease(w http.ResponseWriter, r *http.Request) (*http.Request, *bodyLease) {
	l := &bodyLease{memory: m, source: rest.SourceOf(r.RemoteAddr), connection: http.NewResponseController(w)}
	return r.WithContext(context.WithValue(r.Context(), bodyLeaseKey{}, l)), l
}

// grow counts n more bytes. Its errors are *rest.Error; then nothing is counted.
func (l *bodyLease) grow(n int64, sender proofState) error {
	if l == nil {
		return nil
	}
	add := usage{all: n}
	if sender == senderUnproven {
		add.unproven = n
	}
	m := l.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	of := m.sources[l.source]
	if !m.limits.admits(of, add, m.limits.PerSource) {
		return refuse(TooManyBodies, "the requests from this address have %d bytes of bodies in flight, and may have %d; "+
			"send fewer at the same time", of.all, m.limits.PerSource)
	}
	if !m.limits.admits(m.total, add, m.limits.Total) {
		return refuse(Overloaded, "the region holds as many request bodies as it can; try again")
	}
	m.sources[l.source], m.total = of.plus(add), m.total.plus(add)
	l.held = l.held.plus(add)
	m.peak = max(m.peak, m.total.all)
	return nil
}

func (u usage) plus(v usage) usage { return usage{u.all + v.all, u.unproven + v.unproven} }

// admits reports whether used has room for add within limit.
func (l BodyLimits) admits(used, add usage, limit int64) bool {
	next := used.plus(add)
	return next.all <= limit && (add.unproven == 0 || next.unproven <= limit*l.Unproven/100)
}

// shorten makes the server wait for the rest of the body for limit at most.
func (l *bodyLease) shorten(limit time.Duration) {
	if l != nil {
		_ = l.connection.SetReadDeadline(time.Now().Add(limit)) // a test's recorder has no deadlines
	}
}

// refuseBody makes the server wait only shortly for the body of a request that it does not read,
// and close the connection after the answer. HTTP/2 has a stream for the body, and ends that.
func refuseBody(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength == 0 {
		return
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(refusedBodyTimeout))
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
}

// keepConnection keeps the connection of a proven sender until the request is answered. Its error
// is a *rest.Error.
func keepConnection(r *http.Request) error {
	if err := rest.KeepConnection(r.Context()); err != nil {
		return refuse(Overloaded, "the region has as many connections as it can hold; try again").Because(err)
	}
	return nil
}

// prove counts the body as that of a proven sender.
func (l *bodyLease) prove() {
	if l == nil || l.held.unproven == 0 {
		return
	}
	l.subtract(usage{unproven: l.held.unproven})
}

// release frees the memory of the body.
func (l *bodyLease) release() {
	if l.held != (usage{}) {
		l.subtract(l.held)
	}
}

func (l *bodyLease) subtract(less usage) {
	m, minus := l.memory, usage{-less.all, -less.unproven}
	m.mu.Lock()
	defer m.mu.Unlock()
	l.held, m.total = l.held.plus(minus), m.total.plus(minus)
	if of := m.sources[l.source].plus(minus); of == (usage{}) {
		delete(m.sources, l.source)
	} else {
		m.sources[l.source] = of
	}
}

// proofState is whether the sender of a request is proven.
type proofState uint8

const (
	senderUnproven proofState = iota
	senderProven
)

// readBody reads the whole body of a request, MaxBody bytes at most, and counts its memory by the
// Router's BodyLimits. Its errors are *rest.Error.
func readBody(r *http.Request, sender proofState) ([]byte, error) {
	lease, _ := r.Context().Value(bodyLeaseKey{}).(*bodyLease)
	if sender == senderUnproven {
		lease.shorten(unprovenBodyTimeout)
	}
	tooLarge := refuse(BodyTooLarge, "the request body is larger than %d bytes; send less", MaxBody)
	if r.ContentLength > MaxBody {
		rest.Drain(r) // holds no memory; a client that still sends could not read the answer
		return nil, tooLarge
	}
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return nil, nil
	}
	var body []byte
	for {
		if len(body) == cap(body) {
			larger := min(max(2*cap(body), firstChunk), MaxBody+1)
			if err := lease.grow(int64(larger-cap(body)), sender); err != nil {
				return nil, err
			}
			body = append(make([]byte, 0, larger), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) > MaxBody:
			rest.Drain(r)
			return nil, tooLarge
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			return nil, refuse(BodyIncomplete, "the request body ended early, or came too slowly; send it whole").Because(err)
		}
	}
}
