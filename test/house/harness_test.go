package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// starters are the functions that start a part of a region, by package. A test takes these parts from test/testsite and
// test/testworld (decision 134), so that one place decides how they wait, keep their address and end.
var starters = map[string][]string{
	"adapter":            {"NewWorker"},
	"agent":              {"New"},
	"bus":                {"NewBroker"},
	"clm":                {"New", "Open"},
	"fleet":              {"New"},
	"internal/mosquitto": {"Start"},
	"internal/postgres":  {"Cluster"}, // a literal of it
	"maestro":            {"New"},
	"pki":                {"OpenCA"},
	"sentinel":           {"New"},
}

// ownStarts are the files of tests that start parts themselves, with their reason. A file that is not here takes them
// from the test world; a file that does so now leaves the list.
var ownStarts = map[string]string{
	"test/testsite/broker.go":   theWorld,
	"test/testsite/site.go":     theWorld,
	"test/testworld/adapter.go": theWorld,
	"test/testworld/agent.go":   theWorld,
	"test/testworld/clm.go":     theWorld,
	"test/testworld/maestro.go": theWorld,
	"internal/pgtest/pgtest.go": theWorld,

	"adapter/share_test.go":              ownPart,
	"adapter/worker_test.go":             ownPart,
	"agent/harness_test.go":              ownPart,
	"agent/kill_test.go":                 ownPart,
	"bus/broker_test.go":                 ownPart,
	"bus/gate_test.go":                   ownPart,
	"bus/harness_test.go":                ownPart,
	"clm/harness_test.go":                ownPart,
	"clm/metrics_test.go":                ownPart,
	"internal/postgres/postgres_test.go": ownPart,
	"maestro/grpc_auth_test.go":          ownPart,
	"maestro/harness_test.go":            ownPart,
	"maestro/kill_test.go":               ownPart,
	"pki/earlier_test.go":                ownPart,
	"pki/expiry_test.go":                 ownPart,
	"pki/pki_test.go":                    ownPart,
	"pki/revoke_test.go":                 ownPart,
	"pki/root_test.go":                   ownPart,
	"pki/servername_test.go":             ownPart,
	"sentinel/harness_test.go":           ownPart,
	"sentinel/interrupted_test.go":       ownPart,

	"backup/region/world_test.go":      "a PostgreSQL server that a test destroys and recovers from a copy",
	"bus/identity_test.go":             "an authority that revokes and expires; testsite imports bus",
	"fleet/harness_test.go":            "several fleets, each with the CLM that serves it; testworld imports fleet",
	"maestro/reporting_test.go":        "a CLM that Maestro reports to; testworld imports maestro",
	"test/clmfaults/clmfaults_test.go": "a reader of the database beside the processes that are killed",
	"test/clmfaults/site_test.go":      "what a process runs that the test kills; there is no test in it",
	"test/faults/site_test.go":         "what a process runs that the test kills; there is no test in it",
	"test/replicas/replicas_test.go":   "replicas of an adapter whose task and leases are the test",
}

const (
	theWorld = "the test world itself"
	ownPart  = "the part is the subject of the package's own tests"
)

func TestOnlyTheTestWorldStartsServices(t *testing.T) {
	found := map[string][]string{} // by file
	for dir, p := range packages(t) {
		if topFolder(dir) == "bench" {
			continue
		}
		files := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if topFolder(dir) == "test" || dir == "internal/pgtest" {
			files = append(files, p.GoFiles...)
		}
		for _, file := range files {
			parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, file), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			inside := ""
			if !slices.Contains(p.XTestGoFiles, file) {
				inside = dir
			}
			if starts := startsOf(parsed, inside); len(starts) > 0 {
				found[path.Join(dir, file)] = starts
			}
		}
	}
	for _, file := range slices.Sorted(maps.Keys(found)) {
		if ownStarts[file] == "" {
			t.Errorf("%s calls %s: take it from test/testsite or test/testworld (decision 134)", file,
				strings.Join(found[file], ", "))
		}
	}
	for _, file := range slices.Sorted(maps.Keys(ownStarts)) {
		if found[file] == nil {
			t.Errorf("%s starts no service: remove it from ownStarts", file)
		}
	}
}

// startsOf returns the starters that a file uses. inside is the package of the file, "" for an external test.
func startsOf(file *ast.File, inside string) (starts []string) {
	packageOf := map[string]string{} // by the name in the file
	for _, i := range file.Imports {
		to, err := strconv.Unquote(i.Path.Value)
		to, ours := strings.CutPrefix(to, module+"/")
		if err != nil || !ours || starters[to] == nil {
			continue
		}
		name := path.Base(to)
		if i.Name != nil {
			name = i.Name.Name
		}
		packageOf[name] = to
	}
	note := func(in, name string) {
		if text := in + "." + name; slices.Contains(starters[in], name) && !slices.Contains(starts, text) {
			starts = append(starts, text)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		var used ast.Expr
		switch n := n.(type) {
		case *ast.CallExpr:
			used = n.Fun
		case *ast.CompositeLit:
			used = n.Type
		}
		switch used := used.(type) {
		case *ast.Ident:
			note(inside, used.Name)
		case *ast.SelectorExpr:
			if x, ok := used.X.(*ast.Ident); ok {
				note(packageOf[x.Name], used.Sel.Name)
			}
		}
		return true
	})
	return starts
}
