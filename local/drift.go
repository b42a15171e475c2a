package local

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/gitops"
)

// absent is the state of a management cluster, a region or a setting that is not there.
const absent = "absent"

// Drift is a value that the tree of the configuration, the rendered file and the running region do not have alike.
type Drift struct {
	// What is a key of the declaration, a management cluster, "NAME labels", "NAME capacity", "NAME releases", or
	// "process NAME".
	What     string `json:"what"`
	Declared string `json:"declared,omitempty"` // in the tree; "" also when there is no tree to compare
	Rendered string `json:"rendered"`
	Running  string `json:"running"`
}

// values are the values of one side, by the names of Drift.What. A side without a name does not have the value.
type values map[string]string

// Drift compares the rendered declaration of a region with what runs, and both with the declaration of the tree unless
// that is nil. Of values that cannot be applied here (see UnappliedValues) it compares nothing.
func (h Home) Drift(ctx context.Context, tree *gitops.Declaration, rendered gitops.Declaration) ([]Drift, error) {
	memory, err := machineMemory()
	if err != nil {
		return nil, err
	}
	bin := h.Programs()
	var declared values
	if tree != nil {
		if declared, err = declaredValues(*tree, memory, bin); err != nil {
			return nil, err
		}
	}
	wanted, err := declaredValues(rendered, memory, bin)
	if err != nil {
		return nil, err
	}
	running, err := h.runningValues(ctx, rendered, bin)
	if err != nil {
		return nil, err
	}
	return compareValues(declared, wanted, running), nil
}

// compareValues returns the values in which two sides differ, sorted by their names. A nil side is not compared. A
// setting of a management cluster is compared between sides that have the cluster.
func compareValues(declared, rendered, running values) []Drift {
	drift := []Drift{}
	all := maps.Clone(rendered)
	maps.Copy(all, declared)
	maps.Copy(all, running)
	for _, what := range slices.Sorted(maps.Keys(all)) {
		seen := map[string]bool{}
		for _, side := range []values{declared, rendered, running} {
			value, has := side[what]
			_, _, isOfCluster := strings.Cut(what, " ")
			if side != nil && (has || !isOfCluster || strings.HasPrefix(what, processPrefix)) {
				seen[value] = true
			}
		}
		if len(seen) > 1 {
			drift = append(drift, Drift{what, declared.text(what), rendered.text(what), running.text(what)})
		}
	}
	return drift
}

// text returns the value as people read it: "absent" where the side does not have it, and "" for a nil side.
func (v values) text(what string) string {
	value, has := v[what]
	switch {
	case v == nil || has:
		return value
	case strings.HasPrefix(what, processPrefix):
		return "ready"
	}
	return absent
}

// processPrefix begins the names of processes that do not run as they should. Sides that want the processes do not name
// them.
const processPrefix = "process "

// declaredValues returns the values of a region on this machine that is as declared.
func declaredValues(d gitops.Declaration, memoryMiB int64, bin Binaries) (values, error) {
	settings, err := settingsOf(d)
	if err != nil {
		return nil, err
	}
	st := State{Region: string(d.Region), Environment: string(d.Environment), Settings: settings,
		Clusters: clusterNames(d)}
	v := st.settingValues(bin)
	for _, c := range d.ManagementClusters {
		v[c.Name] = string(platform.ManagementClusterStateReady)
		if c.Settings.Cordoned {
			v[c.Name] = string(platform.ManagementClusterStateCordoned)
		}
		v.addCluster(c.Name, labelsOf(c), st.limitsOf(cluster.ManagementCluster(c.Name), memoryMiB, bin))
		v[c.Name+" values"] = settings.Clusters[cluster.ManagementCluster(c.Name)].text()
	}
	return v, nil
}

// settingValues returns the values of the settings that the region's processes have.
func (st State) settingValues(bin Binaries) values {
	s := st.declaredSettings()
	v := values{"region": st.Region, "environment": st.Environment, "services.traces": s.Traces,
		"versions.atoll": s.Atoll, "values.adapter.baseDomain": s.BaseDomain,
		"versions.releases":         strings.Join(selectReleases(s.Releases, bin.releases()), ", "),
		"services.placementShownTo": s.PlacementShownTo, "services.recoverLostAfter": s.RecoverLostAfter}
	for _, service := range replicatedServices {
		v["services.replicas."+service] = fmt.Sprint(s.replicas(service))
	}
	for _, service := range chartServices {
		v["values."+service] = s.Processes[service].text()
	}
	return v
}

// addCluster adds the settings of a management cluster.
func (v values) addCluster(name string, labels map[string]string, limits platform.ManagementClusterUpdate) {
	v[name+" labels"] = mapText(labels)
	v[name+" capacity"] = mapText(limits.Capacity)
	v[name+" releases"] = strings.Join(limits.Versions, ", ")
}

// runningValues returns the values that are in effect: the settings of the home, the management clusters as the region
// has registered them, and each process that does not run as the settings want.
func (h Home) runningValues(ctx context.Context, d gitops.Declaration, bin Binaries) (values, error) {
	st, err := h.State()
	if errors.Is(err, ErrNoRegion) {
		return values{}, nil
	}
	if err != nil {
		return nil, err
	}
	v := st.settingValues(bin)
	status, err := h.Status(ctx)
	if err != nil {
		return nil, err
	}
	h.addProcesses(v, newTopology(h, st, bin).specs(), status)
	if !status.Ready {
		for _, name := range st.Clusters {
			v[string(name)] = "unknown"
		}
		return v, nil
	}
	api, err := h.Client()
	if err != nil {
		return nil, err
	}
	registered, err := api.ManagementClusters(ctx)
	if err != nil {
		return nil, err
	}
	v.addRegistered(st, d, registered)
	return v, nil
}

// addRegistered adds the management clusters of this machine, and those that are declared. Others have joined.
func (v values) addRegistered(st State, d gitops.Declaration, registered []platform.ManagementCluster) {
	for _, name := range st.Clusters {
		v[string(name)] = "not registered"
	}
	for _, mc := range registered {
		name := cluster.ManagementCluster(mc.Name)
		if slices.Contains(st.Clusters, name) || slices.Contains(clusterNames(d), name) {
			v[mc.Name] = string(mc.State)
			v.addCluster(mc.Name, mc.Labels, platform.ManagementClusterUpdate{Capacity: mc.Capacity, Versions: mc.Versions})
			v[mc.Name+" values"] = st.declaredSettings().Clusters[name].text()
		}
	}
}

// addProcesses adds each process that is not ready, or that has other arguments than those of the settings.
func (h Home) addProcesses(v values, specs []Spec, status Status) {
	states := map[string]ProcessStatus{}
	for _, p := range status.Processes {
		states[p.Name] = p
	}
	for _, spec := range specs {
		p := states[spec.Name]
		r, _ := h.readRecord(spec.Name)
		switch {
		case p.State != "ready":
			v[processPrefix+spec.Name] = strings.TrimSuffix(p.State+": "+p.Reason, ": ")
		case !r.hasInvocation(spec):
			v[processPrefix+spec.Name] = "ready, with other settings"
		}
	}
}

// Programs returns the programs that the region of the home runs. When it does not run, they are those of this program,
// unless the declaration names others.
func (h Home) Programs() Binaries {
	if st, err := h.State(); err == nil && st.Programs.Chosen != nil {
		return *st.Programs.Chosen
	}
	if r, isRunning := h.supervisorRecord(); isRunning && r.Programs != nil {
		return *r.Programs
	}
	bin, err := findBinaries()
	if err != nil {
		return Binaries{} // Up has the same error
	}
	return bin
}

// mapText returns a map as a=1,b=2, sorted.
func mapText[V any](m map[string]V) string {
	var text []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		text = append(text, fmt.Sprintf("%s=%v", name, m[name]))
	}
	return strings.Join(text, ",")
}
