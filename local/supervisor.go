package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
)

const (
	firstBackoff = 100 * time.Millisecond
	maxBackoff   = 5 * time.Second
	// steadyAfter is how long a process must have run for its next failure to
	// count as its first.
	steadyAfter = 10 * time.Second
	// readyPoll is the interval between readiness probes of a starting process.
	// A process that has become ready is not probed again.
	readyPoll = 20 * time.Millisecond
	// The first readiness probes of a process may take firstProbe. Each that exceeds its
	// limit doubles it, up to maxProbe: on a slow machine every answer may take longer.
	firstProbe = time.Second
	maxProbe   = 30 * time.Second
	// finishLimit bounds Spec.Finish. It is far above the usual time, because a cancelled
	// attempt loses its work: the next one begins at the start.
	finishLimit = 2 * time.Minute
)

// supervisor keeps the processes of one home running. One goroutine owns each process; mu guards
// the fields that the goroutines share.
type supervisor struct {
	home   Home
	homeID string
	log    *slog.Logger
	events *eventLog

	mu        sync.Mutex
	processes map[string]*supervisedProcess
	wg        sync.WaitGroup
}

// supervisedProcess is one process that the supervisor keeps running.
type supervisedProcess struct {
	spec   Spec
	ready  chan struct{} // closed when it has been ready once
	cancel context.CancelFunc
	done   chan struct{}
}

// run supervises until ctx ends and leaves all processes running. It calls listSpecs at the start
// and after each signal on reload.
func (s *supervisor) run(ctx context.Context, listSpecs func() ([]Spec, error), reload <-chan os.Signal) error {
	defer s.wg.Wait()
	rotate := time.NewTicker(time.Minute)
	defer rotate.Stop()
	for ctx.Err() == nil {
		specs, err := listSpecs()
		if err != nil {
			return err
		}
		start := time.Now()
		s.reconcile(ctx, specs)
		s.wg.Go(func() {
			if s.awaitReady(ctx, specNames(specs)) {
				s.events.recordDone(regionStage, "", time.Since(start))
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

// reconcile begins to supervise each process that is new in specs, replaces each process whose arguments or variables
// have changed, one after another in the order of specs, and stops each process that specs no longer has.
func (s *supervisor) reconcile(ctx context.Context, specs []Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]bool{}
	for _, spec := range specs {
		names[spec.Name] = true
	}
	markedPIDs := markedProcesses(s.homeID)
	replaced := "" // the name of the last of this call
	for _, spec := range specs {
		previous := s.processes[spec.Name]
		if previous != nil && previous.spec.hasSameInvocation(spec) {
			continue
		}
		keepCtx, cancel := context.WithCancel(ctx)
		process := &supervisedProcess{spec: spec, ready: make(chan struct{}), cancel: cancel, done: make(chan struct{})}
		s.processes[spec.Name] = process
		before := replaced
		if previous != nil {
			replaced = spec.Name
		}
		s.wg.Go(func() {
			defer close(process.done)
			if previous != nil {
				s.replace(keepCtx, previous, process, before)
				return
			}
			s.keepRunning(keepCtx, process, markedPIDs[spec.Name])
		})
	}
	for name, process := range s.processes {
		if names[name] {
			continue
		}
		delete(s.processes, name)
		process.cancel()
		s.wg.Go(func() {
			<-process.done
			s.stopRemoved(ctx, name)
			s.stopPlanesAndNodes(ctx, name)
		})
	}
	// Processes of earlier specs that no goroutine keeps.
	for name, pid := range markedPIDs {
		if owner, isPlane := splitProcessName(name); isPlane {
			if markedPIDs[owner] == 0 && !names[owner] && s.processes[owner] == nil {
				s.wg.Go(func() { s.stopPlanesAndNodes(ctx, owner) })
			}
			continue
		}
		if !names[name] && s.processes[name] == nil && name != supervisorName {
			s.wg.Go(func() {
				s.recordMarked(name, pid)
				s.stopRemoved(ctx, name)
				s.stopPlanesAndNodes(ctx, name)
			})
		}
	}
}

// stopPlanesAndNodes stops the planes and the real nodes of a hosting that was removed. Other processes have none.
func (s *supervisor) stopPlanesAndNodes(ctx context.Context, hosting string) {
	if mc, isHosting := strings.CutSuffix(hosting, hostingName("")); isHosting {
		s.stopNodesOf(ctx, cluster.ManagementCluster(mc))
	}
	if err := stopPlanes(ctx, s.homeID, hosting); err != nil {
		s.log.Error("planes not stopped", "process", hosting, "error", err)
	}
}

// stopNodesOf stops the real nodes of a management cluster that was removed.
func (s *supervisor) stopNodesOf(ctx context.Context, mc cluster.ManagementCluster) {
	st, err := s.home.State()
	if err == nil {
		err = newTopology(s.home, st, Binaries{}).stopNodes(ctx, []cluster.ManagementCluster{mc}, func(string) {})
	}
	if err != nil {
		s.log.Error("real nodes not stopped", "management_cluster", string(mc), "error", err)
	}
}

// recordMarked writes a record for a process that has none, so that stopRemoved can stop it.
func (s *supervisor) recordMarked(name string, pid int) {
	if r, ok := s.home.readRecord(name); ok && r.PID == pid {
		return
	}
	if st, err := readStat(pid); err == nil {
		s.save(Record{Name: name, PID: pid, Start: st.start, Boot: bootID()})
	}
}

// stopRemoved stops a process that is no longer in the specs and deletes its record.
func (s *supervisor) stopRemoved(ctx context.Context, name string) {
	r, ok := s.home.readRecord(name)
	if !ok {
		return
	}
	if err := r.stop(ctx); err != nil {
		s.log.Error("process not stopped", "process", name, "error", err)
		return
	}
	os.Remove(s.home.recordPath(name))
}

// keepRunning runs one process until ctx ends. It adopts the process when it runs already, starts it
// otherwise, and restarts it with back-off whenever it ends.
func (s *supervisor) keepRunning(ctx context.Context, process *supervisedProcess, markedPID int) {
	spec := process.spec
	backoff, restarts := firstBackoff, 0
	previous, hasRecord := s.home.readRecord(spec.Name)
	record, cmd := s.adopt(ctx, spec, markedPID)
	switch {
	case record.Name != "":
		restarts = record.Restarts
	case !s.awaitReady(ctx, spec.After):
		return
	case hasRecord: // it ended, or was replaced, while no supervisor ran
		restarts = previous.Restarts + 1
	}
	start := time.Now()
	for ctx.Err() == nil {
		if !record.isAlive() {
			var err error
			record, cmd, err = s.prepareAndStart(ctx, spec, restarts)
			if err != nil {
				if ctx.Err() != nil {
					return
				}
				s.log.Error("process not started", "process", spec.Name, "error", err)
				s.events.recordFailure(spec.Name, err)
				s.save(Record{Name: spec.Name, Invocation: spec.invocationID(), Restarts: restarts, Backoff: err.Error(),
					Address: spec.Address, Phase: spec.Phase, Stop: int(spec.Stop)})
				pause.For(ctx, backoff)
				backoff = min(2*backoff, maxBackoff)
				continue
			}
		}
		exited := make(chan error, 1)
		go func() { exited <- waitProcess(record, cmd) }()
		if s.awaitServing(ctx, spec, exited) {
			s.events.recordDone(spec.Name, spec.Address, time.Since(start))
			select {
			case <-process.ready:
			default:
				close(process.ready)
			}
		}
		var err error
		select {
		case <-ctx.Done():
			return
		case err = <-exited:
		}
		uptime := time.Since(record.Started)
		s.log.Warn("process died", "process", spec.Name, "pid", record.PID, "after",
			uptime.Round(time.Millisecond).String(), "how", fmt.Sprint(err))
		if uptime > steadyAfter {
			backoff = firstBackoff
		}
		restarts++
		record.Restarts, record.Backoff = restarts, fmt.Sprintf("died: %v", err)
		s.save(record)
		pause.For(ctx, backoff)
		backoff = min(2*backoff, maxBackoff)
		start = time.Now()
	}
}

// adopt returns the running process, found by its record or by its mark, when it matches spec. It
// stops a process that does not match and returns an empty record.
func (s *supervisor) adopt(ctx context.Context, spec Spec, markedPID int) (Record, *exec.Cmd) {
	record, ok := s.home.readRecord(spec.Name)
	if markedPID != 0 && (!ok || record.PID != markedPID || !record.isAlive()) {
		if st, err := readStat(markedPID); err == nil {
			unrecorded := Record{Name: spec.Name, PID: markedPID, Start: st.start, Boot: bootID(), Stop: int(spec.Stop)}
			s.log.Info("process without a record stopped", "process", spec.Name, "pid", markedPID)
			if err := unrecorded.stop(ctx); err != nil {
				s.log.Error("process not stopped", "process", spec.Name, "error", err)
			}
		}
	}
	if !ok || !record.isAlive() {
		return Record{}, nil
	}
	if record.matches(spec) {
		s.log.Info("process adopted", "process", spec.Name, "pid", record.PID)
		return record, nil
	}
	s.log.Info("process replaced", "process", spec.Name, "pid", record.PID)
	if err := record.stop(ctx); err != nil {
		s.log.Error("process not stopped", "process", spec.Name, "error", err)
	}
	return Record{}, nil
}

// prepareAndStart prepares and starts the process and saves its record.
func (s *supervisor) prepareAndStart(ctx context.Context, spec Spec, restarts int) (Record, *exec.Cmd, error) {
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

func (s *supervisor) save(r Record) {
	if err := writeJSON(s.home.recordPath(r.Name), r); err != nil {
		s.log.Error("record not written", "process", r.Name, "error", err)
	}
}

// waitProcess waits for the end of a process and returns how it ended. The exit status of an
// adopted process is unknown.
func waitProcess(r Record, cmd *exec.Cmd) error {
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
