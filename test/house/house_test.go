// Package house holds the rules of the repository as tests: who may import
// whom, one package comment for each package, and what a region may never
// hold. It has no code of its own; nothing imports it.
package house

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "atoll.dev"

type pkg struct {
	ImportPath   string
	Dir          string
	Name         string
	Imports      []string
	TestImports  []string
	XTestImports []string
	GoFiles      []string
	TestGoFiles  []string
	XTestGoFiles []string
}

// packages lists the main module's packages, by path below the module.
func packages(t *testing.T) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go", "list",
		"-json=ImportPath,Dir,Name,Imports,TestImports,XTestImports,GoFiles,TestGoFiles,XTestGoFiles", module+"/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string]pkg{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		found[strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")] = p
	}
	if len(found) < 10 {
		t.Fatalf("go list found %d packages only", len(found))
	}
	return found
}

var (
	tools = []string{"store", "backup", "bus", "pki", "search", "rules", "plane", "sni", "ops", "cluster", "release",
		"client", "gitops", "node", "envelope"}
	services = []string{"access", "clm", "fleet", "maestro", "sentinel", "adapter", "agent", "hosting",
		"rollout", "recovery", "front"}
)

// topFolder returns the first element of a package's path below the module, as the design's import rule names it.
func topFolder(path string) string {
	top, _, _ := strings.Cut(path, "/")
	return top
}

// mayImport reports whether one package of ours may import another by the import rule of the design.
func mayImport(from, to string) bool {
	fromTop, toTop := topFolder(from), topFolder(to)
	if fromTop == toTop && fromTop != "front" {
		return true
	}
	base := toTop == "api" || toTop == "internal"
	tool := slices.Contains(tools, toTop)
	switch {
	case fromTop == "api" || fromTop == "internal":
		return base
	case slices.Contains(tools, fromTop), fromTop == "local":
		return base || tool
	case fromTop == "front":
		return base || tool || to == "access" || to == "access/policy" || to == "access/audit" ||
			strings.HasPrefix(to, from+"/")
	case slices.Contains(services, fromTop):
		return base || tool
	case fromTop == "cli":
		return true
	case fromTop == "cmd":
		return toTop == "cli"
	case fromTop == "bench", fromTop == "sim", fromTop == "test":
		return true
	}
	return false
}

func TestPackagesImportOnlyWhatTheDesignAllows(t *testing.T) {
	for path, p := range packages(t) {
		for _, imp := range p.Imports {
			to, ours := strings.CutPrefix(imp, module+"/")
			if !ours {
				continue
			}
			if !mayImport(path, to) {
				t.Errorf("%s imports %s, which design section 3 does not allow", path, to)
			}
		}
		for _, imp := range p.Imports {
			if strings.HasPrefix(imp, "k8s.io/kubernetes") || strings.HasPrefix(imp, "go.etcd.io/etcd/server") {
				t.Errorf("%s imports %s: upstream Kubernetes stays in kube/, a module of its own", path, imp)
			}
		}
	}
}

func TestMayImportFollowsTheDesign(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"api/work", "store", false},
		{"internal/rest", "api/work", true},
		{"store", "internal/postgres", true},
		{"store", "maestro", false},
		{"maestro", "agent", false},
		{"front/rosa", "access", true},
		{"front/rosa", "access/audit", true},
		{"front/rosa", "maestro", false},
		{"front/rosa", "front/arm", false},
		{"local", "store", true},
		{"local", "maestro", false},
		{"cmd/atoll", "cli", true},
		{"cmd/atoll", "store", false},
	} {
		if got := mayImport(c.from, c.to); got != c.want {
			t.Errorf("mayImport(%s, %s) = %v", c.from, c.to, got)
		}
	}
}

func TestEveryPackageHasOnePackageComment(t *testing.T) {
	for path, p := range packages(t) {
		files := p.GoFiles
		if len(files) == 0 {
			files = append(p.TestGoFiles, p.XTestGoFiles...)
		}
		comments := 0
		for _, f := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, f), nil,
				parser.ParseComments|parser.PackageClauseOnly)
			if err != nil {
				t.Fatal(err)
			}
			if parsed.Doc != nil && !generated(parsed) {
				comments++
				if text := parsed.Doc.Text(); p.Name != "main" && !strings.HasPrefix(text, "Package "+p.Name+" ") {
					t.Errorf("%s: the package comment in %s does not begin with %q", path, f, "Package "+p.Name)
				}
			}
		}
		if comments != 1 {
			t.Errorf("%s has %d package comments, want 1", path, comments)
		}
	}
}

func generated(f *ast.File) bool {
	return ast.IsGenerated(f) || strings.Contains(f.Doc.Text(), "DO NOT EDIT")
}

// The holder of a management cluster's kubeconfig has a network path and rights; the region's
// services must have neither. They cannot read a kubeconfig (this test), and on one machine they
// get none (test/e2e).
func TestTheRegionCannotReadAKubeconfig(t *testing.T) {
	all := packages(t)
	var reaches func(path string, seen map[string]bool) string
	reaches = func(path string, seen map[string]bool) string {
		if seen[path] {
			return ""
		}
		seen[path] = true
		for _, imp := range all[path].Imports {
			if strings.HasPrefix(imp, "k8s.io/client-go") {
				return path + " imports " + imp
			}
			if to, ours := strings.CutPrefix(imp, module+"/"); ours {
				if found := reaches(to, seen); found != "" {
					return found
				}
			}
		}
		return ""
	}
	checked := 0
	for path := range all {
		switch topFolder(path) {
		case "access", "front", "clm", "fleet", "maestro", "sentinel", "store", "bus", "pki", "client":
			if strings.Contains(path, "test") {
				continue
			}
			checked++
			if found := reaches(path, map[string]bool{}); found != "" {
				t.Errorf("%s can reach a management cluster's API: %s", path, found)
			}
		}
	}
	if checked < 6 {
		t.Fatalf("only %d packages checked", checked)
	}
}

func TestNoTestSleeps(t *testing.T) {
	walkGo(t, func(path string, src []byte) {
		if strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(path, "house_test.go") &&
			bytes.Contains(src, []byte("time.Sleep(")) {
			t.Errorf("%s sleeps: wait on a condition or use testing/synctest", path)
		}
	})
}

// mostLines is the greatest length of a Go file, in lines. Generated files may be longer.
const mostLines = 400

func TestGoFilesHaveAtMost400Lines(t *testing.T) {
	walkGo(t, func(path string, src []byte) {
		if strings.HasSuffix(path, "_gen.go") || strings.HasSuffix(path, ".pb.go") {
			return
		}
		if n := bytes.Count(src, []byte("\n")); n > mostLines {
			t.Errorf("%s has %d lines, %d allowed: is it still one idea?", path, n, mostLines)
		}
	})
}

// The engine does what all adapters repeat, so that a task file has only the adapter's own decisions.
func TestTaskFilesHaveAtMost150Lines(t *testing.T) {
	files, err := filepath.Glob("../../adapters/*/task.yaml")
	if err != nil || len(files) < 7 {
		t.Fatalf("%d task files, %v", len(files), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(text, []byte("\n")); n > 150 {
			t.Errorf("%s has %d lines", file, n)
		}
	}
}

func walkGo(t *testing.T, visit func(path string, src []byte)) {
	t.Helper()
	files := 0
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin" || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		files++
		src, err := os.ReadFile(path)
		if err == nil {
			visit(path, src)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 50 {
		t.Fatalf("only %d Go files found", files)
	}
}
