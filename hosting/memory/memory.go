// Package memory is a runtime of control planes in the memory of a test: each
// plane is a TLS server with its own authority that stores ConfigMaps, and starts
// within milliseconds. It passes the same suite as package process.
//
// Tests of hosting use it where the subject is hosting and not Kubernetes.
package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"atoll.dev/hosting/controlplane"
)

// Machine is where the planes run. It outlives runtimes, as a machine's processes
// do. Use NewMachine.
type Machine struct {
	mu     sync.Mutex
	wake   *sync.Cond // signals each change that the worker may wait for
	planes map[controlplane.ID]*plane
	queue  []controlplane.ID // planes whose goal has changed
	open   bool
	paused bool
}

// NewMachine returns a machine without planes.
func NewMachine() *Machine {
	m := &Machine{planes: map[controlplane.ID]*plane{}}
	m.wake = sync.NewCond(&m.mu)
	return m
}

// Pause holds all orders back until Resume, as a busy machine does: they are
// accepted, and nothing happens.
func (m *Machine) Pause() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = true
}

// Resume ends Pause.
func (m *Machine) Resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.paused = false
	m.wake.Broadcast()
}

// Fail makes every start of a plane fail with f, until it is called with nil.
func (m *Machine) Fail(id controlplane.ID, f *controlplane.Failure) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plane(id).fault = f
	m.enqueue(id)
}

// IsDiscarding reports whether the last order for a plane was to discard it, and it
// was not carried out yet.
func (m *Machine) IsDiscarding(id controlplane.ID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.planes[id]
	return p != nil && p.goal == discard
}

// Close stops all planes.
func (m *Machine) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, p := range m.planes {
		p.stop()
	}
}

// plane returns a plane, and makes it when it is unknown. The caller holds mu.
func (m *Machine) plane(id controlplane.ID) *plane {
	p := m.planes[id]
	if p == nil {
		p = &plane{seen: controlplane.Observation{State: controlplane.Down}}
		m.planes[id] = p
	}
	return p
}

// enqueue has the worker look at a plane. The caller holds mu.
func (m *Machine) enqueue(id controlplane.ID) {
	m.queue = append(m.queue, id)
	m.wake.Broadcast()
}

// Runtime runs planes on a Machine. Use New.
type Runtime struct {
	machine  *Machine
	releases map[controlplane.Version]bool
	changed  func(controlplane.ID)
	done     chan struct{} // closed when the worker has ended
}

// New returns a runtime for planes of these releases.
func New(m *Machine, releases ...controlplane.Version) *Runtime {
	r := &Runtime{machine: m, releases: map[controlplane.Version]bool{}, done: make(chan struct{})}
	for _, v := range releases {
		r.releases[v] = true
	}
	return r
}

// errOpen is the error of a second runtime on one machine.
var errOpen = errors.New("another runtime is open on this machine")

// Open implements hosting.Inventory.
func (r *Runtime) Open(ctx context.Context, changed func(controlplane.ID)) (close func(), err error) {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		return nil, errOpen
	}
	m.open, m.queue, r.changed = true, nil, changed
	stop := context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.wake.Broadcast()
	})
	go r.work(ctx)
	return func() {
		<-r.done
		stop()
		m.mu.Lock()
		defer m.mu.Unlock()
		m.open = false
	}, nil
}

// List implements hosting.Inventory.
func (r *Runtime) List() (ids []controlplane.ID) {
	r.machine.mu.Lock()
	defer r.machine.mu.Unlock()
	for id, p := range r.machine.planes {
		if p.seen.LastStart.Release != "" {
			ids = append(ids, id)
		}
	}
	return ids
}

// Ensure implements hosting.Runtime.
func (r *Runtime) Ensure(id controlplane.ID, spec controlplane.Spec) error {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.plane(id)
	if p.seen.Running && p.seen.LastStart.Release != spec.Release && !r.releases[spec.Release] {
		return missing(spec.Release)
	}
	p.applySize(spec, time.Now())
	if p.goal != run || !p.spec.Equal(spec) {
		p.goal, p.spec = run, spec
		m.enqueue(id)
	}
	return nil
}

func missing(v controlplane.Version) *controlplane.Failure {
	return &controlplane.Failure{Reason: controlplane.BinaryMissing, Message: fmt.Sprintf("no release %s", v)}
}

// Sleep implements hosting.Runtime.
func (r *Runtime) Sleep(id controlplane.ID) error {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.plane(id); p.goal != sleep {
		p.goal = sleep
		m.enqueue(id)
	}
	return nil
}

// Discard implements hosting.Runtime.
func (r *Runtime) Discard(id controlplane.ID) (done bool, err error) {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.planes[id]
	if p == nil || p.goal == discard && p.isStopped {
		delete(m.planes, id)
		return true, nil
	}
	if p.goal != discard {
		p.goal, p.isStopped = discard, false
	}
	m.enqueue(id)
	return false, nil
}

// Observe implements hosting.Runtime.
func (r *Runtime) Observe(id controlplane.ID) (controlplane.Observation, error) {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.planes[id]
	if p == nil {
		return controlplane.Observation{State: controlplane.Down}, nil
	}
	o := p.seen
	o.HasData = p.authority != nil
	return o, nil
}

// Client implements hosting.Access.
func (r *Runtime) Client(id controlplane.ID) (controlplane.Admin, error) {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.planes[id]
	if p == nil || p.seen.State != controlplane.Ready {
		return controlplane.Admin{}, fmt.Errorf("plane %s: %w", id, controlplane.ErrNotServing)
	}
	return p.admin()
}

// Sign implements hosting.Access.
func (r *Runtime) Sign(id controlplane.ID, request controlplane.CertificateRequest) (controlplane.Certificate, error) {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.planes[id]
	if p == nil || p.authority == nil {
		return controlplane.Certificate{}, fmt.Errorf("plane %s has no authority", id)
	}
	certificate, err := p.authority.signClient(request)
	return controlplane.Certificate{PEM: certificate, CAPEM: p.authority.pem}, err
}

// EncryptedBy implements hosting.Access.
func (r *Runtime) EncryptedBy(id controlplane.ID) (rotation string, err error) {
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.planes[id]; p != nil && p.seen.State == controlplane.Ready {
		return p.seen.LastStart.Rotations.Encryption.ID, nil
	}
	return "", nil
}

// work carries orders out until ctx ends.
func (r *Runtime) work(ctx context.Context) {
	defer close(r.done)
	m := r.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		for ctx.Err() == nil && (m.paused || len(m.queue) == 0) {
			m.wake.Wait()
		}
		if ctx.Err() != nil {
			return
		}
		id := m.queue[0]
		m.queue = m.queue[1:]
		if p := m.planes[id]; p != nil {
			r.pursue(id, p)
		}
	}
}

// pursue brings a plane to its goal. The caller holds the machine's mu.
func (r *Runtime) pursue(id controlplane.ID, p *plane) {
	if p.server != nil && (p.goal != run || !p.runs.Equal(p.spec)) {
		r.show(id, func() { p.seen.State, p.seen.ReadySince = controlplane.Stopping, time.Time{} })
		p.stop()
		p.seen.Running = false
	}
	switch {
	case p.goal != run:
		r.show(id, func() {
			p.isStopped = true
			p.seen = controlplane.Observation{
				State: controlplane.Down, LastStart: p.seen.LastStart, Backend: p.seen.Backend,
				Size: p.seen.Size,
			}
		})
	case p.server == nil:
		r.start(id, p)
	}
}

// start starts a plane's server, or shows why it cannot. The caller holds the
// machine's mu.
func (r *Runtime) start(id controlplane.ID, p *plane) {
	failure := p.fault
	if failure == nil && !r.releases[p.spec.Release] {
		failure = missing(p.spec.Release)
	}
	if failure == nil {
		r.show(id, func() { p.seen.State, p.seen.Running = controlplane.Starting, true })
		if err := p.start(); err != nil {
			failure = &controlplane.Failure{Reason: controlplane.PlaneFailed, Message: err.Error()}
		}
	}
	if failure != nil {
		shown := *failure
		shown.Count, shown.Release = 1, p.spec.Release
		if p.seen.Failure != nil && p.seen.Failure.Release == shown.Release {
			shown.Count += p.seen.Failure.Count
		}
		r.show(id, func() {
			p.seen.State, p.seen.Running, p.seen.Failure = controlplane.Failing, false, &shown
		})
		time.AfterFunc(retry, func() {
			r.machine.mu.Lock()
			defer r.machine.mu.Unlock()
			r.machine.enqueue(id)
		})
		return
	}
	r.show(id, func() {
		p.seen.State, p.seen.ReadySince, p.seen.Failure = controlplane.Ready, time.Now(), nil
		p.seen.LastStart.WasReady, p.seen.LastStart.Served = true, p.spec.Release
	})
}

// retry is the back-off of a plane that fails.
const retry = 5 * time.Millisecond

// show changes an observation and notifies the runtime's user, who may call the
// runtime. The caller holds the machine's mu, and gets it back.
func (r *Runtime) show(id controlplane.ID, change func()) {
	change()
	r.machine.mu.Unlock()
	r.changed(id)
	r.machine.mu.Lock()
}
