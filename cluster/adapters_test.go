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
	"atoll.dev/cluster"
)

// otherWords are the words of task files that are neither condition types nor
// reasons of reports: statuses, conditions of HyperShift, and the reasons and
// kinds of the example adapters.
var otherWords = []string{
	"True", "False", "Ready", "Issued", "Lost", "Degraded", "Progressing", "KubeAPIServerAvailable",
	"ValidReleaseImage", "ValidConfiguration",
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
			if key != "message" {
				collectWords(item, found)
			}
		}
	}
}

// dataKeys returns the paths of the members that a task file's data has. A
// member whose only member is "expression" is a value.
func dataKeys(prefix string, v any) (keys []string) {
	members, ok := v.(map[string]any)
	if _, isValue := members["expression"]; !ok || isValue {
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

// report returns the payloads of a task file that make the report, and the data
// of the report.
func report(t *testing.T, adapter string) (payloads any, data any) {
	t.Helper()
	raw, err := fs.ReadFile(adapters.Files, path.Join(adapter, "task.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var task struct {
		Post struct {
			Payloads []struct {
				Name  string `json:"name"`
				Build any    `json:"build"`
			} `json:"payloads"`
		} `json:"post"`
	}
	if err := yaml.Unmarshal(raw, &task); err != nil {
		t.Fatal(err)
	}
	var all []any
	for _, p := range task.Post.Payloads {
		all = append(all, p.Build)
		if build, ok := p.Build.(map[string]any); ok && build["data"] != nil {
			data = build["data"]
		}
	}
	return all, data
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
		payloads, data := report(t, d.Name())
		found := map[string]bool{}
		collectWords(payloads, found)
		if len(found) < 5 {
			t.Errorf("%s: only the words %v were found", d.Name(), slices.Sorted(maps.Keys(found)))
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
			t.Errorf("%s/task.yaml reports\n\t%s\nand %s reads\n\t%s", d.Name(), strings.Join(got, " "), kind, strings.Join(want, " "))
		}
	}
	if checked != len(dataTypes) {
		t.Errorf("%d adapters were checked, and package cluster has data types of %d", checked, len(dataTypes))
	}
}
