package local

import (
	"context"
	"errors"
	"maps"
	"os"
	"slices"
	"syscall"
)

// stopAll stops every recorded or marked process of the home, phase by phase.
func (h Home) stopAll(ctx context.Context, homeID string, stopped func(name string)) error {
	byName := map[string]Record{}
	for _, r := range h.readRecords() {
		byName[r.Name] = r
	}
	for name, pid := range markedProcesses(homeID) {
		if r := byName[name]; !r.isAlive() || r.PID != pid {
			unrecorded := recordOf(name, pid)
			unrecorded.Phase, unrecorded.Stop = r.Phase, r.Stop
			if _, isPlane := splitProcessName(name); isPlane {
				unrecorded.Phase = phaseServices
			}
			byName[name] = unrecorded
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
	// Processes that started after the first look, such as a plane that hosting
	// started while it was stopping. Hosting has ended now, so their number is bounded.
	for range 5 {
		var remaining []Record
		for name, pid := range markedProcesses(homeID) {
			if name != supervisorName {
				remaining = append(remaining, recordOf(name, pid))
			}
		}
		if len(remaining) == 0 {
			break
		}
		errs = append(errs, h.stopEach(ctx, remaining, stopped))
	}
	return errors.Join(errs...)
}

// stopEach stops processes, all at the same time, and deletes their records.
func (h Home) stopEach(ctx context.Context, records []Record, stopped func(name string)) error {
	var errs []error
	results := make(chan func())
	for _, r := range records {
		go func() {
			wasAlive := r.isAlive()
			err := r.stop(ctx)
			if err == nil {
				err = removeIfExists(h.recordPath(r.Name))
			}
			results <- func() {
				if errs = append(errs, err); wasAlive && err == nil {
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

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// stopSupervisor stops the supervisor; the other processes continue.
func (h Home) stopSupervisor(ctx context.Context) error {
	r, ok := h.readRecord(supervisorName)
	if !ok {
		return nil
	}
	r.Stop = int(syscall.SIGTERM)
	if err := r.stop(ctx); err != nil {
		return err
	}
	return removeIfExists(h.recordPath(supervisorName))
}

// reloadSupervisor makes a running supervisor read region.json again.
func (h Home) reloadSupervisor() error {
	r, running := h.supervisorRecord()
	if !running {
		return nil
	}
	return r.signal(syscall.SIGHUP)
}
