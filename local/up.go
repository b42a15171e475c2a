package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/internal/postgres"
)

// upTimeout bounds how long `up` waits for the region to serve.
const upTimeout = 2 * time.Minute

// UpOptions says what region `up` is to bring up.
type UpOptions struct {
	Region             string  // of a new home; an existing one keeps its own
	Insecure           *bool   // State.Insecure, nil as it is
	Traces             *string // State.Traces, nil as it is
	ManagementClusters int     // at least so many; 0 leaves an existing home as it is and gives a new one 1
}

// Outcome tells what `up` did.
type Outcome string

// Outcomes of Up.
const (
	Started        Outcome = "started"
	AlreadyRunning Outcome = "already running"
	Grown          Outcome = "grown"
)

// Up brings the region up, or goes on where an earlier one stopped, and
// returns when it serves. It calls show with each stage as it is done. A
// cancelled ctx ends the waiting; what was started goes on.
func (h Home) Up(ctx context.Context, opts UpOptions, show func(Event)) (Outcome, error) {
	bin, err := FindBinaries()
	if err != nil {
		return "", err
	}
	if _, err := postgres.Find(); err != nil {
		return "", err
	}
	st, grown, err := h.decide(opts)
	if err != nil {
		return "", err
	}
	if r, running := h.supervisor(); running {
		if len(grown) == 0 {
			if status, err := h.Status(ctx); err == nil && status.Ready {
				return AlreadyRunning, nil
			}
			return AlreadyRunning, h.awaitRegion(ctx, 0, nil, show)
		}
		offset := h.eventsSize()
		if err := r.signal(syscall.SIGHUP); err != nil {
			return "", err
		}
		return Grown, h.awaitRegion(ctx, offset, nil, show)
	}
	t := newTopology(h, st, bin)
	note, err := t.checkAdapters()
	if err != nil {
		return "", err
	}
	if note != "" {
		show(Event{Stage: adapterName, Detail: note})
	}
	if err := h.checkPorts(t); err != nil {
		return "", err
	}
	os.Remove(h.eventsPath())
	died, err := h.spawnSupervisor(bin, st.ID)
	if err != nil {
		return "", err
	}
	return Started, h.awaitRegion(ctx, 0, died, show)
}

// decide creates or reads the home and adds the clusters that opts ask for.
func (h Home) decide(opts UpOptions) (st State, grown []string, err error) {
	if err := os.MkdirAll(h.Path("run"), 0o700); err != nil {
		return st, nil, fmt.Errorf("home: %w", err)
	}
	unlock, err := h.lock("state.lock")
	if err != nil {
		return st, nil, fmt.Errorf("%w: another `atoll up` is at work", err)
	}
	defer unlock()
	st, err = h.State()
	wanted := opts.ManagementClusters
	if errors.Is(err, ErrNoRegion) {
		wanted = max(wanted, 1)
		st, err = h.create(opts.Region)
	}
	if err != nil {
		return st, nil, err
	}
	if opts.Region != "" && opts.Region != st.Region {
		return st, nil, fmt.Errorf("home %s holds region %q, not %q: name another home with --home", h.Dir, st.Region,
			opts.Region)
	}
	if wanted != 0 && wanted < len(st.Clusters) {
		return st, nil,
			fmt.Errorf("the region has %d management clusters: `up` adds them, `atoll mc delete NAME` removes one",
				len(st.Clusters))
	}
	if opts.Insecure != nil && *opts.Insecure != st.Insecure {
		if _, running := h.supervisor(); running {
			return st, nil,
				errors.New("the region runs: --insecure-listen is decided when it starts; `atoll down` first")
		}
		st.Insecure = *opts.Insecure
	}
	if opts.Traces != nil && *opts.Traces != st.Traces {
		if _, running := h.supervisor(); running {
			return st, nil, errors.New("the region runs: --traces is decided when it starts; `atoll down` first")
		}
		st.Traces = *opts.Traces
	}
	for len(st.Clusters) < wanted {
		st.Created++
		name := fmt.Sprintf("management-%02d", st.Created)
		st.Clusters, grown = append(st.Clusters, name), append(grown, name)
	}
	if err := h.assignPorts(st.Ports, portNames(st)); err != nil {
		return st, nil, err
	}
	return st, grown, h.saveState(st)
}

// supervisor returns the record of the supervisor when it runs.
func (h Home) supervisor() (Record, bool) {
	r, ok := h.record(supervisorName)
	return r, ok && r.alive()
}

// checkPorts fails when another program has taken the port of a process that
// would have to be started.
func (h Home) checkPorts(t topology) error {
	running := marked(t.st.ID)
	for _, s := range t.specs() {
		if running[s.Name] != 0 {
			continue
		}
		for _, port := range s.Ports {
			if !portComesFree(port) {
				return fmt.Errorf("%s: port %d is taken by %s; stop that, then `atoll up` again", s.Name, port,
					portHolder(port))
			}
		}
	}
	return nil
}

// spawnSupervisor starts the supervisor in a session of its own. The channel
// gets how it ended, if it does while this process lives.
func (h Home) spawnSupervisor(bin Binaries, homeID string) (died <-chan error, err error) {
	spec := Spec{Name: supervisorName, Args: []string{bin.Atoll, "supervise", "--home", h.Dir}}
	if kube := os.Getenv("ATOLL_KUBE_BIN"); kube != "" {
		spec.Env = append(spec.Env, "ATOLL_KUBE_BIN="+kube)
	}
	_, cmd, err := h.start(homeID, spec, 0)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- wait(Record{}, cmd) }()
	return ended, nil
}

func (h Home) eventsSize() int64 {
	info, err := os.Stat(h.eventsPath())
	if err != nil {
		return 0
	}
	return info.Size()
}

// awaitRegion shows the supervisor's events until one says that the region serves.
func (h Home) awaitRegion(ctx context.Context, offset int64, died <-chan error, show func(Event)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, upTimeout, errors.New("timeout"))
	defer cancel()
	var lastFailure Event
	followed := make(chan error, 1)
	go func() {
		followed <- h.followEvents(ctx, offset, func(e Event) bool {
			if e.Error != "" {
				lastFailure = e
			}
			show(e)
			return e.Stage != regionStage
		})
	}()
	select {
	case err := <-followed:
		if errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf(
				"the region does not serve after %s (%s); see `atoll status` and `atoll logs`; `atoll down` stops it",
				upTimeout, h.whatFails(lastFailure))
		}
		return err
	case err := <-died:
		cancel()
		<-followed
		return fmt.Errorf("the supervisor ended (%v): %s", err, h.lastLogLine(supervisorName))
	}
}

// whatFails is the last failure of a process, or, without one, the processes that
// do not serve yet.
func (h Home) whatFails(last Event) string {
	if last.Stage != "" {
		return last.Stage + ": " + last.Error
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	status, err := h.Status(ctx)
	if err != nil {
		return err.Error()
	}
	var waiting []string
	for _, p := range status.Processes {
		if p.State == "ready" {
			continue
		}
		text := p.Name + " is " + p.State
		if p.Reason != "" {
			text += " (" + p.Reason + ")"
		}
		waiting = append(waiting, text)
	}
	if len(waiting) == 0 {
		return "no process reports a failure"
	}
	return strings.Join(waiting, ", ")
}

func (h Home) lastLogLine(name string) string {
	last := "see `atoll logs " + name + "`"
	h.Logs(context.Background(), []string{name}, 1, false, func(_, text string) { last = text })
	return last
}

// Supervise is the supervisor process: it keeps the home's processes running
// until it is told to stop, and then leaves them running.
func (h Home) Supervise(ctx context.Context, log *slog.Logger) error {
	unlock, err := h.lock("supervisor.lock")
	if errors.Is(err, unix.EWOULDBLOCK) {
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
	record := Record{Name: supervisorName, PID: os.Getpid(), Start: self.start, Boot: bootID(), Args: os.Args,
		Started: time.Now().UTC(), Stop: int(syscall.SIGTERM)}
	if err := writeJSON(h.recordPath(supervisorName), record); err != nil {
		return err
	}
	st, err := h.State()
	if err != nil {
		return err
	}
	bin, err := FindBinaries()
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

	s := &supervisor{home: h, homeID: st.ID, log: log, events: events, kept: map[string]*kept{}}
	s.wg.Go(func() {
		// Ends with ctx, which is no news.
		_ = databaseOf(st).Guard(ctx, func(readOnly bool, free uint64) {
			log.Warn("disk space of the database", "read_only", readOnly, "free_bytes", free)
		})
	})
	log.Info("supervisor started", "pid", record.PID, "home", h.Dir, "region", st.Region)
	return s.run(ctx, func() ([]Spec, error) {
		st, err := h.State()
		if err != nil {
			return nil, err
		}
		return newTopology(h, st, bin).specs(), nil
	}, reload)
}

// Down stops everything that the home runs and nothing else; with purge it
// removes the home and the database.
func (h Home) Down(ctx context.Context, purge bool, stopped func(name string)) error {
	st, err := h.State()
	if errors.Is(err, ErrNoRegion) {
		return err
	}
	if err != nil && st.ID == "" {
		return err
	}
	if _, running := h.supervisor(); running {
		if err := h.stopSupervisor(ctx); err != nil {
			return err
		}
		stopped(supervisorName)
	}
	for name, pid := range marked(st.ID) { // one that died before its record was written, or never wrote it
		if name == supervisorName && pid != os.Getpid() {
			if self, err := readStat(pid); err == nil {
				if err := (Record{Name: name, PID: pid, Start: self.start, Boot: bootID()}).stop(ctx); err != nil {
					return err
				}
			}
		}
	}
	if err := removeIfThere(h.recordPath(supervisorName)); err != nil {
		return err
	}
	if err := h.stopAll(ctx, st.ID, stopped); err != nil {
		return err
	}
	if !purge {
		return nil
	}
	for _, dir := range []string{st.Postgres.Dir, st.Postgres.SocketDir, h.Dir} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("purging: %w", err)
		}
	}
	return nil
}
