package gitops

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"atoll.dev/internal/jsonvalue"
)

// Repository has the charts that values are checked by.
type Repository struct {
	// Files has the charts of the commit that the fleet is of, in git.charts.
	Files fs.FS
	// Pinned returns the files at and below some paths in the commit of a git.revision. note, if there is one, continues
	// the sentence "the revision is". files is nil when the repository does not have the commit, and note says why. The
	// error is one of reading; another try may succeed. Without Pinned, nothing pinned is checked.
	Pinned func(revision string, paths []string) (files fs.FS, note string, err error)
}

// CheckCharts checks the values of each cluster by the schemas of its charts, as Helm will: the values of the chart
// with those of the configuration over them. A chart that is not there, or that has no schema, checks nothing. A
// cluster with a git.revision is checked twice: its present values by the charts of the same commit, since a later
// git.revision takes both from one commit; and the values and charts of its git.revision, by CheckPins. The error joins
// all mistakes, each at the file and line that set the value; without mistakes it is that of CheckPins.
func (r Repository) CheckCharts(f Fleet) (unchecked []string, err error) {
	c := newChartChecker(r.Files)
	var mistakes []error
	for _, t := range f.declaredTargets() {
		mistakes = append(mistakes, c.check(t.target, t.own, t.at))
	}
	err = errors.Join(mistakes...)
	unchecked, pins := r.CheckPins(f)
	if err != nil && errors.Is(pins, ErrPinUnreadable) {
		return unchecked, err
	}
	return unchecked, errors.Join(err, pins)
}

// ChartDirs returns the directories of the repository that have the charts of the fleet, sorted.
func (f Fleet) ChartDirs() (dirs []string) {
	for _, r := range f.Regions() {
		dirs = append(dirs, path.Clean(r.Settings.Git.Charts))
		for _, c := range r.Clusters {
			dirs = append(dirs, path.Clean(c.Settings.Git.Charts))
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// chart is a chart with a schema.
type chart struct {
	name   string // its directory
	schema *jsonschema.Schema
	values map[string]any
}

// chartChecker checks values of clusters, equal ones once.
type chartChecker struct {
	repository fs.FS
	charts     map[string][]chart // by the directory that has them
	known      map[string]bool    // values that were checked, with their type of cluster, or mistakes that were found
}

func newChartChecker(files fs.FS) *chartChecker {
	return &chartChecker{repository: files, charts: map[string][]chart{}, known: map[string]bool{}}
}

// check returns the mistakes in the values of one cluster. settings are those of the cluster, which is declared at a
// position.
func (c *chartChecker) check(t target, settings *node, at Position) error {
	own := dataForType(t.settings.Values, t.typ)
	encoded, err := json.Marshal(own)
	if err != nil {
		return err
	}
	return c.checkOnce(t, own, string(encoded), func(chart string, mistake *jsonschema.ValidationError) error {
		return positionOf(settings, t.typ, mistake.InstanceLocation, at).errorf("the chart %s refuses %s", chart,
			textOfMistake(mistake))
	})
}

// checkOnce checks the values of a cluster by the schemas of its charts, and returns each mistake as an error that
// describe makes. own are the values of the cluster's type, and encoded is their JSON. Values that were checked for the
// same charts before are not checked again, so no mistake is returned twice.
func (c *chartChecker) checkOnce(t target, own map[string]any, encoded string,
	describe func(chart string, mistake *jsonschema.ValidationError) error) error {
	// Names of regions and clusters are checked elsewhere. With them no two clusters would have equal global values.
	global := t.identity()
	delete(global, "cluster")
	delete(global, "region")
	global["domain"] = t.settings.DNS.Domain
	encodedGlobal, err := json.Marshal(global)
	if err != nil {
		return err
	}
	charts := t.typ + " " + t.settings.Git.Charts + " "
	ownKey, globalKey := charts+encoded, charts+"global "+string(encodedGlobal)
	areOwnKnown := c.known[ownKey]
	if areOwnKnown && c.known[globalKey] {
		return nil
	}
	c.known[ownKey], c.known[globalKey] = true, true
	var mistakes []error
	for _, dir := range t.chartDirs() {
		charts, err := c.chartsIn(dir)
		if err != nil {
			return err
		}
		for _, chart := range charts {
			for _, mistake := range chart.mistakes(jsonvalue.Overlay(own, map[string]any{"global": t.identity()})) {
				at := mistake.InstanceLocation
				if isGlobal := len(at) > 0 && at[0] == "global"; areOwnKnown && !isGlobal {
					continue
				}
				if text := describe(chart.name, mistake); !c.known[text.Error()] {
					c.known[text.Error()] = true
					mistakes = append(mistakes, text)
				}
			}
		}
	}
	return errors.Join(mistakes...)
}

// chartDirs returns the directories whose charts the cluster installs.
func (t target) chartDirs() []string {
	return []string{path.Join(t.settings.Git.Charts, t.typ), path.Join(t.settings.Git.Charts, "shared")}
}

// chartsIn returns the charts with a schema in a directory of the repository.
func (c *chartChecker) chartsIn(dir string) ([]chart, error) {
	if charts, known := c.charts[dir]; known {
		return charts, nil
	}
	schemas, err := fs.Glob(c.repository, path.Join(dir, "*", "values.schema.json"))
	if err != nil {
		return nil, fmt.Errorf("reading charts in %s: %w", dir, err)
	}
	charts := []chart{}
	for _, file := range schemas {
		read, err := c.readChart(file)
		if err != nil {
			return nil, fmt.Errorf("reading the chart of %s: %w", file, err)
		}
		charts = append(charts, read)
	}
	c.charts[dir] = charts
	return charts, nil
}

// readChart reads the chart of a schema.
func (c *chartChecker) readChart(file string) (chart, error) {
	dir := path.Dir(file)
	data, err := fs.ReadFile(c.repository, file)
	if err != nil {
		return chart{}, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		return chart{}, err
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(file, document); err != nil {
		return chart{}, err
	}
	schema, err := compiler.Compile(file)
	if err != nil {
		return chart{}, err
	}
	values := map[string]any{}
	data, err = fs.ReadFile(c.repository, path.Join(dir, "values.yaml"))
	if err == nil {
		err = yaml.Unmarshal(data, &values)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return chart{name: dir, schema: schema, values: values}, err
}

// mistakes returns the mistakes that the schema of the chart finds in the chart's values with own over them.
func (c chart) mistakes(own map[string]any) []*jsonschema.ValidationError {
	encoded, err := json.Marshal(jsonvalue.Overlay(c.values, own))
	if err != nil {
		return nil // own was encoded before
	}
	values, err := jsonschema.UnmarshalJSON(bytes.NewReader(encoded))
	if err != nil {
		return nil
	}
	failed, is := errors.AsType[*jsonschema.ValidationError](c.schema.Validate(values))
	if !is {
		return nil
	}
	return deepestCauses(failed)
}

// deepestCauses returns the causes of a mistake that have no further cause.
func deepestCauses(failed *jsonschema.ValidationError) (all []*jsonschema.ValidationError) {
	if len(failed.Causes) == 0 {
		return []*jsonschema.ValidationError{failed}
	}
	for _, cause := range failed.Causes {
		all = append(all, deepestCauses(cause)...)
	}
	return all
}

// textOfMistake returns the path of a value and what is wrong with it.
func textOfMistake(mistake *jsonschema.ValidationError) string {
	what := strings.TrimSpace(mistake.Error())
	if _, after, found := strings.Cut(what, "': "); found {
		what = after
	}
	if len(mistake.InstanceLocation) == 0 {
		return "the values: " + what
	}
	return "the value " + strings.Join(mistake.InstanceLocation, ".") + ": " + what
}

// positionOf returns the position that set a value of Helm, or else that of the nearest value around it, or else that
// of the cluster.
func positionOf(settings *node, typ string, location []string, cluster Position) Position {
	for length := len(location); length > 0; length-- {
		for _, group := range []string{typ, "global"} {
			if n := settings.get(slices.Concat([]string{"values", group}, location[:length])...); n != nil {
				return n.at
			}
		}
	}
	return cluster
}
