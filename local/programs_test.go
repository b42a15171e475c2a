package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/gitops"
	"atoll.dev/internal/quick"
)

// writePrograms writes programs that say what they are, and do nothing else.
func writePrograms(t *testing.T, dir, version string, schema int, kubernetes string) Binaries {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	bin := Binaries{Atoll: filepath.Join(dir, "atoll"), Kube: filepath.Join(dir, "atoll-kube"), KubeVersion: kubernetes}
	for file, text := range map[string]string{
		bin.Atoll: fmt.Sprintf("[ \"$*\" = describe-program ] && echo '{\"version\": %q, \"schemas\": {\"clm\": %d}}'",
			version, schema),
		bin.Kube: fmt.Sprintf("[ \"$*\" = version ] && echo v%s", kubernetes),
	} {
		if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// declaredVersion is a region whose third line is the version of Atoll.
func declaredVersion(t *testing.T, version string) gitops.Declaration {
	t.Helper()
	text := "environment: e\nregion: r\nversions: {atoll: " + version + "}\n"
	d, err := gitops.ParseDeclaration("deploy/e/r/region.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestTheDeclaredVersionChoosesThePrograms: the own programs when they have the version, else those in the directory.
// What is refused has the file and the line of the version, and says what to do.
func TestTheDeclaredVersionChoosesThePrograms(t *testing.T) {
	top := t.TempDir()
	own := writePrograms(t, filepath.Join(top, "own"), "1.5.0", 7, "1.36.3")
	dir := filepath.Join(top, "programs")
	for _, p := range []struct {
		dir, version string
		schema       int
		kubernetes   string
	}{{"1.4.9", "1.4.9", 7, "1.36.3"}, {"1.4.2", "1.4.2", 6, "1.36.3"}, {"1.5.1", "1.5.1", 8, "1.35.7"},
		{"1.6.0", "1.6.0", 8, "1.37.0"}, {"mistaken", "1.4.2", 7, "1.36.3"}} {
		writePrograms(t, filepath.Join(dir, p.dir), p.version, p.schema, p.kubernetes)
	}
	silent := filepath.Join(dir, "silent")
	writePrograms(t, silent, "silent", 7, "1.36.3")
	if err := os.WriteFile(filepath.Join(silent, "atoll"), []byte("#!/bin/sh\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	newest := &Predecessor{"1.5.0", map[string]int{"clm": 7}, "1.36.3"}
	for _, c := range []struct {
		version, dir string
		newest       *Predecessor
		want         string // the program, or a part of the error
	}{
		{"1.5.0", "", nil, own.Atoll},
		{"1.5.0", dir, newest, own.Atoll},
		{"''", dir, newest, own.Atoll},
		{"1.6.0", dir, newest, filepath.Join(dir, "1.6.0", "atoll")},
		{"1.4.9", dir, newest, filepath.Join(dir, "1.4.9", "atoll")}, // back, with the same databases
		{"1.4.2", dir, nil, filepath.Join(dir, "1.4.2", "atoll")},
		{"1.7.0", "", nil, "this program has the version 1.5.0: put atoll and atoll-kube of 1.7.0 into DIR/1.7.0, and " +
			"name DIR with --programs"},
		{"1.7.0", dir, nil, "put atoll and atoll-kube of 1.7.0 into " + filepath.Join(dir, "1.7.0") + " (" + dir +
			" has 1.4.2, 1.4.9, 1.5.1, 1.6.0, mistaken, silent)"},
		{"1.4.2", dir, newest, "the databases of the region do not go back: their schema clm has the version 7, and 1.4.2 " +
			"knows 6; declare 1.5.0 or a newer version"},
		{"1.4.2", dir, &Predecessor{Schemas: map[string]int{"clm": 7}}, "knows 6; declare a newer version"},
		{"1.5.1", dir, newest, "have data of Kubernetes 1.36.3, and 1.5.1 has 1.35.7; declare 1.5.0 or a newer version"},
		{"mistaken", dir, nil, "has the version 1.4.2: put the programs of mistaken into"},
		{"silent", dir, nil, "does not print its version"},
		{"../own", dir, nil, "that is no version"},
		{"..", dir, nil, "that is no version"},
	} {
		before := RegionPrograms{Dir: c.dir}
		after, is, err := before.choose(t.Context(), declaredVersion(t, c.version), c.newest, []Binaries{own})
		switch {
		case filepath.IsAbs(c.want) && (err != nil || after.Chosen.Atoll != c.want || after.Dir != c.dir):
			t.Errorf("%s: %+v, %v, want %s", c.version, after.Chosen, err, c.want)
		case filepath.IsAbs(c.want) && (is.Schemas["clm"] == 0 || is.Kubernetes != after.Chosen.KubeVersion):
			t.Errorf("%s: the programs are %+v", c.version, is)
		case !filepath.IsAbs(c.want) && (err == nil || !strings.Contains(err.Error(), c.want) ||
			!strings.HasPrefix(err.Error(), "deploy/e/r/region.yaml:3: versions.atoll is ")):
			t.Errorf("%s: %v, want %s", c.version, err, c.want)
		case err != nil:
			if difference := cmp.Diff(before, after); difference != "" {
				t.Errorf("%s: a refused version changes the programs: %s", c.version, difference)
			}
		}
	}
	after, _, err := RegionPrograms{Dir: dir}.choose(t.Context(), declaredVersion(t, "1.6.0"), nil, []Binaries{own})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := after.Chosen.releases(), []string{"1.35.7", "1.36.3", "1.37.0"}; !slices.Equal(got, want) {
		t.Errorf("the machine has the releases %v, want %v", got, want)
	}
}

// TestAnotherVersionReplacesEachProcess: with programs of another version each process of the region but the database
// is another one, also where the new version has the path of the old one.
func TestAnotherVersionReplacesEachProcess(t *testing.T) {
	h, st := newHome(t)
	st.Clusters = names{"mc01-r"}
	if err := h.assignPorts(st.Ports, portNames(st)); err != nil {
		t.Fatal(err)
	}
	first := Binaries{Atoll: "/p/1/atoll", Kube: "/p/1/atoll-kube", KubeVersion: "1.36.3", Version: "1"}
	second, inPlace := first, first
	second.Atoll, second.Kube, second.Version = "/p/2/atoll", "/p/2/atoll-kube", "2"
	inPlace.Version = "2"
	before := newTopology(h, st, first).specs()
	for name, bin := range map[string]Binaries{"second": second, "in place": inPlace} {
		for i, s := range newTopology(h, st, bin).specs() {
			isKept := s.Name == postgresName || name == "in place" && s.Name == planeName("mc01-r")
			if s.hasSameInvocation(before[i]) != isKept {
				t.Errorf("%s: %s has the same invocation: %t", name, s.Name, !isKept)
			}
		}
	}
	st.Programs.Chosen = &second
	if err := h.saveState(st); err != nil {
		t.Fatal(err)
	}
	if read, err := h.State(); err != nil || read.programs(first).Atoll != second.Atoll ||
		h.Programs().Atoll != second.Atoll {
		t.Errorf("the home has the programs %+v, %v", read.programs(first), err)
	}
}

// TestAProgramThatLeavesAProcessBehindEnds: a process that holds the program's standard output hinders no apply.
func TestAProgramThatLeavesAProcessBehindEnds(t *testing.T) {
	quick.LeavesOut(t, "waits for a process that stays")
	program := filepath.Join(t.TempDir(), "atoll")
	left := filepath.Join(t.TempDir(), "left")
	script := fmt.Sprintf("#!/bin/sh\nsleep 300 &\necho $! > %s\necho v1.36.3\n", left)
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		text, _ := os.ReadFile(left)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	for what, ask := range map[string]func() error{
		"its version": func() error { _, err := kubeVersion(t.Context(), program); return err },
		"its schemas": func() error { _, err := describeProgram(t.Context(), program); return err },
	} {
		begun := time.Now()
		if err := ask(); err == nil {
			t.Errorf("a program whose output has no end has said %s", what)
		}
		if took := time.Since(begun); took > describeLimit/2 {
			t.Errorf("%s: the answer took %s", what, took)
		}
	}
}
