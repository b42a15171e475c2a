package rollout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"atoll.dev/gitops"
)

// rendered returns the rendered files of the targets' regions that differ after the edits of an effect, and the fleet
// after them. A region that nobody has rendered yet gets all its files. The cost is that of these regions.
func (d *Driver) rendered(ctx context.Context, r reading, changed Tree, e Effect) (map[string][]byte, gitops.Fleet,
	error) {
	before, err := render(r.rollout, r.declared, e.Targets)
	if err != nil {
		return nil, gitops.Fleet{}, err
	}
	names := make([]gitops.RegionName, 0, len(e.Targets))
	for _, region := range regionsOf(e.Targets) {
		names = append(names, gitops.RegionName(region))
	}
	declared, err := r.declared.Reload(changed.Files, changed.Dir, gitops.EnvironmentName(r.rollout.Environment), names)
	if err != nil {
		return nil, gitops.Fleet{}, fmt.Errorf("the change is not valid: %w", err)
	}
	after, err := render(r.rollout, declared, e.Targets)
	if err != nil {
		return nil, gitops.Fleet{}, err
	}
	files, err := d.differing(ctx, r, e, before, after)
	return files, declared, err
}

// differing returns what an effect changes in the rendered files of its targets' regions; nil removes a file.
func (d *Driver) differing(ctx context.Context, r reading, e Effect, before, after gitops.Files) (map[string][]byte,
	error) {
	regions := regionsOf(e.Targets)
	committed, err := d.Repository.Tree(ctx, r.commit, path.Join(d.Rendered, r.rollout.Environment), regions...)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, region := range regions {
		dir := path.Join(r.rollout.Environment, region)
		isRendered, err := d.checkRendered(committed, region, e.Kind, dir, before)
		if err != nil {
			return nil, err
		}
		for name, data := range after {
			if strings.HasPrefix(name, dir+"/") && (!isRendered || !bytes.Equal(data, before[name])) {
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

// checkRendered reports whether a region is rendered in the commit, in a directory below that of rendered files. It
// refuses to change a region whose files are not what its configuration renders: the change would carry edits with it
// that somebody has committed without rendering. A revert does not wait for that.
func (d *Driver) checkRendered(committed fs.FS, region string, kind EffectKind, dir string, want gitops.Files) (bool,
	error) {
	switch _, err := fs.Stat(committed, path.Join(region, "region.yaml")); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil || kind != Apply:
		return err == nil, err
	}
	for name, data := range want {
		below, found := strings.CutPrefix(name, dir+"/")
		if !found {
			continue
		}
		have, err := fs.ReadFile(committed, path.Join(region, below))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
		if err != nil || !bytes.Equal(have, data) {
			return false, fmt.Errorf("%s is not what the configuration renders; run `atoll config render`, commit and "+
				"push what it changes, and run the rollout again", path.Join(d.Rendered, name))
		}
	}
	return true, nil
}

// regionsOf returns the regions of targets, sorted.
func regionsOf(targets []Target) (regions []string) {
	for _, t := range targets {
		regions = append(regions, t.Region())
	}
	slices.Sort(regions)
	return slices.Compact(regions)
}

// render renders the regions of targets.
func render(r Rollout, fleet gitops.Fleet, targets []Target) (gitops.Files, error) {
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
	return gitops.Render(gitops.Fleet{Environments: []gitops.Environment{some}})
}
