package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"atoll.dev/internal/filelock"
	"atoll.dev/internal/postgres"
)

// spawnSupervisor starts the supervisor in a session of its own. The channel receives its exit
// error when it ends before this process.
func (h Home) spawnSupervisor(bin Binaries, homeID string) (exited <-chan error, err error) {
	spec := Spec{Name: supervisorName, Args: []string{bin.Atoll, "supervise", "--home", h.Dir}}
	if kube := os.Getenv("ATOLL_KUBE_BIN"); kube != "" {
		spec.Env = append(spec.Env, "ATOLL_KUBE_BIN="+kube)
	}
	_, cmd, err := h.start(homeID, spec, 0)
	if err != nil {
		return nil, err
	}
	exit := make(chan error, 1)
	go func() { exit <- waitProcess(Record{}, cmd) }()
	return exit, nil
}

// Supervise runs the supervisor: until ctx ends it restarts the processes of the home that exit. The processes go on
// after that.
func (h Home) Supervise(ctx context.Context, log *slog.Logger) error {
	unlock, err := h.lock("supervisor.lock")
	if errors.Is(err, filelock.ErrLocked) {
		return errors.New("another supervisor runs for this home")
	}
	if err != nil {
		return err
	}
	defer unlock()
	self, err := readStat(os.Getpid())
	if err != nil {
		return fmt.Errorf("supervisor: %w", err)
	}
	bin, err := findBinaries()
	if err != nil {
		return err
	}
	record := Record{Name: supervisorName, PID: os.Getpid(), Start: self.start, Boot: bootID(), Args: os.Args,
		Started: time.Now().UTC(), Stop: int(syscall.SIGTERM), Programs: &bin}
	if err := writeJSON(h.recordPath(supervisorName), record); err != nil {
		return err
	}
	st, err := h.State()
	if err != nil {
		return err
	}
	events, err := h.newEventLog()
	if err != nil {
		return err
	}
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)

	s := &supervisor{home: h, homeID: st.ID, log: log, events: events, processes: map[string]*supervisedProcess{}}
	s.wg.Go(func() {
		// The error is that of ctx.
		_ = databaseOf(st).Guard(ctx, func(now postgres.Mode, free uint64) {
			log.Warn("disk space of the database", "read_only", now == postgres.ReadOnly, "free_bytes", free)
		})
	})
	log.Info("supervisor started", "pid", record.PID, "home", h.Dir, "region", st.Region)
	return s.run(ctx, func() ([]Spec, error) {
		st, err := h.State()
		if err != nil {
			return nil, err
		}
		return newTopology(h, st, st.programs(bin)).specs(), nil
	}, reload)
}
