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

// rendered returns the rendered files of the targets' regions that differ after the edits of an effect. A region that
// nobody has rendered yet gets all its files.
func (d *Driver) rendered(ctx context.Context, r reading, changed Tree, e Effect) (map[string][]byte, error) {
	before, err := render(r.rollout, r.tree, e.Targets)
	if err != nil {
		return nil, err
	}
	after, err := render(r.rollout, changed, e.Targets)
	if err != nil {
		return nil, fmt.Errorf("the change is not valid: %w", err)
	}
	files := map[string][]byte{}
	for _, region := range regionsOf(e.Targets) {
		dir := path.Join(r.rollout.Environment, region)
		isRendered, err := d.checkRendered(ctx, r, e.Kind, dir, before)
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
func (d *Driver) checkRendered(ctx context.Context, r reading, kind EffectKind, dir string, want gitops.Files) (bool,
	error) {
	tree, err := d.Repository.Tree(ctx, r.commit, path.Join(d.Rendered, dir))
	if err != nil {
		return false, err
	}
	switch _, err := fs.Stat(tree, "region.yaml"); {
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
		have, err := fs.ReadFile(tree, below)
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
func render(r Rollout, t Tree, targets []Target) (gitops.Files, error) {
	environment, _, err := t.Environment(r)
	if err != nil {
		return nil, err
	}
	named := regionsOf(targets)
	environment.Regions = slices.DeleteFunc(slices.Clone(environment.Regions), func(region gitops.Region) bool {
		return !slices.Contains(named, string(region.Name))
	})
	return gitops.Render(gitops.Fleet{Environments: []gitops.Environment{environment}})
}
