package gitops

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// ErrPinUnreadable: reading the commit of a git.revision has failed. It is no mistake of the configuration.
var ErrPinUnreadable = errors.New("reading the git.revision")

// declaredTarget is a cluster with the node of its settings, and the position where it is declared.
type declaredTarget struct {
	target
	own *node
	at  Position
}

// revisionAt returns the position that sets the git.revision of the cluster.
func (t declaredTarget) revisionAt() Position {
	if n := t.own.get("git", "revision"); n != nil {
		return n.at
	}
	return t.at
}

// valuesFile returns the path of the cluster's rendered values in the repository.
func (t target) valuesFile() string { return path.Join(t.settings.Git.Rendered, t.dir, "values.yaml") }

// declaredTargets returns a target for each regional cluster and each management cluster of the fleet.
func (f Fleet) declaredTargets() (targets []declaredTarget) {
	for _, region := range f.Regions() {
		targets = append(targets, declaredTarget{target{region: region, typ: regionalCluster, id: region.regionalID(),
			dir: path.Join(region.Dir(), regionalCluster), settings: region.Settings}, region.settings, region.at})
		for _, cluster := range region.Clusters {
			targets = append(targets, declaredTarget{target{region: region, typ: managementCluster, id: cluster.ID(),
				dir: region.clusterDir(cluster), settings: cluster.Settings}, cluster.settings, cluster.at})
		}
	}
	return targets
}

// CheckPins checks the clusters that have a git.revision as Helm will: by the charts of that commit, with the values
// that are rendered in that commit, and with what the configuration knows of the cluster now. unchecked has a text for
// each revision that is not checked, or not as the remote has it. The error joins all mistakes, each at the line of the
// git.revision. Without mistakes it is an ErrPinUnreadable when a commit cannot be read.
func (r Repository) CheckPins(f Fleet) (unchecked []string, err error) {
	if r.Pinned == nil {
		return nil, nil
	}
	pinned := map[string][]declaredTarget{} // by revision
	for _, t := range f.declaredTargets() {
		if revision := t.settings.Git.Revision; revision != "" {
			pinned[revision] = append(pinned[revision], t)
		}
	}
	var mistakes, unreadable []error
	for _, revision := range slices.Sorted(maps.Keys(pinned)) {
		targets := pinned[revision]
		files, note, err := r.Pinned(revision, pathsOf(targets))
		if err != nil {
			unreadable = append(unreadable, fmt.Errorf("%w %s: %w", ErrPinUnreadable, revision, err))
			continue
		}
		if note != "" {
			unchecked = append(unchecked, fmt.Sprintf("%s: the git.revision %s is %s", targets[0].revisionAt(), revision, note))
		}
		if files == nil {
			continue
		}
		c := newChartChecker(files)
		for _, t := range targets {
			mistakes = append(mistakes, c.checkPinned(t))
		}
	}
	if err := errors.Join(mistakes...); err != nil {
		return unchecked, err
	}
	return unchecked, errors.Join(unreadable...)
}

// pathsOf returns the paths that a check of clusters with one git.revision reads in its commit, sorted.
func pathsOf(targets []declaredTarget) (paths []string) {
	for _, t := range targets {
		paths = append(paths, t.valuesFile())
		paths = append(paths, t.chartDirs()...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// checkPinned returns the mistakes of one cluster with the charts and the rendered values of its git.revision. A
// revision without charts installs nothing.
func (c *chartChecker) checkPinned(t declaredTarget) error {
	hasCharts := false
	for _, dir := range t.chartDirs() {
		found, err := fs.Glob(c.repository, path.Join(dir, "*"))
		if err != nil {
			return fmt.Errorf("reading charts in %s: %w", dir, err)
		}
		hasCharts = hasCharts || len(found) > 0
	}
	if !hasCharts {
		return nil
	}
	revision, at := t.settings.Git.Revision, t.revisionAt()
	data, err := fs.ReadFile(c.repository, t.valuesFile())
	if errors.Is(err, fs.ErrNotExist) {
		return at.errorf("the git.revision %s has no %s, without which Argo CD installs no chart in the cluster %s: name a "+
			"commit in which it is rendered", revision, t.valuesFile(), t.id)
	}
	if err != nil {
		return err
	}
	own := map[string]any{}
	if err := yaml.Unmarshal(data, &own); err != nil {
		return at.errorf("the git.revision %s: %s: %s", revision, t.valuesFile(), err)
	}
	return c.checkOnce(t.target, own, string(data), func(chart string, mistake *jsonschema.ValidationError) error {
		return at.errorf("in the git.revision %s the chart %s refuses %s, with the values of %s", revision, chart,
			textOfMistake(mistake), t.valuesFile())
	})
}
