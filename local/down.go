package local

import (
	"context"
	"errors"
	"fmt"
	"os"
)

// Data determines what happens to the data of a region that is stopped.
type Data uint8

const (
	KeepData   Data = iota
	DeleteData      // the home and the database
)

// Down stops all processes of the home and no others, and calls stopped with the name of each.
func (h Home) Down(ctx context.Context, data Data, stopped func(name string)) error {
	st, err := h.State()
	if errors.Is(err, ErrNoRegion) {
		return err
	}
	if err != nil && st.ID == "" {
		return err
	}
	if _, running := h.supervisorRecord(); running {
		if err := h.stopSupervisor(ctx); err != nil {
			return err
		}
		stopped(supervisorName)
	}
	for name, pid := range markedProcesses(st.ID) { // a supervisor without a record
		if name == supervisorName && pid != os.Getpid() {
			if self, err := readStat(pid); err == nil {
				if err := (Record{Name: name, PID: pid, Start: self.start, Boot: bootID()}).stop(ctx); err != nil {
					return err
				}
			}
		}
	}
	if err := removeIfExists(h.recordPath(supervisorName)); err != nil {
		return err
	}
	if err := h.stopAll(ctx, st.ID, stopped); err != nil {
		return err
	}
	t := newTopology(h, st, Binaries{})
	if err := t.stopNodes(ctx, st.Clusters, stopped); err != nil {
		return err
	}
	if data == KeepData {
		return nil
	}
	if err := h.removeGroups(ctx, st.Clusters); err != nil {
		return fmt.Errorf("purging: %w", err)
	}
	for _, dir := range []string{st.Postgres.Dir, st.Postgres.SocketDir, t.outerNodesDir(), h.Dir} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("purging: %w", err)
		}
	}
	return nil
}
