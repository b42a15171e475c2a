package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"atoll.dev/cluster"
)

// road are the bundled adapters, which bring a cluster into being.
var road = []string{
	string(cluster.AdapterPlacement), string(cluster.AdapterPullSecret), string(cluster.AdapterHostedCluster),
	string(cluster.AdapterNodePool), string(cluster.AdapterCredential),
}

// requirement is an adapter that the home's own entities require.
type requirement struct{ kind, adapter string }

// requirements reads the home's own entities.yaml; false if there is none, or if
// it cannot be read, which the lifecycle manager reports.
func (t topology) requirements() (all []requirement, own bool) {
	data, err := os.ReadFile(t.home.Path("entities.yaml"))
	if err != nil {
		return nil, false
	}
	var doc struct {
		Entities []struct {
			Kind     string
			Required []string `yaml:"required_adapters"`
		}
	}
	if yaml.Unmarshal(data, &doc) != nil {
		return nil, false
	}
	for _, e := range doc.Entities {
		for _, name := range e.Required {
			all = append(all, requirement{e.Kind, name})
		}
	}
	return all, true
}

// bundled are the adapters that a region runs of itself: the road of a cluster,
// as far as entities of its own require it. Nobody waits for an adapter that is
// not required, so what it made would stay behind when its cluster goes.
func (t topology) bundled() []string {
	required, own := t.requirements()
	if !own {
		return road
	}
	return slices.DeleteFunc(slices.Clone(road), func(name string) bool {
		return !slices.ContainsFunc(required, func(r requirement) bool { return r.adapter == name })
	})
}

// added are the names of the adapters in the home's directory adapters. One whose
// config cannot be read has its directory's name; the adapter process reports it.
func (t topology) added() (names []string, err error) {
	dir := t.home.Path("adapters")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name(), "config.yaml"))
		if err != nil {
			continue
		}
		var doc struct{ Adapter struct{ Name string } }
		if yaml.Unmarshal(data, &doc) != nil || doc.Adapter.Name == "" {
			doc.Adapter.Name = e.Name()
		}
		names = append(names, doc.Adapter.Name)
	}
	return names, nil
}

// hasAdapters says whether the region runs any adapter.
func (t topology) hasAdapters() bool {
	added, err := t.added()
	return err != nil || len(added) > 0 || len(t.bundled()) > 0
}

// checkAdapters looks for the adapters that the home's own entities require. A
// region that runs none of them is an error. One that runs some gets a note, since
// an adapter may run elsewhere and connect to the region.
func (t topology) checkAdapters() (note string, err error) {
	required, _ := t.requirements()
	runs, err := t.added()
	if err != nil {
		return "", fmt.Errorf("reading the home's adapters: %w", err)
	}
	runs = append(runs, t.bundled()...)
	var missing []string
	for _, r := range required {
		if !slices.Contains(runs, r.adapter) {
			missing = append(missing, fmt.Sprintf("kind %s requires the adapter %s", r.kind, r.adapter))
		}
	}
	if len(missing) == 0 {
		return "", nil
	}
	note = fmt.Sprintf("%s: %s, which is neither bundled (%s) nor in %s", t.home.Path("entities.yaml"),
		strings.Join(missing, ", "),
		strings.Join(road, ", "), t.home.Path("adapters"))
	if len(runs) == 0 {
		return "",
			fmt.Errorf(
				"%s; put its config.yaml and task.yaml into a directory there, or take it out of required_adapters",
				note)
	}
	return note, nil
}
