package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What the charts say about images is true of those that are built: names, user, programs and releases.
func TestTheChartsNameWhatTheImagesHave(t *testing.T) {
	var charts strings.Builder
	err := filepath.WalkDir("../charts", func(path string, d os.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeType == 0 && filepath.Ext(path) != ".md" {
			charts.Write(mustRead(t, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		pattern string
		allowed []string
		least   int
	}{
		{`\brunAs(?:User|Group): (.*)`, []string{"65532"}, 6},
		{`\bfsGroup: (.*)`, []string{"65532"}, 3},
		{`\brepository: ([\w./-]+)`, []string{"atoll", "atoll-hosting"}, 3},
		{`\bcommand: \[([^],]+)`, []string{"atoll"}, 5},
		{`\bcommand:\n\s*- (.*)`, []string{"atoll"}, 1},
		{`\breleases: \{"[\d.]+": ([^}]*)\}`, []string{"/" + programDir + "/atoll-kube"}, 1},
	} {
		found := regexp.MustCompile(c.pattern).FindAllStringSubmatch(charts.String(), -1)
		if len(found) < c.least {
			t.Errorf("%s: found %d times in the charts, want %d", c.pattern, len(found), c.least)
		}
		for _, match := range found {
			if !slices.Contains(c.allowed, match[1]) {
				t.Errorf("the charts have %q, want one of %v", match[0], c.allowed)
			}
		}
	}
	if !slices.Contains(filepath.SplitList(searchPath), "/"+programDir) {
		t.Errorf("the charts call atoll without its directory, which PATH=%s does not name", searchPath)
	}
}
