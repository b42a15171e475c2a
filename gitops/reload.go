package gitops

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"slices"
)

// Reload returns the fleet with some regions of an environment as a tree declares them now. A region without a file is
// not in it. Reload reads these regions only. Its result is that of Load, provided that the tree differs from that of
// the fleet in the files of these regions only.
func (f Fleet) Reload(tree fs.FS, dir string, environment EnvironmentName, regions []RegionName) (Fleet, error) {
	if _, err := fs.Stat(tree, shardsFile); err == nil {
		return Load(tree, dir)
	}
	l := loader{tree: tree, dir: dir}
	defaults, _ := l.file("defaults.yaml", settingsShape)
	named := []string{} // not nil, which is all of them
	for _, name := range regions {
		file := path.Join(string(environment), "regions", string(name)+".yaml")
		switch _, err := fs.Stat(tree, file); {
		case err == nil:
			named = append(named, string(name))
		case !errors.Is(err, fs.ErrNotExist):
			return Fleet{}, err
		}
	}
	l.regions = named
	order, found := l.environment(environment, defaults)
	reloaded, err := newFleet(map[EnvironmentName][]SectorName{environment: order}, found)
	if err := errors.Join(append(l.mistakes, err)...); err != nil {
		return Fleet{}, err
	}
	next := Fleet{Environments: slices.Clone(f.Environments)}
	at := slices.IndexFunc(next.Environments, func(e Environment) bool { return e.Name == environment })
	if at < 0 {
		return Load(tree, dir)
	}
	e := &next.Environments[at]
	e.Regions = slices.DeleteFunc(slices.Clone(e.Regions), func(r Region) bool { return slices.Contains(regions, r.Name) })
	e.Regions = append(e.Regions, reloaded.Regions()...)
	slices.SortFunc(e.Regions, func(a, b Region) int { return cmp.Compare(a.Name, b.Name) })
	return next, next.checkAccounts()
}
