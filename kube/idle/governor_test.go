package idle

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeProcess uses a share of one processor and records what it is set up for.
type fakeProcess struct {
	mu    sync.Mutex
	share float64
	last  usage
	modes []mode
}

func (p *fakeProcess) used() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	p.last = usage{now, p.last.used + time.Duration(p.share*float64(now.Sub(p.last.at)))}
	return p.last.used
}

// use changes the share from now on.
func (p *fakeProcess) use(share float64) {
	p.used()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.share = share
}

func (p *fakeProcess) setUp(m mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.modes = append(p.modes, m)
}

func (p *fakeProcess) wasSetUp() []mode {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.modes)
}

// world is a governor that runs for a fake process, and a server whose requests end when they are told to.
type world struct {
	t       *testing.T
	process *fakeProcess
	server  http.Handler
	stop    func()
	end     chan struct{}
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, process: &fakeProcess{last: usage{at: time.Now()}}, end: make(chan struct{})}
	g := newGovernor(NewClock(), w.process, slog.New(slog.DiscardHandler))
	w.server = g.Count(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-w.end }),
		func(r *http.Request) bool { return r.URL.Path == "/watch" })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { g.Run(ctx); close(done) }()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

// begin lets n requests begin, which are in progress when it returns.
func (w *world) begin(n int, path string) {
	for range n {
		go w.server.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	synctest.Wait()
}

// endAll ends n requests.
func (w *world) endAll(n int) {
	for range n {
		w.end <- struct{}{}
	}
	synctest.Wait()
}

func (w *world) after(d time.Duration, want ...mode) {
	w.t.Helper()
	<-time.After(d) // in the bubble
	synctest.Wait()
	if got := w.process.wasSetUp(); !slices.Equal(got, want) {
		w.t.Fatalf("the process was set up for %v, want %v", got, want)
	}
}

func TestAGovernorFollowsTheWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.process.use(0.5)
		w.after(time.Minute)
		w.process.use(0.02)
		w.after(25*time.Second, idle)
		w.after(time.Hour, idle)
		w.process.use(0.5)
		w.after(2*time.Second, idle, busy)
		w.process.use(0.02)
		w.after(25*time.Second, idle, busy, idle)
		w.stop()
		w.after(0, idle, busy, idle, busy)
	})
}

func TestAGovernorMakesAPlaneBusyForACrowd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.after(11*time.Second, idle)
		w.begin(5, "/watch")
		w.begin(2, "/list")
		w.endAll(7)
		w.begin(2, "/list")
		w.after(time.Second, idle)
		w.begin(1, "/list")
		w.after(0, idle, busy) // at once, while they are in progress
		w.begin(50, "/list")
		w.endAll(53)
		w.after(20*time.Second, idle, busy, idle)
		w.begin(2, "/list") // what is left of the requests before does not count
		w.after(0, idle, busy, idle)
		w.begin(1, "/list")
		w.after(0, idle, busy, idle, busy)
		w.endAll(3)
	})
}

func TestAProcessHasOneProcessorWhileIdle(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	t.Setenv("GOMAXPROCS", "")
	p := &thisProcess{}
	began := p.used()
	p.setUp(idle)
	if n := runtime.GOMAXPROCS(0); n != 1 {
		t.Errorf("an idle process has %d processors", n)
	}
	p.setUp(busy)
	if n := runtime.GOMAXPROCS(0); n != min(runtime.NumCPU(), maxProcessors) && n != before {
		t.Errorf("a busy process has %d processors of %d", n, runtime.NumCPU())
	}
	if used := p.used(); used < began || used == 0 {
		t.Errorf("the process has used %v, before %v", used, began)
	}
	t.Setenv("GOMAXPROCS", "3")
	runtime.GOMAXPROCS(3)
	for _, m := range []mode{idle, busy} {
		if p.setUp(m); runtime.GOMAXPROCS(0) != 3 {
			t.Errorf("%s: %d processors, but the environment says 3", m, runtime.GOMAXPROCS(0))
		}
	}
}

func BenchmarkChange(b *testing.B) {
	p := &thisProcess{}
	defer p.setUp(busy)
	for b.Loop() {
		p.setUp(idle)
		p.setUp(busy)
	}
}
