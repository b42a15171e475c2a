package gitops

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Load reads a tree and returns the Fleet that it declares. dir is the name that
// positions and errors give the tree, such as config. The error joins all mistakes,
// each with its file and line; with an error there is no Fleet.
func Load(tree fs.FS, dir string) (Fleet, error) {
	l := loader{tree: tree, dir: dir}
	if _, err := fs.Stat(tree, shardsFile); err == nil {
		if _, err := fs.Stat(tree, "defaults.yaml"); err == nil {
			return Fleet{}, fmt.Errorf("%s has a %s, which declares all regions, and a defaults.yaml, which begins a tree; "+
				"remove one", dir, shardsFile)
		}
		return l.shards()
	}
	defaults, ok := l.file("defaults.yaml", settingsShape)
	if !ok && len(l.mistakes) == 0 {
		return Fleet{}, fmt.Errorf("%s has neither a defaults.yaml nor a %s; is it the configuration's directory?", dir,
			shardsFile)
	}
	sectors := map[EnvironmentName][]SectorName{}
	var regions []declared
	for _, environment := range l.folders() {
		order, found := l.environment(environment, defaults)
		sectors[environment] = order
		regions = append(regions, found...)
	}
	if len(sectors) == 0 && len(l.mistakes) == 0 {
		return Fleet{}, fmt.Errorf("%s declares no environment; add %s", dir, path.Join(dir, "ENVIRONMENT",
			"environment.yaml"))
	}
	f, err := newFleet(sectors, regions)
	if err := errors.Join(append(l.mistakes, err)...); err != nil {
		return Fleet{}, err
	}
	return f, nil
}

// loader reads the files of a tree and gathers their mistakes.
type loader struct {
	tree     fs.FS
	dir      string
	regions  []string // of an environment, which are read; nil: all
	mistakes []error
}

func (l *loader) addMistake(err error) { l.mistakes = append(l.mistakes, err) }

// file reads and checks a file. ok is false when there is none, or with mistakes.
func (l *loader) file(name string, s *shape) (n *node, ok bool) {
	data, err := fs.ReadFile(l.tree, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false
	}
	if err == nil {
		n, err = parse(path.Join(l.dir, name), data)
	}
	if err == nil && s != nil {
		err = s.check(n)
	}
	if err != nil {
		l.addMistake(err)
		return nil, false
	}
	return n, true
}

// folders returns the environments: the directories of the tree.
func (l *loader) folders() (names []EnvironmentName) {
	for _, e := range l.entries(".") {
		switch name := e.Name(); {
		case e.IsDir():
			if err := checkName(Position{path.Join(l.dir, name), 1}, "environment", name); err != nil {
				l.addMistake(err)
				continue
			}
			names = append(names, EnvironmentName(name))
		case name != "defaults.yaml" && isYAML(name):
			l.addMistake(Position{path.Join(l.dir, name), 1}.errorf("nothing reads this file; known are defaults.yaml and %s",
				shardsFile))
		}
	}
	return names
}

// isLink reports whether an entry is a symbolic link, which is a mistake: the link may leave the tree,
// and a revision of Git has only its text.
func (l *loader) isLink(e fs.DirEntry, dir string) bool {
	if e.Type()&fs.ModeSymlink == 0 {
		return false
	}
	l.addMistake(Position{path.Join(l.dir, dir, e.Name()), 1}.errorf("this is a symbolic link; put the file here"))
	return true
}

// entries returns the entries of a directory, without hidden files and symbolic links; none for a directory that does
// not exist.
func (l *loader) entries(dir string) (all []fs.DirEntry) {
	entries, err := fs.ReadDir(l.tree, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.addMistake(fmt.Errorf("reading %s: %w", path.Join(l.dir, dir), err))
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && !l.isLink(e, dir) {
			all = append(all, e)
		}
	}
	return all
}

// checkEntries refuses directories and YAML files of an environment that nothing reads, such as region for regions:
// the regions in it would be missing, and their rendered files would be removed.
func (l *loader) checkEntries(dir string) {
	for _, e := range l.entries(dir) {
		switch name := e.Name(); {
		case e.IsDir() && name != "sectors" && name != "regions", !e.IsDir() && isYAML(name) && name != "environment.yaml":
			l.addMistake(Position{path.Join(l.dir, dir, name), 1}.errorf(
				"nothing reads this; known are environment.yaml, sectors and regions"))
		}
	}
}

func isYAML(name string) bool {
	return strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".yml")
}

// environment reads one environment: its sectors in their order, and its regions.
func (l *loader) environment(name EnvironmentName, defaults *node) ([]SectorName, []declared) {
	dir := string(name)
	l.checkEntries(dir)
	file := path.Join(dir, "environment.yaml")
	settings, ok := l.file(file, environmentShape)
	if _, err := fs.Stat(l.tree, file); errors.Is(err, fs.ErrNotExist) {
		l.addMistake(Position{path.Join(l.dir, file), 1}.errorf("the file is missing; it lists the sectors of the " +
			"environment"))
	}
	if !ok {
		return nil, nil
	}
	order := l.sectors(settings)
	bySector := map[SectorName]*node{}
	for _, sector := range l.files(path.Join(dir, "sectors")) {
		file := path.Join(dir, "sectors", sector+".yaml")
		n, ok := l.file(file, settingsShape)
		if ok && !slices.Contains(order, SectorName(sector)) {
			l.addMistake(n.at.errorf("%s lists no sector %s", settings.at.File, sector))
		}
		bySector[SectorName(sector)] = n
	}
	base := settings.without("sectors")
	names := l.regions
	if names == nil {
		names = l.files(path.Join(dir, "regions"))
	}
	var regions []declared
	for _, region := range names {
		n, ok := l.file(path.Join(dir, "regions", region+".yaml"), regionShape)
		if !ok {
			continue
		}
		sector, err := sectorOf(n, order, settings.at.File)
		if err != nil {
			l.addMistake(err)
			continue
		}
		regions = append(regions, declared{
			environment: name, name: RegionName(region), sector: sector, at: n.at,
			levels:   []*node{defaults, base, bySector[sector], n.without("sector", "managementClusters")},
			clusters: n.get("managementClusters"),
		})
	}
	return order, regions
}

// sectors returns the sectors that an environment lists.
func (l *loader) sectors(environment *node) (order []SectorName) {
	listed := environment.get("sectors")
	if listed == nil || listed.kind != list || len(listed.items) == 0 {
		l.addMistake(environment.at.errorf("the environment lists no sectors; add sectors: [NAME, ...]"))
		return nil
	}
	for _, item := range listed.items {
		name := SectorName(item.value.(string))
		if err := checkName(item.at, "sector", string(name)); err != nil {
			l.addMistake(err)
		}
		if slices.Contains(order, name) {
			l.addMistake(item.at.errorf("the sector %s is listed twice", name))
		}
		order = append(order, name)
	}
	return order
}

// sectorOf returns the sector that a region names.
func sectorOf(region *node, order []SectorName, environment string) (SectorName, error) {
	named := region.get("sector")
	if named == nil || named.kind == deleted {
		return "", region.at.errorf("the region names no sector; %s lists %s", environment, joined(order))
	}
	sector := SectorName(named.value.(string))
	if !slices.Contains(order, sector) {
		return "", named.at.errorf("%s lists no sector %s; it lists %s", environment, sector, joined(order))
	}
	return sector, nil
}

func joined(names []SectorName) string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = string(n)
	}
	return strings.Join(texts, ", ")
}

// files returns the names of a directory's files without .yaml. A directory that is
// not there has none.
func (l *loader) files(dir string) (names []string) {
	for _, e := range l.entries(dir) {
		name, ok := strings.CutSuffix(e.Name(), ".yaml")
		switch {
		case ok && !e.IsDir():
			names = append(names, name)
		case e.IsDir() || isYAML(e.Name()):
			l.addMistake(Position{path.Join(l.dir, dir, e.Name()), 1}.errorf("nothing reads this; name the file NAME.yaml"))
		}
	}
	return names
}
