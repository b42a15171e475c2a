package gitops

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"
)

// errNoPin: the repository does not have the commit of a git.revision.
var errNoPin = errors.New("is not in this clone, so its charts are not checked; push it, or run git fetch")

// pinnedTarget is a cluster with the settings that it has, and the position where it is declared.
type pinnedTarget struct {
	target
	own *node
	at  Position
}

// revisionAt returns the position that sets the git.revision of the cluster.
func (t pinnedTarget) revisionAt() Position {
	if n := t.own.get("git", "revision"); n != nil {
		return n.at
	}
	return t.at
}

// valuesFile returns the path of the cluster's rendered values in the repository.
func (t target) valuesFile() string { return path.Join(t.settings.Git.Rendered, t.dir, "values.yaml") }

// checkPinned checks clusters that have one git.revision as Helm will: by the charts of that commit, with the values
// that are rendered in that commit, and with what the configuration knows of the cluster now. Mistakes are at the line
// of the git.revision. The error is errNoPin when the repository does not have the commit.
func (r Repository) checkPinned(revision string, targets []pinnedTarget) error {
	var paths []string
	for _, t := range targets {
		paths = append(paths, t.valuesFile())
		paths = append(paths, t.chartDirs()...)
	}
	slices.Sort(paths)
	files, err := r.Pinned(revision, slices.Compact(paths))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: the git.revision %s %w", targets[0].revisionAt(), revision, errNoPin)
	}
	if err != nil {
		return fmt.Errorf("reading the git.revision %s: %w", revision, err)
	}
	c := newChartChecker(files)
	mistakes := make([]error, 0, len(targets))
	for _, t := range targets {
		mistakes = append(mistakes, c.checkPinned(t))
	}
	return errors.Join(mistakes...)
}

// checkPinned returns the mistakes of one cluster with the charts and the rendered values of its git.revision. A
// revision without charts installs nothing.
func (c *chartChecker) checkPinned(t pinnedTarget) error {
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
