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

// bundledAdapters are the adapters in this program, which create a cluster.
var bundledAdapters = []string{
	string(cluster.AdapterPlacement), string(cluster.AdapterPullSecret), string(cluster.AdapterHostedCluster),
	string(cluster.AdapterNodePool), string(cluster.AdapterCredential),
}

// requirement is an adapter that the home's own entities require.
type requirement struct{ kind, adapter string }

// requirements reads the required adapters from the home's own entities.yaml. The second result is
// false when the home has no such file, or an invalid one, which the lifecycle manager reports.
func (t topology) requirements() (required []requirement, hasOwnEntities bool) {
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
			required = append(required, requirement{e.Kind, name})
		}
	}
	return required, true
}

// adaptersToRun returns the bundled adapters that the region runs: all of them, or those that the
// home's own entities require. The lifecycle manager does not wait for an adapter that is not
// required; the objects of such an adapter would remain when their cluster is deleted.
func (t topology) adaptersToRun() []string {
	required, hasOwnEntities := t.requirements()
	if !hasOwnEntities {
		return bundledAdapters
	}
	return slices.DeleteFunc(slices.Clone(bundledAdapters), func(name string) bool {
		return !slices.ContainsFunc(required, func(r requirement) bool { return r.adapter == name })
	})
}

// homeAdapters returns the names of the adapters in the home's directory adapters. An adapter whose
// config is invalid has the name of its directory; the adapter process reports the mistake.
func (t topology) homeAdapters() (names []string, err error) {
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

// runsAdapters reports whether the region runs any adapter.
func (t topology) runsAdapters() bool {
	own, err := t.homeAdapters()
	return err != nil || len(own) > 0 || len(t.adaptersToRun()) > 0
}

// checkAdapters looks for the adapters that the home's own entities require. When some are missing
// it returns a warning, since an adapter may run elsewhere and connect to the region. When the region
// runs no adapter at all it returns an error.
func (t topology) checkAdapters() (warning string, err error) {
	required, _ := t.requirements()
	runningAdapters, err := t.homeAdapters()
	if err != nil {
		return "", fmt.Errorf("reading the home's adapters: %w", err)
	}
	runningAdapters = append(runningAdapters, t.adaptersToRun()...)
	var missing []string
	for _, r := range required {
		if !slices.Contains(runningAdapters, r.adapter) {
			missing = append(missing, fmt.Sprintf("kind %s requires the adapter %s", r.kind, r.adapter))
		}
	}
	if len(missing) == 0 {
		return "", nil
	}
	warning = fmt.Sprintf("%s: %s, which is neither bundled (%s) nor in %s", t.home.Path("entities.yaml"),
		strings.Join(missing, ", "),
		strings.Join(bundledAdapters, ", "), t.home.Path("adapters"))
	if len(runningAdapters) == 0 {
		return "",
			fmt.Errorf(
				"%s; put its config.yaml and task.yaml into a directory there, or take it out of required_adapters",
				warning)
	}
	return warning, nil
}
