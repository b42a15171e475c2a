package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"atoll.dev/gitops"
)

// renderedChange has the changes that an effect makes in the rendered files (nil removes a file), the fleet after
// it, and a text for each git.revision that was not checked, or not as the remote has it.
type renderedChange struct {
	files     map[string][]byte
	declared  gitops.Fleet
	unchecked []string
}

// renderEffect renders the targets' regions before and after the edits of an effect, and returns the change. A region
// that nobody has rendered yet gets all its files. It renders no other regions.
func (d *Driver) renderEffect(ctx context.Context, r snapshot, changed Tree, e Effect) (c renderedChange, err error) {
	before, err := renderTargets(r.rollout, r.declared, e.Targets)
	if err != nil {
		return c, err
	}
	names := make([]gitops.RegionName, 0, len(e.Targets))
	for _, region := range regionNamesOf(e.Targets) {
		names = append(names, gitops.RegionName(region))
	}
	c.declared, err = r.declared.Reload(changed.Files, changed.Dir, gitops.EnvironmentName(r.rollout.Environment), names)
	if err != nil {
		return c, fmt.Errorf("the change is not valid: %w", err)
	}
	if e.Kind == Apply { // a revert needs no check: the regions have run with the earlier values
		if c.unchecked, err = changed.checkCharts(fleetOfTargets(r.rollout, c.declared, e.Targets)); err != nil {
			return c, err
		}
	}
	after, err := renderTargets(r.rollout, c.declared, e.Targets)
	if err != nil {
		return c, err
	}
	c.files, err = d.changedFiles(ctx, r, e, before, after)
	return c, err
}

// showUnchecked shows those of the texts about revisions that are not yet in known, and returns known with them.
// Texts that differ in file and line only are about the same revision: each region has the pin of a rollout in its
// own file.
func (d *Driver) showUnchecked(known, texts []string) []string {
	known = slices.Clone(known)
	for _, text := range texts {
		_, about, _ := strings.Cut(text, ": ")
		if !slices.ContainsFunc(known, func(k string) bool { return strings.HasSuffix(k, ": "+about) }) {
			d.show(text)
			known = append(known, text)
		}
	}
	return known
}

// changedFiles returns the rendered files that an effect changes in the regions of its targets; nil removes a file.
func (d *Driver) changedFiles(ctx context.Context, r snapshot, e Effect, before, after gitops.Files) (map[string][]byte,
	error) {
	regions := regionNamesOf(e.Targets)
	committed, err := d.Repository.Tree(ctx, r.commit, path.Join(d.Rendered, r.rollout.Environment), regions...)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	isWhole := e.HandEdits == OverwriteHandEdits // also files that the effect does not change, which somebody has edited
	for _, region := range regions {
		dir := path.Join(r.rollout.Environment, region)
		isRendered, err := d.checkRendered(committed, region, e, dir, before)
		if err != nil {
			return nil, err
		}
		for name, data := range after {
			if strings.HasPrefix(name, dir+"/") && (isWhole || !isRendered ||
				!bytes.Equal(data, before[name])) {
				files[path.Join(d.Rendered, name)] = data
			}
		}
	}
	for name := range before {
		if _, still := after[name]; !still {
			files[path.Join(d.Rendered, name)] = nil
		}
	}
	return files, nil
}

// checkRendered reports whether the commit has rendered files of a region, in dir below the rendered files. It
// returns an error when the rendered files of the region differ from its configuration: the rollout would deploy edits,
// too, that somebody has committed without rendering. In a region that nobody has rendered, it returns an error when a
// file without the marker of rendered files would be replaced. A revert that does not refuse hand edits gets neither
// error.
func (d *Driver) checkRendered(committed fs.FS, region string, e Effect, dir string, want gitops.Files) (bool, error) {
	_, err := fs.Stat(committed, path.Join(region, "region.yaml"))
	isRendered := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if e.Kind == Restore && e.HandEdits != RefuseHandEdits {
		return isRendered, nil
	}
	var edited error // the first difference
	for _, name := range slices.Sorted(maps.Keys(want)) {
		below, isOfRegion := strings.CutPrefix(name, dir+"/")
		if !isOfRegion {
			continue
		}
		have, err := fs.ReadFile(committed, path.Join(region, below))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		switch file := path.Join(d.Rendered, name); {
		case edited != nil:
		case err == nil && !gitops.IsRendered(have):
			edited = fmt.Errorf("%s:1: this file was not rendered and is in the way", file)
		case isRendered && !bytes.Equal(have, want[name]):
			edited = errors.New(gitops.Difference{Path: file, Before: have, After: want[name]}.FirstLine())
		}
	}
	switch {
	case edited != nil && e.Kind == Restore:
		return false, errors.Join(edited, ErrHandEdits)
	case edited != nil:
		return false, fmt.Errorf("%w; move such a file, run `atoll config render`, commit and push what it changes, and run "+
			"the rollout again", edited)
	}
	return isRendered, nil
}

// regionNamesOf returns the names of the regions of targets, sorted, each once.
func regionNamesOf(targets []Target) (regions []string) {
	for _, t := range targets {
		regions = append(regions, t.Region())
	}
	slices.Sort(regions)
	return slices.Compact(regions)
}

// renderTargets renders the regions of targets and no other ones.
func renderTargets(r Rollout, fleet gitops.Fleet, targets []Target) (gitops.Files, error) {
	return gitops.Render(fleetOfTargets(r, fleet, targets))
}

// fleetOfTargets returns the fleet with the regions of targets and no other ones.
func fleetOfTargets(r Rollout, fleet gitops.Fleet, targets []Target) gitops.Fleet {
	isNamed := map[string]bool{}
	for _, t := range targets {
		isNamed[t.Region()] = true
	}
	some := gitops.Environment{Name: gitops.EnvironmentName(r.Environment)}
	for _, e := range fleet.Environments {
		for _, region := range e.Regions {
			if string(e.Name) == r.Environment && isNamed[string(region.Name)] {
				some.Regions = append(some.Regions, region)
			}
		}
	}
	return gitops.Fleet{Environments: []gitops.Environment{some}}
}
