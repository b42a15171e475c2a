package hosting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/hosting/loop"
	"atoll.dev/plane"
)

// state is where a plane's process is.
type state string

const (
	down     state = "down"     // there is none, and none is wanted
	starting state = "starting" // it runs and is not ready yet
	ready    state = "ready"
	unready  state = "unready" // it was ready and is not now
	stopping state = "stopping"
	failing  state = "failing" // it does not run, and is tried again
)

const (
	startLimit  = 3 * time.Minute // for a start, on a machine that starts many
	stopLimit   = 10 * time.Second
	slotLimit   = 15 * time.Second // how long a start may keep others waiting
	goodAfter   = time.Minute      // a plane that was ready for so long begins its back-off anew
	filesLimit  = 16384
	memoryLimit = 1 << 30 // soft: what Go's collector aims at
)

// pace is how often a plane that is ready is asked how it is.
type pace struct {
	every time.Duration
	limit time.Duration // for an answer
	hang  time.Duration // how long a plane may not be well before it is restarted
}

// usualPace is light: a plane that ends is noticed without being asked.
func usualPace() pace {
	return pace{every: 15 * time.Second, limit: 5 * time.Second, hang: 3 * time.Minute}
}

// target is what a plane's runner is told.
type target struct {
	Run     bool
	Discard bool         // the data will be deleted: no need to stop politely
	Release string       // version that Binary is
	Config  plane.Config // without Address, which is the runner's
}

func (t target) equal(u target) bool {
	return t.Run == u.Run && t.Discard == u.Discard && t.Release == u.Release && t.Config.Binary == u.Config.Binary &&
		slices.Equal(t.Config.ExternalHosts, u.Config.ExternalHosts)
}

// view is what a runner says about its plane.
type view struct {
	State   state
	Record  record // of the last start
	PID     int
	Address string
	Config  plane.Config
	Ready   time.Time // since when it serves; zero when it does not
	Failure *failure  // the last one; nil when all has been well since
	// Found: the process was there before this hosting, which has not heard from
	// it yet; what an earlier one said stands.
	Found bool
	// Discarded: there is no process, and none will be started.
	Discarded bool
	Unwell    []string // parts of the API server that are not well; all of it when it does not answer
}

// runner owns a plane's process: it starts, adopts, watches, restarts and
// stops it as its target says. Nobody else does. It leaves the process alone
// when its context ends.
type runner struct {
	key     loop.Key
	dir     string
	ports   *ports
	starts  chan struct{} // a start of any plane holds one of its places
	pace    pace
	log     *slog.Logger
	changed func(view)          // told after each change of the view, of any goroutine
	took    func(time.Duration) // told how long a start took

	mu   sync.Mutex
	goal target
	seen view
	poke chan struct{}
	done chan struct{}

	// Of the goroutine that runs.
	process  *plane.Process
	record   record
	failures int
	move     bool // the port is another's
	starting bool // holds a place of starts
}

// newRunner reads what an earlier one left, and does nothing before run.
func newRunner(key loop.Key, dir string, p *ports, log *slog.Logger) (*runner, error) {
	rec, err := readRecord(dir)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", key, err)
	}
	if rec.Port != 0 && !p.claim(key, rec.Port) {
		rec.Port = 0
	}
	seen := view{State: down, Record: rec}
	if pid, ok := plane.Running(dir); ok || plane.Alive(dir) {
		seen.State, seen.PID, seen.Found = starting, max(pid, 1), true
	}
	return &runner{
		key: key, dir: dir, ports: p, log: log.With("plane", key.String()), changed: func(view) {}, took: func(
			time.Duration) {
		},
		starts: make(chan struct{}, 1), pace: usualPace(), seen: seen, record: rec, poke: make(chan struct{},
			1), done: make(chan struct{}),
	}, nil
}

// set tells the runner its target.
func (r *runner) set(t target) {
	r.mu.Lock()
	same := r.goal.equal(t)
	r.goal = t
	r.mu.Unlock()
	if !same {
		select {
		case r.poke <- struct{}{}:
		default:
		}
	}
}

func (r *runner) target() target {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.goal
}

// begin is target for whoever does as it says: a plane that is to stop is no
// longer said to serve, and nobody who tells the runner to run it after all
// finds it ready before it is.
func (r *runner) begin() target {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.goal.Run && r.seen.State == ready {
		r.seen.State = stopping
	}
	return r.goal
}

// view returns the latest.
func (r *runner) view() view {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

func (r *runner) show(change func(*view)) {
	r.mu.Lock()
	change(&r.seen)
	r.seen.Record = r.record
	v := r.seen
	r.mu.Unlock()
	r.changed(v)
}

// run works until ctx ends.
func (r *runner) run(ctx context.Context) {
	defer close(r.done)
	defer func() {
		if r.process != nil {
			r.process.Leave()
		}
	}()
	for ctx.Err() == nil {
		t := r.begin()
		var err error
		if t.Run {
			err = r.serve(ctx, t)
		} else if err = r.halt(ctx, t.Discard); err == nil {
			r.show(func(v *view) { *v = view{State: down, Discarded: t.Discard} })
			r.wait(ctx, 0)
		}
		if err != nil && ctx.Err() == nil {
			r.wait(ctx, r.fail(err))
		}
	}
}

// wait returns at a new target, at the end, or after d when that is not 0.
func (r *runner) wait(ctx context.Context, d time.Duration) {
	var timer <-chan time.Time
	if d > 0 {
		timer = time.After(d)
	}
	select {
	case <-ctx.Done():
	case <-r.poke:
	case <-timer:
	}
}

// fail shows a failure and says how long to wait; never 0.
func (r *runner) fail(err error) time.Duration {
	was := r.view()
	if !was.Ready.IsZero() && time.Since(was.Ready) > goodAfter {
		r.failures = 0
	}
	r.failures++
	f := &failure{Count: r.failures}
	f.Reason, f.Message = classify(err)
	r.move = r.move || f.Reason == failedPort
	r.log.Warn("a plane failed and is started again", "reason", f.Reason, "failures", f.Count, "error", err)
	r.show(func(v *view) { *v = view{State: failing, Failure: f} })
	return max(f.backoff(), time.Millisecond)
}

// serve has the plane run as t says, until there is another target (nil) or
// something fails.
func (r *runner) serve(ctx context.Context, t target) error {
	if err := r.find(); err != nil {
		return err
	}
	if r.process != nil && (r.record.Release != t.Release || !slices.Equal(r.record.Hosts, t.Config.ExternalHosts)) {
		if err := r.halt(ctx, false); err != nil {
			return err
		}
	}
	defer r.leaveStart()
	if r.process == nil {
		if !r.awaitStart(ctx, t) {
			return nil
		}
		if err := r.launch(t); err != nil {
			return err
		}
	}
	return r.attend(ctx, t)
}

// awaitStart waits for its turn: planes that start all at once only hold each
// other up. false when the target changed before.
func (r *runner) awaitStart(ctx context.Context, t target) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-r.poke:
			if !r.target().equal(t) {
				return false
			}
		case r.starts <- struct{}{}:
			r.starting = true
			return true
		}
	}
}

func (r *runner) leaveStart() {
	if r.starting {
		r.starting = false
		<-r.starts
	}
}

// config is the plane's, as it runs or is to run.
func (r *runner) config(t target) plane.Config {
	c := t.Config
	c.Dir, c.Address, c.ServiceCIDR = r.dir, address(r.record.Port), r.record.ServiceCIDR
	return c
}

// find adopts a process that runs already.
func (r *runner) find() error {
	if r.process != nil {
		return nil
	}
	p, err := plane.Adopt(r.config(r.target()), plane.Options{LogFile: logPath(r.dir)})
	if p != nil {
		r.log.Info("plane adopted", "pid", p.PID)
	}
	r.process = p
	return err
}

// launch starts a new process.
func (r *runner) launch(t target) error {
	if err := runnable(t.Config.Binary); err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	rec := r.record
	if rec.Port != 0 && !r.move && !free(rec.Port) {
		return unix.EADDRINUSE // shown, and then the plane moves
	}
	if rec.Port == 0 || r.move {
		port, err := r.ports.choose(r.key)
		if err != nil {
			return err
		}
		rec.Port = port
	}
	rec.Release, rec.Hosts = t.Release, t.Config.ExternalHosts
	if rec.ServiceCIDR == "" {
		rec.ServiceCIDR = t.Config.ServiceCIDR
	}
	if err := rec.write(r.dir); err != nil {
		return err
	}
	r.record, r.move = rec, false
	p, err := plane.Start(r.config(t), plane.Options{LogFile: logPath(r.dir), Env: r.environment(),
		MaxFiles: filesLimit})
	if err != nil {
		return err
	}
	r.log.Info("plane started", "pid", p.PID, "release", t.Release, "address", p.Config.Address)
	r.process = p
	return nil
}

// environment is what a plane has besides hosting's own. The mark of a
// region's processes (decision 001) says that the plane is hosting's, and not
// hosting itself.
func (r *runner) environment() []string {
	env := []string{fmt.Sprintf("GOMEMLIMIT=%d", memoryLimit)}
	if mark := os.Getenv("ATOLL_PROCESS"); mark != "" {
		env = append(env, "ATOLL_PROCESS="+mark+"/"+r.key.String())
	}
	return env
}

func runnable(binary string) error {
	info, err := os.Stat(binary)
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s: %w", binary, os.ErrPermission)
	}
	return nil
}

// attend watches the process.
func (r *runner) attend(ctx context.Context, t target) error {
	p := r.process
	begun := time.Now()
	r.show(func(v *view) {
		if v.PID != p.PID {
			*v = view{State: starting, Failure: v.Failure}
		}
		v.PID, v.Address, v.Config = p.PID, p.Config.Address, p.Config
	})
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	up := make(chan error, 1)
	go func() { up <- p.Wait(waiting) }()
	health := make(chan []string, 1)
	probe := time.NewTicker(r.pace.every)
	defer probe.Stop()
	slow := time.After(slotLimit)
	var asking bool
	var unwellSince time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.poke:
			if !r.target().equal(t) {
				return nil
			}
		case <-p.Exited():
			r.process = nil
			return fmt.Errorf("%w: %s", plane.ErrExited, p.Said())
		case err := <-up:
			if err != nil {
				continue // it has ended, or we have
			}
			r.leaveStart()
			if err := r.bear(p, begun); err != nil {
				return err
			}
		case <-slow:
			r.leaveStart()
			if r.view().Found {
				r.show(func(v *view) { v.Found = false })
			}
		case <-probe.C:
			if err := boundLog(logPath(r.dir)); err != nil {
				r.log.Warn("a plane's log could not be cut", "error", err)
			}
			if r.view().Ready.IsZero() {
				if time.Since(begun) < startLimit {
					continue
				}
				return r.kill(fmt.Errorf("%w: it was not ready after %s", errHangs, startLimit))
			}
			if !asking {
				asking = true
				go func() { health <- ask(waiting, p.Config, r.pace.limit) }()
			}
		case unwell := <-health:
			asking = false
			if len(unwell) == 0 {
				unwellSince = time.Time{}
			} else if unwellSince.IsZero() {
				unwellSince = time.Now()
			} else if time.Since(unwellSince) > r.pace.hang {
				return r.kill(fmt.Errorf("%w: not well for %s: %v", errHangs, r.pace.hang, unwell))
			}
			r.judge(unwell)
		}
	}
}

// bear shows a plane that is ready.
func (r *runner) bear(p *plane.Process, begun time.Time) error {
	if !p.Adopted && r.view().Ready.IsZero() {
		r.took(time.Since(begun))
	}
	if !r.record.Born {
		rec := r.record
		rec.Born = true
		if err := rec.write(r.dir); err != nil {
			return err
		}
		r.record = rec
	}
	r.show(func(v *view) {
		if v.Ready.IsZero() {
			v.Ready = time.Now()
		}
		v.State, v.Unwell, v.Failure, v.Found = ready, nil, nil, false
	})
	return nil
}

// ask returns what is not well; everything, when the plane does not answer.
func ask(ctx context.Context, c plane.Config, limit time.Duration) []string {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	unwell, err := c.Health(ctx)
	if err != nil {
		return []string{allParts}
	}
	return unwell
}

// allParts is unwell when the API server does not answer at all.
const allParts = "kube-apiserver"

func (r *runner) judge(unwell []string) {
	if slices.Equal(r.view().Unwell, unwell) {
		return
	}
	r.log.Info("a plane's health changed", "unwell", unwell)
	r.show(func(v *view) {
		v.Unwell, v.State = unwell, ready
		if len(unwell) > 0 {
			v.State = unready
		}
	})
}

func (r *runner) kill(cause error) error {
	err := r.process.Kill()
	r.process = nil
	return errors.Join(cause, err)
}

// halt ends the process, if there is one; it does not let go half-way when
// ctx ends.
func (r *runner) halt(ctx context.Context, atOnce bool) error {
	if err := r.find(); err != nil || r.process == nil {
		return err
	}
	r.show(func(v *view) { v.State, v.Ready, v.Found = stopping, time.Time{}, false })
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	stop := r.process.Stop
	if atOnce {
		stop = func(context.Context) error { return r.process.Kill() }
	}
	if err := stop(ctx); err != nil {
		return err
	}
	r.log.Info("plane stopped", "pid", r.process.PID)
	r.process = nil
	return nil
}
