package adapter

import (
	"os"
	"path/filepath"
	"testing"
)

// Lint accepts each file that dry-runs, apart from problems that the authors' own documents
// describe.
func TestLintAcceptsCorrectFiles(t *testing.T) {
	names, err := filepath.Glob("testdata/dryrun/*.yaml")
	if err != nil || len(names) < 4 {
		t.Fatal(names, err)
	}
	for _, config := range []string{"config.yaml", "maestro-config.yaml"} {
		for _, task := range map[string][]string{"config.yaml": {"namespace-task.yaml", "showcase-task.yaml"},
			"maestro-config.yaml": {"maestro-task.yaml"}}[config] {
			for _, f := range LintFiles("testdata/dryrun/"+config, "testdata/dryrun/"+task).Errors() {
				t.Error(f)
			}
		}
	}
}

func TestLintAcceptsTheRegionsAdapters(t *testing.T) {
	dirs, err := filepath.Glob("../adapters/*/config.yaml")
	if err != nil || len(dirs) < 3 {
		t.Fatal(dirs, err)
	}
	for _, config := range dirs {
		for _, f := range LintFiles(config, filepath.Join(filepath.Dir(config), "task.yaml")) {
			t.Error(f)
		}
	}
}

func TestLintNamesUnreadableFiles(t *testing.T) {
	found := LintFiles(filepath.Join(t.TempDir(), "absent.yaml"))
	if len(found) != 1 || len(found.Errors()) != 1 {
		t.Error(found)
	}
	name := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if found := LintFiles(name); len(found) != 1 || found[0].Message != "the file is empty" {
		t.Error(found)
	}
}

// Lint ends and does not fall over, whatever it reads.
func FuzzLint(f *testing.F) {
	for _, name := range []string{"namespace-task.yaml", "maestro-task.yaml", "showcase-task.yaml", "config.yaml"} {
		f.Add(string(readTestdata(f, name)))
	}
	f.Add(
		"resources: [{name: a, manifest: '{{ range $x := .a }}{{ with .b }}{{ template \"x\" }}{{ end }}{{ end }}', " +
			"discovery: {by_name: '{{/* c */}}'}}]")
	f.Add("params: [{name: a, source: {expression: 'lists.range(3).map(a, a)'}}]")
	f.Fuzz(func(t *testing.T, text string) {
		Lint([]string{"/a.yaml"}, files{"/a.yaml": text, "/maestro-work.yaml": text, "/maestro-status.yaml": text}.read)
	})
}
