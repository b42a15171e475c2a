package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"

	"atoll.dev/cluster"
	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/postgres"
)

// UpOptions are the settings of the region that `up` starts.
type UpOptions struct {
	Region             string  // of a new home; an existing one keeps its own
	Environment        string  // of the declaration; "" for a region without one
	Insecure           *bool   // State.Insecure, nil as it is
	Azure              *bool   // State.Azure, nil as it is
	WarmPlanes         *int    // State.WarmPlanes, nil as it is
	RecoverLostAfter   *string // State.RecoverLostAfter, nil as it is
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
	bin, err := findBinaries()
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
	st.RecoverLostAfter = normalizeRecoverLostAfter(st.RecoverLostAfter)
	if opts.RecoverLostAfter != nil {
		opts.RecoverLostAfter = new(normalizeRecoverLostAfter(*opts.RecoverLostAfter))
	}
	err = errors.Join(changeBeforeStart(h, "insecure-listen", &st.Insecure, opts.Insecure),
		changeBeforeStart(h, "azure", &st.Azure, opts.Azure),
		changeBeforeStart(h, "warm-planes", &st.WarmPlanes, opts.WarmPlanes),
		changeBeforeStart(h, "recover-lost-after", &st.RecoverLostAfter, opts.RecoverLostAfter),
		changeBeforeStart(h, "backups", &st.Backups, opts.Backups),
		changeBeforeStart(h, "traces", &st.Traces, opts.Traces), changeBeforeStart(h, "nodes", &st.Nodes, opts.Nodes))
	if err != nil {
		return st, nil, err
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

// changeBeforeStart sets a setting of a region to the value of an option of `up`; nil leaves it. It refuses another
// value while the region runs.
func changeBeforeStart[T comparable](h Home, option string, setting, to *T) error {
	if to == nil || *to == *setting {
		return nil
	}
	if _, running := h.supervisorRecord(); running {
		return fmt.Errorf("the region runs, and --%s takes effect at its start: run `atoll down` first", option)
	}
	*setting = *to
	return nil
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
