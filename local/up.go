package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/postgres"
)

// progressTimeout is how long `up` waits for the next process to serve. The whole start has no
// time limit, because a slow machine may take minutes for it.
const progressTimeout = 3 * time.Minute

// UpOptions are the settings of the region that `up` starts.
type UpOptions struct {
	Region             string  // of a new home; an existing one keeps its own
	Environment        string  // of the declaration; "" for a region without one
	Insecure           *bool   // State.Insecure, nil as it is
	Azure              *bool   // State.Azure, nil as it is
	Backups            *bool   // State.Backups, nil as it is
	Traces             *string // State.Traces, nil as it is
	Nodes              *string // State.Nodes, nil as it is
	ManagementClusters int     // at least so many; 0 leaves an existing home as it is and gives a new one 1

	// Clusters are names of management clusters that the region has at least. Unless it is nil, a new home
	// has these and no other.
	Clusters []cluster.ManagementCluster

	Settings *Settings       // of the declaration; nil leaves those of the home
	Programs *RegionPrograms // of the declaration; nil leaves those of the home
}

// Outcome is the result of `up`.
type Outcome string

// Outcomes of Up.
const (
	Started        Outcome = "started"
	AlreadyRunning Outcome = "already running"
	Grown          Outcome = "grown"
	Changed        Outcome = "changed"
)

// Up starts the region, or continues an interrupted start, and returns when the region serves. It
// calls show with each stage. When ctx ends, Up returns and the started processes continue.
func (h Home) Up(ctx context.Context, opts UpOptions, show func(Event)) (Outcome, error) {
	bin, err := FindBinaries()
	if err != nil {
		return "", err
	}
	if _, err := postgres.Find(); err != nil {
		return "", err
	}
	if opts.Nodes != nil {
		if err := checkNodes(*opts.Nodes, bin); err != nil {
			return "", err
		}
	}
	st, grown, err := h.prepareState(opts)
	if err != nil {
		return "", err
	}
	t := newTopology(h, st, st.programs(bin))
	if err := t.bin.checkFiles(); err != nil {
		return "", err
	}
	if r, running := h.supervisorRecord(); running {
		if r.Programs != nil {
			t.bin = st.programs(*r.Programs)
		}
		outcome := Grown
		if len(grown) == 0 {
			outcome = Changed
		}
		if len(grown) == 0 && h.matchesSpecs(t.specs()) {
			if status, err := h.Status(ctx); err == nil && status.Ready {
				return AlreadyRunning, nil
			}
			return AlreadyRunning, h.awaitRegion(ctx, 0, nil, show)
		}
		offset := h.eventsSize()
		if err := r.signal(syscall.SIGHUP); err != nil {
			return "", err
		}
		return outcome, h.awaitRegion(ctx, offset, nil, show)
	}
	note, err := t.checkAdapters()
	if err != nil {
		return "", err
	}
	if note != "" {
		show(Event{Stage: adapterName, Detail: note})
	}
	if err := h.checkPorts(ctx, t); err != nil {
		return "", err
	}
	os.Remove(h.eventsPath())
	supervisorExit, err := h.spawnSupervisor(bin, st.ID)
	if err != nil {
		return "", err
	}
	return Started, h.awaitRegion(ctx, 0, supervisorExit, show)
}

// prepareState creates or reads the home and adds the management clusters that opts ask for.
func (h Home) prepareState(opts UpOptions) (st State, grown []cluster.ManagementCluster, err error) {
	if err := os.MkdirAll(h.Path("run"), 0o700); err != nil {
		return st, nil, fmt.Errorf("home: %w", err)
	}
	unlock, err := h.lock("state.lock")
	if err != nil {
		return st, nil, fmt.Errorf("%w: another `atoll up` is running; wait until it ends", err)
	}
	defer unlock()
	if err := atomicfile.SweepTemp(h.Dir); err != nil {
		return st, nil, fmt.Errorf("home: %w", err)
	}
	st, err = h.State()
	clusters := opts.ManagementClusters
	if errors.Is(err, ErrNoRegion) {
		if opts.Clusters == nil {
			clusters = max(clusters, 1)
		}
		st, err = h.create(opts.Region, opts.Environment)
	}
	if err != nil {
		return st, nil, err
	}
	if err := h.checkOwner(st, opts); err != nil {
		return st, nil, err
	}
	if clusters != 0 && clusters < len(st.Clusters) {
		return st, nil,
			fmt.Errorf("the region has %d management clusters: `up` adds them, `atoll mc delete NAME` removes one",
				len(st.Clusters))
	}
	if opts.Insecure != nil && *opts.Insecure != st.Insecure {
		if _, running := h.supervisorRecord(); running {
			return st, nil,
				errors.New("the region runs, and --insecure-listen takes effect at its start: run `atoll down` first")
		}
		st.Insecure = *opts.Insecure
	}
	if opts.Azure != nil && *opts.Azure != st.Azure {
		if _, running := h.supervisorRecord(); running {
			return st, nil, errors.New("the region runs, and --azure takes effect at its start: run `atoll down` first")
		}
		st.Azure = *opts.Azure
	}
	if opts.Backups != nil && *opts.Backups != st.Backups {
		if _, running := h.supervisorRecord(); running {
			return st, nil, errors.New("the region runs, and --backups takes effect at its start: run `atoll down` first")
		}
		st.Backups = *opts.Backups
	}
	if opts.Traces != nil && *opts.Traces != st.Traces {
		if _, running := h.supervisorRecord(); running {
			return st, nil,
				errors.New("the region runs, and --traces takes effect at its start: run `atoll down` first")
		}
		st.Traces = *opts.Traces
	}
	if opts.Nodes != nil && *opts.Nodes != st.Nodes {
		if _, running := h.supervisorRecord(); running {
			return st, nil, errors.New("the region runs, and --nodes takes effect at its start: run `atoll down` first")
		}
		st.Nodes = *opts.Nodes
	}
	for len(st.Clusters) < clusters {
		st.Created++
		name := cluster.ManagementCluster(fmt.Sprintf("management-%02d", st.Created))
		st.Clusters, grown = append(st.Clusters, name), append(grown, name)
	}
	for _, name := range opts.Clusters {
		if !slices.Contains(st.Clusters, name) {
			st.Clusters, grown = append(st.Clusters, name), append(grown, name)
		}
	}
	if opts.Settings != nil {
		st.Settings = opts.Settings.withUndeclaredClusters(st)
	}
	if opts.Programs != nil {
		newest := st.Programs.Newest // it may have been recorded since opts was made
		st.Programs = *opts.Programs
		st.Programs.Newest = newest
	}
	if err := h.assignPorts(st.Ports, portNames(st)); err != nil {
		return st, nil, err
	}
	return st, grown, h.saveState(st)
}

// checkOwner returns an error when the home has another region than opts name: a region with another name or another
// environment. For a declared region it also refuses a region that `atoll up` made, since its management clusters are
// not declared.
func (h Home) checkOwner(st State, opts UpOptions) error {
	switch {
	case opts.Region != "" && opts.Region != st.Region:
		return fmt.Errorf("home %s holds region %q, not %q: name another home with --home", h.Dir, st.Region, opts.Region)
	case opts.Environment == "" || opts.Environment == st.Environment:
		return nil
	case st.Environment == "":
		return fmt.Errorf("home %s holds a region that `atoll up` made, not the declared one of environment %q: "+
			"name another home with --home", h.Dir, opts.Environment)
	}
	return fmt.Errorf("home %s holds region %q of environment %q, not of %q: name another home with --home", h.Dir,
		st.Region, st.Environment, opts.Environment)
}

// supervisorRecord returns the record of the supervisor when it runs.
func (h Home) supervisorRecord() (Record, bool) {
	r, ok := h.readRecord(supervisorName)
	return r, ok && r.isAlive()
}

// checkPorts returns an error when another program uses the port of a process that is not running.
func (h Home) checkPorts(ctx context.Context, t topology) error {
	runningPIDs := markedProcesses(t.st.ID)
	for _, s := range t.specs() {
		if runningPIDs[s.Name] != 0 {
			continue
		}
		port := s.firstTakenPort(func(port int, use portUse) bool { return awaitPortFree(ctx, port, use) })
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if port != 0 {
			return fmt.Errorf("%s: port %d is taken by %s; stop that, then `atoll up` again", s.Name, port, portHolder(port))
		}
	}
	return nil
}

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

// errNoProgress ends awaitRegion.
var errNoProgress = errors.New("no further process began to serve")

// awaitRegion shows the events of the supervisor until the event that the region serves. It gives up
// when no further process begins to serve for progressTimeout.
func (h Home) awaitRegion(ctx context.Context, offset int64, supervisorExit <-chan error, show func(Event)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	progressTimer := time.AfterFunc(progressTimeout, func() { cancel(errNoProgress) })
	defer progressTimer.Stop()
	ready := map[string]bool{} // stages that ended well; a process that restarts again and again counts once
	var lastFailure Event
	followErr := make(chan error, 1)
	go func() {
		followErr <- h.followEvents(ctx, offset, func(e Event) bool {
			switch {
			case e.Error != "":
				lastFailure = e
			case !ready[e.Stage]:
				ready[e.Stage] = true
				progressTimer.Reset(progressTimeout)
			}
			show(e)
			return e.Stage != regionStage
		})
	}()
	select {
	case err := <-followErr:
		if errors.Is(context.Cause(ctx), errNoProgress) {
			return fmt.Errorf("the region does not serve, and %w for %s (%s); see `atoll status` and `atoll logs`; "+
				"`atoll down` stops it", errNoProgress, progressTimeout, h.describeFailure(lastFailure))
		}
		return err
	case err := <-supervisorExit:
		cancel(nil)
		<-followErr
		return fmt.Errorf("the supervisor ended (%v): %s", err, h.lastLogLine(supervisorName))
	}
}

// describeFailure returns the last failure of a process or, when there was none, the processes that
// do not serve yet.
func (h Home) describeFailure(last Event) string {
	if last.Stage != "" {
		return last.Stage + ": " + last.Error
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	status, err := h.Status(ctx)
	if err != nil {
		return err.Error()
	}
	var problems []string
	for _, p := range status.Processes {
		if p.State == "ready" {
			continue
		}
		text := p.Name + " is " + p.State
		if p.Reason != "" {
			text += " (" + p.Reason + ")"
		}
		problems = append(problems, text)
	}
	if len(problems) == 0 {
		return "no process reports a failure"
	}
	return strings.Join(problems, ", ")
}

// Supervise runs the supervisor: until ctx ends it restarts the processes of the home that exit. The processes go on
// after that.
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
	bin, err := FindBinaries()
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
