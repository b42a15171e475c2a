package agent

import (
	"encoding/json"
	"strings"
	"testing"

	workv1 "open-cluster-management.io/api/work/v1"
)

const ignoreManifest = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d","annotations":{"a.b/c":"1"}},
	"spec":{"replicas":3,"template":{"spec":{"containers":[{"name":"web","image":"v1","cpu":1},{"name":"side","image":"s1"}]}}}}`

func TestIgnoredFieldsAreFoundInEachLanguage(t *testing.T) {
	for _, c := range []struct {
		field      workv1.IgnoreField
		want       string // paths as JSON
		wantProblm string
	}{
		{field: workv1.IgnoreField{JSONPaths: []string{".spec.replicas"}}, want: `[["spec","replicas"]]`},
		{field: workv1.IgnoreField{JSONPaths: []string{".spec.nothing", ".no.where"}}, want: `null`},
		{field: workv1.IgnoreField{JSONPaths: []string{".spec.template.spec.containers[*].image"}},
			want: `[["spec","template","spec","containers",1,"image"],["spec","template","spec","containers",0,"image"]]`},
		{field: workv1.IgnoreField{JSONPaths: []string{`.spec.template.spec.containers[?(@.name=="side")].image`}},
			want: `[["spec","template","spec","containers",1,"image"]]`},
		{field: workv1.IgnoreField{JSONPaths: []string{`.metadata.annotations['a.b/c']`}},
			want: `[["metadata","annotations","a.b/c"]]`},
		{field: workv1.IgnoreField{JSONPaths: []string{".spec.template.spec.containers[0]",
			".spec.template.spec.containers[*]"}}, want: `null`},
		{field: workv1.IgnoreField{JSONPaths: []string{".spec[[.x", "x", ".spec.", "]"}}, want: `null`},
		{field: workv1.IgnoreField{JSONPointers: []string{"/spec/replicas", "/metadata/annotations/a.b~1c",
			"/spec/none"}}, want: `[["spec","replicas"],["metadata","annotations","a.b/c"]]`},
		{field: workv1.IgnoreField{JSONPointers: []string{"/spec/template/spec/containers/1/image"}},
			want: `[["spec","template","spec","containers",1,"image"]]`},
		{field: workv1.IgnoreField{JSONPointers: []string{"/spec/template/spec/containers/1",
			"/spec/template/spec/containers/1"}}, want: `[["spec","template","spec","containers",1]]`},
		{field: workv1.IgnoreField{JSONPointers: []string{"/spec/template/spec/containers/0",
			"/spec/template/spec/containers/0/image"}},
			want: `[["spec","template","spec","containers",0],["spec","template","spec","containers",0,"image"]]`},
		{field: workv1.IgnoreField{JQPathExpressions: []string{
			`.spec.template.spec.containers[] | select(.name == "side")`}},
			want: `[["spec","template","spec","containers",1]]`},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`.spec.template.spec.containers[]`}},
			want: `[["spec","template","spec","containers",1],["spec","template","spec","containers",0]]`},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`.spec.template.spec.containers[-1:]`}},
			want: `[["spec","template","spec","containers",1]]`},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`.spec.template.spec.containers[1:][0].image`}},
			want: `[["spec","template","spec","containers",1,"image"]]`},
		{field: workv1.IgnoreField{JSONPointers: []string{"spec"}}, wantProblm: "begin with /"},
		{field: workv1.IgnoreField{JQPathExpressions: []string{
			`.spec.template.spec.containers[] | select(.name == "web") | .image`}},
			want: `[["spec","template","spec","containers",0,"image"]]`},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`.spec.none`, `.spec.replicas # a comment`}},
			want: `[["spec","replicas"]]`},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`.`}}, wantProblm: "whole object"},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`1 + 1`}}, wantProblm: "invalid path"},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`def f: f; f`}}, wantProblm: "deadline"},
		{field: workv1.IgnoreField{JQPathExpressions: []string{`.a) | (.b`}}, wantProblm: "jq expression"},
	} {
		var obj map[string]any
		if err := json.Unmarshal([]byte(ignoreManifest), &obj); err != nil {
			t.Fatal(err)
		}
		paths, err := removeFields(obj, c.field)
		got, _ := json.Marshal(paths)
		switch {
		case c.wantProblm != "":
			if err == nil || !strings.Contains(err.Error(), c.wantProblm) {
				t.Errorf("%+v: %s, %v; want an error about %q", c.field, got, err, c.wantProblm)
			}
		case err != nil || string(got) != c.want:
			t.Errorf("%+v: %s, %v; want %s", c.field, got, err, c.want)
		}
	}
}

// The present value stays; where lists differ, the entry is found by its name.
func TestIgnoredFieldsKeepTheirValues(t *testing.T) {
	fields := []workv1.IgnoreField{
		{Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPaths: []string{
			`.spec.template.spec.containers[?(@.name=="web")].image`}, JSONPointers: []string{
			"/spec/template/spec/containers/0/cpu"}},
		{Condition: workv1.IgnoreFieldsConditionOnSpokeChange, JSONPaths: []string{".spec.replicas"}},
	}
	plan, err := planIgnore([]byte(ignoreManifest), fields)
	if err != nil {
		t.Fatal(err)
	}
	var manifest, live map[string]any
	there := `{"spec":{"replicas":9,"template":{"spec":{"containers":[{"name":"injected","image":"i1"},{"name":"web",` +
		`"image":"v0"}]}}}}`
	if err := json.Unmarshal([]byte(ignoreManifest), &manifest); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(there), &live); err != nil {
		t.Fatal(err)
	}
	plan.keepIgnored(manifest, live)
	got, _ := json.Marshal(manifest["spec"])
	if want := `{"replicas":3,"template":{"spec":{"containers":[{"image":"v0","name":"web"},{"image":"s1",` +
		`"name":"side"}]}}}`; string(got) != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	again, err := planIgnore([]byte(strings.Replace(ignoreManifest, "v1\",\"cpu", "v2\",\"cpu", 1)), fields)
	if err != nil || again.hash != plan.hash {
		t.Errorf("a change of an ignored field changes the hash: %v", err)
	}
	if other, err := planIgnore([]byte(strings.Replace(ignoreManifest, `"replicas":3`, `"replicas":4`, 1)),
		fields); err != nil || other.hash == plan.hash {
		t.Errorf("a change of a field that is ignored OnSpokeChange does not change the hash: %v", err)
	}
}

// OCM's agent computes this hash for the manifest (hashOfResourceStruct, v1.2.1): our agent does
// not write an object of OCM's agent again.
func TestTheIgnoreHashEqualsThatOfOCM(t *testing.T) {
	plan, err := planIgnore(
		[]byte(
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ns","creationTimestamp":null},`+
				`"data":{"count":"1","k":"1"}}`),
		[]workv1.IgnoreField{{Condition: workv1.IgnoreFieldsConditionOnSpokePresent, JSONPaths: []string{
			".data.count"}}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "9204f6a999b069500e62cf599487cd8b"; plan.hash != want {
		t.Errorf("%s, want %s", plan.hash, want)
	}
}

func FuzzIgnoredFields(f *testing.F) {
	for _, s := range []string{".spec.replicas", "/spec/replicas", ".a['b']", `.. | .name?`, ".spec[", "~", ".[1:2]",
		"path(.a)", "$__loc__", "input", "limit(3; repeat(.))"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, field := range []workv1.IgnoreField{{JSONPaths: []string{text}}, {JSONPointers: []string{text}},
			{JQPathExpressions: []string{text}}} {
			plan, err := planIgnore([]byte(ignoreManifest), []workv1.IgnoreField{field})
			if err != nil {
				continue
			}
			var manifest, live map[string]any
			_ = json.Unmarshal([]byte(ignoreManifest), &manifest)
			_ = json.Unmarshal([]byte(`{"spec":{"template":{"spec":{"containers":{}}}},"metadata":[]}`), &live)
			plan.keepIgnored(manifest, live) // whatever is there, nothing panics
		}
	})
}
