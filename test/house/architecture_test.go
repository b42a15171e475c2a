package house

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTheArchitecturePageNamesEveryFolder compares the table of folders in
// docs/architecture.md with the top folders of the repository.
func TestTheArchitecturePageNamesEveryFolder(t *testing.T) {
	text, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), "## What each folder is for\n")
	if !found {
		t.Fatal("docs/architecture.md has no section \"What each folder is for\"")
	}
	table, _, _ = strings.Cut(table, "\n## ")
	var named []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|").FindAllStringSubmatch(table, -1) {
		named = append(named, row[1])
	}
	cmd := exec.Command("git", "ls-files")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	var folders []string
	for path := range strings.Lines(string(out)) {
		if top, _, inside := strings.Cut(path, "/"); inside && !strings.HasPrefix(top, ".") &&
			!slices.Contains(folders, top) {
			folders = append(folders, top)
		}
	}
	for _, folder := range folders {
		if !slices.Contains(named, folder) {
			t.Errorf("docs/architecture.md does not say what %s/ is for", folder)
		}
	}
	for _, folder := range named {
		if !slices.Contains(folders, folder) {
			t.Errorf("docs/architecture.md describes %s/, which does not exist", folder)
		}
	}
}
