package clm

import (
	"strings"
	"testing"
	"time"
)

// A reference must name the kind of its target, and a list an existing type of reference.
func TestForeignReferences(t *testing.T) {
	a := start(t)
	wif := a.do("POST", "/wifconfigs", `{"kind":"WifConfig","name":"w","spec":{}}`).want(201).at("id")
	create := func(reference string) answer {
		return a.do("POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{},"references":{"wif_config":[`+
			reference+`]}}`)
	}
	for _, kind := range []string{`,"kind":"Channel"`, `,"kind":""`, ``} {
		got := create(`{"id":"`+wif+`"`+kind+`}`).want(400, "VAL-000")
		is(t, "the field", got.at("errors.0.field"), "references.wif_config[0].kind")
	}
	made := create(`{"id":"` + wif + `","kind":"WifConfig"}`).want(201)
	path := "/clusters/" + made.at("id")
	a.do("PATCH", path, `{"references":{"wif_config":[{"id":"`+wif+`"}]}}`).want(400, "VAL-000")
	a.do("PATCH", path, `{"references":{"wif_config":[{"id":"nope","kind":"WifConfig"}]}}`).want(400, "VAL-000")
	a.do("GET", "/clusters?ref_type=bogus&ref_target_id="+wif, "").want(400, "VAL-000")
	a.do("GET", "/clusters?ref_type=wif_config", "").want(400, "VAL-000")
	is(t, "who refers to it", a.do("GET", "/clusters?ref_type=wif_config&ref_target_id="+wif, "").want(200).at("total"),
		"1")
}

// The codes by which clients distinguish mistakes, and the messages that they
// assert.
func TestForeignCodesAndMessages(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("taken")
	for _, c := range []struct {
		method, path, body string
		status             int
		code, wantText     string
	}{
		{"POST", "/clusters", `{`, 400, "VAL-006", ""},
		{"POST", "/clusters", ``, 400, "VAL-006", ""},
		{"POST", "/clusters", `[]`, 400, "VAL-000", ""},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc","spec":{},"labels":"x"}`, 400, "VAL-000", "labels"},
		{"PATCH", path, `{"spec":`, 400, "VAL-006", ""},
		{"PUT", path + "/statuses", `{"adapter":`, 400, "VAL-006", ""},
		{"POST", path + "/force-delete", ``, 400, "VAL-006", ""},
		{"PATCH", path, `{"name":"x"}`, 400, "VAL-006", "name"},
		{"PATCH", path, `{"spec":{},"kind":"x"}`, 400, "VAL-006", "kind"},
		{"PATCH", path, `{}`, 400, "VAL-005", "at least one"},
		{"GET", "/clusters/nope", "", 404, "NTF-001", "not found"},
		{"GET", "/clusters/nope/nodepools", "", 404, "NTF-001", "not found"},
		{"GET", "/nodepools/nope", "", 404, "NTF-001", "not found"},
		{"DELETE", "/channels/nope", "", 404, "NTF-001", "not found"},
		{"PUT", "/clusters/nope/statuses", statusBody("dns", 1, time.Now(), "True"), 404, "NTF-001", "not found"},
		{"GET", "/nope", "", 404, "NTF-000", ""},
		{"POST", "/clusters", `{"name":"abc","spec":{}}`, 400, "VAL-000", "kind is required"},
		{"POST", "/resources", `{"name":"abc","spec":{}}`, 400, "VAL-000", "kind is required"},
		{"POST", "/resources", `{"kind":"Nope","name":"abc","spec":{}}`, 400, "VAL-000", "Nope"},
		{"POST", "/clusters", `{"kind":"NodePool","name":"abc","spec":{}}`, 400, "VAL-000", "kind must be 'Cluster'"},
		{"POST", "/clusters", `{"kind":"Cluster","spec":{}}`, 400, "VAL-000", "name is required"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"abc"}`, 400, "VAL-000", "spec is required"},
		{"POST", "/clusters", `{"kind":"Cluster","name":"taken","spec":{}}`, 409, "CNF-001", "already exists"},
		{"POST", path + "/force-delete", `{"reason":""}`, 400, "VAL-000", "reason is required"},
		{"GET", "/resources?kind=Nope", "", 400, "VAL-000", "Nope"},
		{"GET", "/clusters?fields=nope", "", 400, "VAL-000", "nope"},
		{"POST", "/nodepools", `{}`, 400, "VAL-000", "kind is required"},
		{"POST", "/nodepools", `{"kind":"NodePool","name":"p","spec":{}}`, 422, "VAL-000", "nodepools"},
		{"POST", "/nodepools", `{"kind":"NodePool","spec":{}}`, 422, "VAL-000", "nodepools"},
	} {
		if got := a.do(c.method, c.path, c.body).want(c.status, c.code); !strings.Contains(got.at("detail"),
			c.wantText) {
			t.Errorf("%s %s %s: want %q in %s", c.method, c.path, c.body, c.wantText, got.body)
		}
	}
}

// In a plain PATCH null labels and references are absent; in a merge patch they
// are removed.
func TestForeignPatchesWithNull(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.do("POST", "/clusters",
		`{"kind":"Cluster","name":"abc","spec":{},"labels":{"a":"b"}}`).want(201).at("id")
	a.do("PATCH", path, `{"labels":null}`).want(400, "VAL-005")
	a.do("PATCH", path, `{"references":null}`).want(400, "VAL-005")
	a.do("PATCH", path, `{"references":null,"labels":null}`).want(400, "VAL-005")
	a.do("PATCH", path, `{"spec":null}`).want(400, "VAL-000")
	got := a.do("PATCH", path, `{"labels":null,"spec":{"nodes":3}}`).want(200)
	is(t, "beside a spec", got.at("labels.a")+got.at("spec.nodes"), "b3")
	got = a.do("PATCH", path, `{"labels":null}`, "Content-Type: application/merge-patch+json").want(200)
	is(t, "merged", got.at("labels"), "")
}

// A resource may have more than a megabyte; the limit is a setting.
func TestForeignLargeResource(t *testing.T) {
	a := start(t)
	body := func(n int) string {
		return `{"kind":"Cluster","name":"large","spec":{"a":"` + strings.Repeat("x", n) + `"}}`
	}
	id := a.do("POST", "/clusters", body(1_200_000)).want(201).at("id")
	a.do("PATCH", "/clusters/"+id, `{"spec":{"b":"`+strings.Repeat("y", 1_200_000)+`"}}`).want(200)
	if got := a.do("POST", "/clusters", body(DefaultMaxResource)); got.status != 413 {
		t.Errorf("%d %.200s", got.status, got.body)
	}
}

// Labels that there are not, and reasons and messages that an adapter did not
// give, are not shown.
func TestForeignEmptyMembers(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	a.do("PUT", path+"/statuses", statusBody("dns", 1, time.Now(), "True")).want(201)
	got := a.do("GET", path, "").want(200)
	if strings.Contains(string(got.body), `"labels"`) {
		t.Errorf("labels show: %s", got.body)
	}
	is(t, "the adapter's condition", got.at("status.conditions.2.type")+got.at("status.conditions.2.reason"),
		"DnsSuccessful")
	is(t, "labels", a.do("PATCH", path, `{"labels":{"a":"b"}}`).want(200).at("labels"), `{"a":"b"}`)
	for _, got := range []answer{
		a.do("PATCH", path, `{"labels":{}}`).want(200),
		a.do("POST", "/clusters", `{"kind":"Cluster","name":"def","spec":{},"labels":{}}`).want(201),
	} {
		if strings.Contains(string(got.body), `"labels"`) {
			t.Errorf("%s: empty labels show: %s", got.what, got.body)
		}
	}
}
