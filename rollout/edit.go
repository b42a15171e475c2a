package rollout

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"atoll.dev/gitops"
)

// Tree is the configuration in one revision, with the files that a step has edited.
type Tree struct {
	Files fs.FS  // the directory of the configuration
	Dir   string // its name in errors
	// Repository has the charts, whose schemas values must pass. Without files nothing checks them.
	Repository gitops.Repository
}

// checkCharts refuses a fleet with values that a chart of the tree, or of a git.revision, refuses. It returns a text
// for each git.revision that is not checked, or not as the remote has it. Another try may read a git.revision that this
// one could not read.
func (t Tree) checkCharts(fleet gitops.Fleet) (unchecked []string, err error) {
	if t.Repository.Files == nil {
		return nil, nil
	}
	unchecked, err = t.Repository.CheckCharts(fleet)
	switch {
	case errors.Is(err, gitops.ErrPinUnreadable):
		return nil, unreachableError{err}
	case err != nil:
		return nil, fmt.Errorf("the change is not valid: %w", err)
	}
	return unchecked, nil
}

// editedFS is a tree with other contents of some files.
//
// fs.ReadFile, by which gitops reads files, prefers the method ReadFile to Open.
type editedFS struct {
	fs.FS
	edited map[string][]byte
}

func (t editedFS) ReadFile(name string) ([]byte, error) {
	if data, ok := t.edited[name]; ok {
		return data, nil
	}
	return fs.ReadFile(t.FS, name)
}

// Environment loads the fleet of the tree and returns the environment of the rollout.
func (t Tree) Environment(r Rollout) (gitops.Environment, gitops.Fleet, error) {
	fleet, err := gitops.Load(t.Files, t.Dir)
	if err != nil {
		return gitops.Environment{}, gitops.Fleet{}, err
	}
	return t.environmentOf(r, fleet)
}

// environmentOf returns the environment of the rollout in the fleet of the tree.
func (t Tree) environmentOf(r Rollout, fleet gitops.Fleet) (gitops.Environment, gitops.Fleet, error) {
	var names []string
	for _, e := range fleet.Environments {
		if string(e.Name) == r.Environment {
			if len(e.Sectors) == 0 {
				return e, fleet, r.errorf("environment", "it is one of shards, which have no sectors")
			}
			return e, fleet, nil
		}
		names = append(names, string(e.Name))
	}
	return gitops.Environment{}, gitops.Fleet{}, r.errorf("environment", "there is no environment %s; %s has %s",
		r.Environment, t.Dir, strings.Join(names, ", "))
}

// loadWithChange loads the fleet of a tree with the change in some targets. The error names their values that the
// configuration or a chart refuses.
func (t Tree) loadWithChange(r Rollout, targets []Target) (fleet gitops.Fleet, unchecked []string, err error) {
	if _, fleet, err = t.Environment(r); err != nil {
		return gitops.Fleet{}, nil, fmt.Errorf("the change is not valid: %w", err)
	}
	unchecked, err = t.checkCharts(fleetOfTargets(r, fleet, targets))
	return fleet, unchecked, err
}

// Undo are the edits that give targets their earlier values.
type Undo map[Target][]gitops.Edit

// Change sets the change of the rollout in the files of the targets. It returns the tree with the edits, the edited
// files by their paths below the configuration's directory, and the edits that undo them.
func (t Tree) Change(r Rollout, targets []Target) (Tree, gitops.Files, Undo, error) {
	undo := Undo{}
	edits := r.Change.Edits()
	tree, files, err := t.editFiles(r, targets, func(target Target, file string, data []byte) ([]byte, error) {
		var all []gitops.Edit
		for _, key := range slices.Sorted(maps.Keys(edits)) {
			all = append(all, gitops.Edit{Path: target.settingPath(key), Value: edits[key]})
		}
		after, before, err := gitops.EditFile(file, data, all)
		undo[target] = before
		return after, err
	})
	return tree, files, undo, err
}

// settingPath returns the path of a setting in the file of the target's region.
func (t Target) settingPath(key string) []string {
	path := strings.Split(key, ".")
	if t.Cluster() != "" {
		path = append([]string{"managementClusters", t.Cluster()}, path...)
	}
	return path
}

// regionFile returns the path of the file of the target's region, below the directory of the configuration.
func (t Target) regionFile(r Rollout) string {
	return path.Join(r.Environment, "regions", t.Region()+".yaml")
}

// editFiles calls change with the file of each target's region. It returns the tree after the changes, and the changed
// files.
func (t Tree) editFiles(r Rollout, targets []Target,
	change func(target Target, file string, data []byte) ([]byte, error)) (
	Tree, gitops.Files, error) {
	files := gitops.Files{}
	all := map[string][]byte{} // also of earlier edits, so that a tree never has more than one layer of them
	tree := t
	tree.Files = editedFS{t.Files, all}
	if earlier, isEdited := t.Files.(editedFS); isEdited {
		maps.Copy(all, earlier.edited)
		tree.Files = editedFS{earlier.FS, all}
	}
	for _, target := range targets {
		name := target.regionFile(r)
		data, err := fs.ReadFile(tree.Files, name)
		if err != nil {
			return Tree{}, nil, fmt.Errorf("the region %s is not declared any more: %w", target.Region(), err)
		}
		if files[name], err = change(target, path.Join(t.Dir, name), data); err != nil {
			return Tree{}, nil, err
		}
		all[name] = files[name]
	}
	return tree, files, nil
}

// Preview is the plan of a rollout with the changes in each region and cluster.
type Preview struct {
	Environment string    `json:"environment"`
	Begin       time.Time `json:"begin"`
	Revision    string    `json:"revision,omitempty"` // the commit of the change
	Regions     int       `json:"regions"`
	Clusters    int       `json:"clusters"`
	Steps       []Step    `json:"steps"`
	Expected    Duration  `json:"expected"`
	Longest     Duration  `json:"longest"`
	Frozen      bool      `json:"frozen,omitempty"`
	Approvals   int       `json:"approvals"`
	Unchanged   []Target  `json:"unchanged,omitempty"` // they have the values already
	Unchecked   []string  `json:"unchecked,omitempty"` // a text for each git.revision whose charts are not at hand, or old
}

// Step is a wave of a Preview.
type Step struct {
	Wave
	Period
	Expected Duration        `json:"expected"` // without soak and freezes
	Longest  Duration        `json:"longest"`  // the same, when each region needs its whole deadline
	Changes  []gitops.Change `json:"changes"`
	Restarts []string        `json:"restarts"` // what restarts in each of them
}

// Preview returns the plan for the tree and its changes, if the rollout begins at start.
func (t Tree) Preview(r Rollout, start time.Time) (Preview, error) {
	environment, before, err := t.Environment(r)
	if err != nil {
		return Preview{}, err
	}
	plan, err := newPlan(r, fleetOf(environment))
	if err != nil {
		return Preview{}, err
	}
	var all []Target
	isTarget := map[Target]bool{}
	for _, w := range plan.Waves {
		all = append(all, w.Targets...)
		for _, target := range w.Targets {
			isTarget[target] = true
		}
	}
	changed, _, _, err := t.Change(r, all)
	if err != nil {
		return Preview{}, err
	}
	after, unchecked, err := changed.loadWithChange(r, all)
	if err != nil {
		return Preview{}, err
	}
	byTarget := map[Target][]gitops.Change{}
	for _, c := range gitops.Compare(before, after) {
		target := targetOf(c, isTarget)
		byTarget[target] = append(byTarget[target], c)
	}
	schedule := plan.Schedule(start)
	p := Preview{Environment: r.Environment, Begin: start.UTC(), Regions: plan.Regions, Clusters: plan.Clusters,
		Expected: schedule.Expected, Longest: schedule.Longest, Frozen: schedule.Frozen,
		Unchecked: unchecked}
	for i, w := range plan.Waves {
		step := Step{Wave: w, Changes: []gitops.Change{}, Restarts: []string{}}
		step.Expected, step.Longest = plan.durations(w)
		if i < len(schedule.Waves) {
			step.Period = schedule.Waves[i]
		}
		for _, target := range w.Targets {
			if len(byTarget[target]) == 0 {
				p.Unchanged = append(p.Unchanged, target)
			}
			step.Changes = append(step.Changes, byTarget[target]...)
		}
		step.Restarts = restartedBy(step.Changes)
		if w.Approval {
			p.Approvals++
		}
		p.Steps = append(p.Steps, step)
	}
	return p, nil
}
