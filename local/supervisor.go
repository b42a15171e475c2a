package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"
)

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// steadyAfter is how long a process must have run for its next failure to
	// count as its first.
	steadyAfter = 10 * time.Second
	// readyPoll is the pace at which a starting process is asked whether it
	// serves. Only starts are probed; nothing is while it runs.
	readyPoll = 20 * time.Millisecond
)

// supervisor keeps the processes of one home running. Each process has one
// goroutine that owns it; they share only what mu guards.
type supervisor struct {
	home   Home
	homeID string
	log    *slog.Logger
	events *eventLog

	mu   sync.Mutex
	kept map[string]*kept
	wg   sync.WaitGroup
}

// kept is one supervised process.
type kept struct {
	spec   Spec
	ready  chan struct{} // closed when it has been ready once
	cancel context.CancelFunc
	done   chan struct{}
}

// run supervises until ctx is cancelled and leaves all processes running.
// wanted gives the specs at the start and after each signal on reload.
func (s *supervisor) run(ctx context.Context, wanted func() ([]Spec, error), reload <-chan os.Signal) error {
	defer s.wg.Wait()
	rotate := time.NewTicker(time.Minute)
	defer rotate.Stop()
	for ctx.Err() == nil {
		specs, err := wanted()
		if err != nil {
			return err
		}
		begun := time.Now()
		s.reconcile(ctx, specs)
		s.wg.Go(func() {
			if s.await(ctx, specNames(specs)) {
				s.events.done(regionStage, "", time.Since(begun))
			}
		})
		for reloaded := false; !reloaded && ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-reload:
				reloaded = true
			case <-rotate.C:
				if err := s.home.rotateLogs(); err != nil {
					s.log.Warn("log not rotated", "error", err)
				}
			}
		}
	}
	return nil
}

func specNames(specs []Spec) []string {
	names := make([]string, len(specs))
	for i, s := range specs {
		names[i] = s.Name
	}
	return names
}

// reconcile begins to keep what is new in specs and stops what is no longer there.
func (s *supervisor) reconcile(ctx context.Context, specs []Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]bool{}
	for _, spec := range specs {
		names[spec.Name] = true
	}
	found := marked(s.homeID)
	for _, spec := range specs {
		if s.kept[spec.Name] != nil {
			continue
		}
		kctx, cancel := context.WithCancel(ctx)
		k := &kept{spec: spec, ready: make(chan struct{}), cancel: cancel, done: make(chan struct{})}
		s.kept[spec.Name] = k
		s.wg.Go(func() {
			defer close(k.done)
			s.keep(kctx, k, found[spec.Name])
		})
	}
	for name, k := range s.kept {
		if names[name] {
			continue
		}
		delete(s.kept, name)
		k.cancel()
		s.wg.Go(func() {
			<-k.done
			s.retire(ctx, name)
			s.retirePlanes(ctx, name)
		})
	}
	// Leftovers of an earlier composition, which no goroutine keeps.
	for name, pid := range found {
		if owner, isPlane := ownerOf(name); isPlane {
			if found[owner] == 0 && !names[owner] && s.kept[owner] == nil {
				s.wg.Go(func() { s.retirePlanes(ctx, owner) })
			}
			continue
		}
		if !names[name] && s.kept[name] == nil && name != supervisorName {
			s.wg.Go(func() {
				s.remember(name, pid)
				s.retire(ctx, name)
				s.retirePlanes(ctx, name)
			})
		}
	}
}

// retirePlanes stops what a hosting that is no longer wanted has left; of any
// other process there is nothing.
func (s *supervisor) retirePlanes(ctx context.Context, hosting string) {
	if err := stopPlanes(ctx, s.homeID, hosting); err != nil {
		s.log.Error("planes not stopped", "process", hosting, "error", err)
	}
}

// remember writes a record for a process that has none, so that it can be stopped.
func (s *supervisor) remember(name string, pid int) {
	if r, ok := s.home.record(name); ok && r.PID == pid {
		return
	}
	if st, err := readStat(pid); err == nil {
		s.save(Record{Name: name, PID: pid, Start: st.start, Boot: bootID()})
	}
}

// retire stops a process that is no longer wanted.
func (s *supervisor) retire(ctx context.Context, name string) {
	r, ok := s.home.record(name)
	if !ok {
		return
	}
	if err := r.stop(ctx); err != nil {
		s.log.Error("process not stopped", "process", name, "error", err)
		return
	}
	os.Remove(s.home.recordPath(name))
}

// keep runs one process until ctx is cancelled: adopts it when it runs
// already, starts it else, and again with back-off whenever it dies.
func (s *supervisor) keep(ctx context.Context, k *kept, found int) {
	spec := k.spec
	backoff, restarts := firstBackoff, 0
	before, known := s.home.record(spec.Name)
	record, cmd := s.adopt(ctx, spec, found)
	switch {
	case record.Name != "":
		restarts = record.Restarts
	case !s.await(ctx, spec.After):
		return
	case known: // it died, or was replaced, while nobody watched
		restarts = before.Restarts + 1
	}
	begun := time.Now()
	for ctx.Err() == nil {
		if !record.alive() {
			var err error
			record, cmd, err = s.launch(ctx, spec, restarts)
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				s.log.Error("process not started", "process", spec.Name, "error", err)
				s.events.failed(spec.Name, err)
				s.save(Record{Name: spec.Name, Restarts: restarts, Backoff: err.Error(), Address: spec.Address,
					Phase: spec.Phase, Stop: int(spec.Stop)})
				s.pause(ctx, backoff)
				backoff = min(2*backoff, maxBackoff)
				continue
			}
		}
		exited := make(chan error, 1)
		go func() { exited <- wait(record, cmd) }()
		if s.becomeReady(ctx, spec, exited) {
			s.events.done(spec.Name, spec.Address, time.Since(begun))
			select {
			case <-k.ready:
			default:
				close(k.ready)
			}
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-exited:
		}
		ran := time.Since(record.Started)
		s.log.Warn("process died", "process", spec.Name, "pid", record.PID, "after",
			ran.Round(time.Millisecond).String(), "how", fmt.Sprint(err))
		if ran > steadyAfter {
			backoff = firstBackoff
		}
		restarts++
		record.Restarts, record.Backoff = restarts, fmt.Sprintf("died: %v", err)
		s.save(record)
		s.pause(ctx, backoff)
		backoff = min(2*backoff, maxBackoff)
		begun = time.Now()
	}
}

// adopt takes over the process when one runs: the one recorded, or one found by
// its mark. One that is not what spec says is stopped, and "" returned.
func (s *supervisor) adopt(ctx context.Context, spec Spec, found int) (Record, *exec.Cmd) {
	record, ok := s.home.record(spec.Name)
	if found != 0 && (!ok || record.PID != found || !record.alive()) {
		if st, err := readStat(found); err == nil {
			stray := Record{Name: spec.Name, PID: found, Start: st.start, Boot: bootID(), Stop: int(spec.Stop)}
			s.log.Info("process without a record stopped", "process", spec.Name, "pid", found)
			if err := stray.stop(ctx); err != nil {
				s.log.Error("process not stopped", "process", spec.Name, "error", err)
			}
		}
	}
	if !ok || !record.alive() {
		return Record{}, nil
	}
	if record.adoptable(spec) {
		s.log.Info("process adopted", "process", spec.Name, "pid", record.PID)
		return record, nil
	}
	s.log.Info("process replaced", "process", spec.Name, "pid", record.PID)
	if err := record.stop(ctx); err != nil {
		s.log.Error("process not stopped", "process", spec.Name, "error", err)
	}
	return Record{}, nil
}

// launch prepares and starts the process and records it.
func (s *supervisor) launch(ctx context.Context, spec Spec, restarts int) (Record, *exec.Cmd, error) {
	if spec.Prepare != nil {
		if err := spec.Prepare(ctx); err != nil {
			return Record{}, nil, fmt.Errorf("preparing %s: %w", spec.Name, err)
		}
	}
	record, cmd, err := s.home.start(s.homeID, spec, restarts)
	if err != nil {
		return Record{}, nil, err
	}
	s.save(record)
	s.log.Info("process started", "process", spec.Name, "pid", record.PID, "restarts", restarts)
	return record, cmd, nil
}

// await waits until the named processes have been ready once.
func (s *supervisor) await(ctx context.Context, names []string) bool {
	for _, name := range names {
		s.mu.Lock()
		k := s.kept[name]
		s.mu.Unlock()
		if k == nil {
			continue
		}
		select {
		case <-ctx.Done():
			return false
		case <-k.ready:
		}
	}
	return true
}

// becomeReady probes until the process serves, dies or ctx ends.
func (s *supervisor) becomeReady(ctx context.Context, spec Spec, exited chan error) bool {
	if spec.Ready == nil {
		return true
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		pctx, cancel := context.WithTimeout(ctx, time.Second)
		err := spec.Ready(pctx)
		if err == nil && spec.Finish != nil {
			err = spec.Finish(pctx)
		}
		cancel()
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case died := <-exited:
			exited <- died
			return false
		case <-tick.C:
		}
	}
}

func (s *supervisor) pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (s *supervisor) save(r Record) {
	if err := writeJSON(s.home.recordPath(r.Name), r); err != nil {
		s.log.Error("record not written", "process", r.Name, "error", err)
	}
}

// wait returns how the process ended; of one that was adopted only that it did.
func wait(r Record, cmd *exec.Cmd) error {
	if cmd == nil {
		if err := waitExit(r.PID); err != nil {
			return err
		}
		return errors.New("exited")
	}
	if err := cmd.Wait(); err != nil {
		return err
	}
	return errors.New("exited with status 0")
}

// stopAll stops every recorded or marked process of the home, phase by phase.
func (h Home) stopAll(ctx context.Context, homeID string, stopped func(name string)) error {
	byName := map[string]Record{}
	for _, r := range h.records() {
		byName[r.Name] = r
	}
	for name, pid := range marked(homeID) {
		if r := byName[name]; !r.alive() || r.PID != pid {
			found := stray(name, pid)
			found.Phase, found.Stop = r.Phase, r.Stop
			if _, isPlane := ownerOf(name); isPlane {
				found.Phase = phaseServices
			}
			byName[name] = found
		}
	}
	delete(byName, supervisorName)
	phases := map[int][]Record{}
	for _, r := range byName {
		phases[r.Phase] = append(phases[r.Phase], r)
	}
	var errs []error
	for _, phase := range slices.Sorted(maps.Keys(phases)) {
		errs = append(errs, h.stopEach(ctx, phases[phase], stopped))
	}
	// What was begun since marked was asked: a plane that hosting started while it
	// was told to stop. Whoever could begin more has ended.
	for range 5 {
		var late []Record
		for name, pid := range marked(homeID) {
			if name != supervisorName {
				late = append(late, stray(name, pid))
			}
		}
		if len(late) == 0 {
			break
		}
		errs = append(errs, h.stopEach(ctx, late, stopped))
	}
	return errors.Join(errs...)
}

// stopEach stops processes at once, and forgets them.
func (h Home) stopEach(ctx context.Context, records []Record, stopped func(name string)) error {
	var errs []error
	results := make(chan func())
	for _, r := range records {
		go func() {
			was := r.alive()
			err := r.stop(ctx)
			if err == nil {
				err = removeIfThere(h.recordPath(r.Name))
			}
			results <- func() {
				if errs = append(errs, err); was && err == nil {
					stopped(r.Name)
				}
			}
		}()
	}
	for range records {
		(<-results)()
	}
	return errors.Join(errs...)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// stopSupervisor ends the supervisor alone; its processes go on.
func (h Home) stopSupervisor(ctx context.Context) error {
	r, ok := h.record(supervisorName)
	if !ok {
		return nil
	}
	r.Stop = int(syscall.SIGTERM)
	if err := r.stop(ctx); err != nil {
		return err
	}
	return removeIfThere(h.recordPath(supervisorName))
}

// reload makes a running supervisor read region.json again.
func (h Home) reload() error {
	r, running := h.supervisor()
	if !running {
		return nil
	}
	return r.signal(syscall.SIGHUP)
}
