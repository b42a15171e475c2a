package cluster_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"atoll.dev/adapters"
	"atoll.dev/api/fleet"
	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
)

// otherWords are the words of task files that are neither condition types nor
// reasons of reports: statuses, conditions of HyperShift, the steps and phases of
// moves, and the reasons and kinds of the example adapters.
var otherWords = []string{
	"True", "False", "PUT", "Ready", "Issued", "Lost", "Degraded", "Progressing", "KubeAPIServerAvailable",
	"ValidReleaseImage", "ValidConfiguration",
	string(hypershift.MoveWithdrawn), string(hypershift.MoveFailed), string(fleet.Arrived), string(fleet.Stayed),
	string(fleet.Removed), string(fleet.Cancel), string(fleet.Removing), string(fleet.Ending),
	string(fleet.Recovering),
}

// exampleAdapters are files to copy from; no Go code reads their reports.
var exampleAdapters = []string{"cl-maestro", "cl-namespace", "np-configmap"}

// dataTypes are the Go types of the adapters' data.
var dataTypes = map[cluster.Adapter]reflect.Type{
	cluster.AdapterPlacement:     reflect.TypeFor[cluster.PlacementData](),
	cluster.AdapterPullSecret:    reflect.TypeFor[cluster.PullSecretData](),
	cluster.AdapterHostedCluster: reflect.TypeFor[cluster.HostedClusterData](),
	cluster.AdapterNodePool:      reflect.TypeFor[cluster.NodePoolData](),
	cluster.AdapterCredential:    reflect.TypeFor[cluster.CredentialData](),
}

// constants returns the values of the constants of a type in report.go.
func constants(t *testing.T, typeName string) (values []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "report.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); ok && kind.Name == typeName {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, value)
		}
		return true
	})
	if len(values) == 0 {
		t.Fatalf("report.go has no constant of type %s", typeName)
	}
	return values
}

// words are the words of CEL expressions and of plain values that may be types
// or reasons.
var words = regexp.MustCompile(`"([A-Z][A-Za-z]+)[:"]|^([A-Z][A-Za-z]+)$`)

// collectWords adds the words of every text below v, except below the keys that
// have texts for people.
func collectWords(v any, found map[string]bool) {
	switch v := v.(type) {
	case string:
		for _, m := range words.FindAllStringSubmatch(v, -1) {
			found[m[1]+m[2]] = true
		}
	case []any:
		for _, item := range v {
			collectWords(item, found)
		}
	case map[string]any:
		for key, item := range v {
			if key != "message" && key != "data" {
				collectWords(item, found)
			}
		}
	}
}

// collectReasons adds the words of every value below v whose key is "reason".
func collectReasons(v any, found map[string]bool) {
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			collectReasons(item, found)
		}
	case map[string]any:
		for key, item := range v {
			if key == "reason" {
				collectWords(item, found)
			} else {
				collectReasons(item, found)
			}
		}
	}
}

// dataKeys returns the paths of the members that a task file's data has. A
// member is a value when it says how it is computed.
func dataKeys(prefix string, v any) (keys []string) {
	members, ok := v.(map[string]any)
	for _, how := range []string{"expression", "feedback", "since"} {
		if members[how] != nil {
			return []string{prefix}
		}
	}
	if !ok {
		return []string{prefix}
	}
	for name, item := range members {
		keys = append(keys, dataKeys(prefix+"."+name, item)...)
	}
	return keys
}

// typeKeys returns the paths of the members that a Go type reads.
func typeKeys(prefix string, t reflect.Type) (keys []string) {
	if t.Kind() != reflect.Struct {
		return []string{prefix}
	}
	for _, field := range reflect.VisibleFields(t) {
		keys = append(keys, typeKeys(prefix+"."+field.Tag.Get("json"), field.Type)...)
	}
	return keys
}

// readTask returns the words that a task file writes into its report, and the
// data of the report.
func readTask(t *testing.T, adapter string) (found map[string]bool, data any) {
	t.Helper()
	raw, err := fs.ReadFile(adapters.Files, path.Join(adapter, "task.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var task struct {
		Params any `json:"params"`
		Post   struct {
			Let    any            `json:"let"`
			Report map[string]any `json:"report"`
		} `json:"post"`
	}
	if err := yaml.Unmarshal(raw, &task); err != nil {
		t.Fatal(err)
	}
	found = map[string]bool{}
	collectReasons(task.Params, found)
	collectWords(task.Post.Let, found)
	collectWords(task.Post.Report, found)
	conditions, _ := task.Post.Report["conditions"].(map[string]any)
	for name := range conditions {
		found[name] = true
	}
	return found, task.Post.Report["data"]
}

// The standard report of a work is made by the engine, which writes the same
// words.
func TestTheStandardReportUsesTheWordsOfThisPackage(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../adapter/standard.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(constants(t, "Reason"), constants(t, "ConditionType"), otherWords)
	word := regexp.MustCompile(`^"([A-Z][A-Za-z]+):?"$`)
	checked := 0
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok {
			return true
		}
		if m := word.FindStringSubmatch(literal.Value); m != nil {
			if checked++; !slices.Contains(known, m[1]) {
				t.Errorf("adapter/standard.go writes %q, which is no condition type or reason of package cluster", m[1])
			}
		}
		return true
	})
	if checked < 10 {
		t.Errorf("only %d words were found", checked)
	}
}

func TestTaskFilesUseTheWordsOfThisPackage(t *testing.T) {
	directories, err := fs.ReadDir(adapters.Files, ".")
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(constants(t, "Reason"), constants(t, "ConditionType"), otherWords)
	names := constants(t, "Adapter")
	checked := 0
	for _, d := range directories {
		if slices.Contains(exampleAdapters, d.Name()) {
			continue
		}
		checked++
		if !slices.Contains(names, d.Name()) {
			t.Errorf("the adapter %s has no constant of type Adapter", d.Name())
		}
		found, data := readTask(t, d.Name())
		if len(found) == 0 {
			t.Errorf("%s/task.yaml has no words", d.Name())
		}
		for _, word := range slices.Sorted(maps.Keys(found)) {
			if !slices.Contains(known, word) {
				t.Errorf("%s/task.yaml writes %q, which is no condition type or reason of package cluster", d.Name(), word)
			}
		}
		kind, ok := dataTypes[cluster.Adapter(d.Name())]
		if !ok {
			t.Errorf("the adapter %s has no data type in package cluster", d.Name())
			continue
		}
		got, want := dataKeys("data", data), typeKeys("data", kind)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s/task.yaml reports\n\t%s\nand %s reads\n\t%s",
				d.Name(), strings.Join(got, " "), kind, strings.Join(want, " "))
		}
	}
	if checked != len(dataTypes) {
		t.Errorf("%d adapters were checked, and package cluster has data types of %d", checked, len(dataTypes))
	}
}
