package clm

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A PATCH with a change makes a generation; an equal one does not (I3).
func TestI3OnlyAPatchWithChangesMakesAGeneration(t *testing.T) {
	a := start(t)
	wif := a.do("POST", "/wifconfigs", `{"kind":"WifConfig","name":"w","spec":{}}`).want(201).at("id")
	path := "/clusters/" + a.cluster("abc")
	one := a.do("PATCH", path, `{"spec":{"region":"us","nodes":1}}`).want(200)
	is(t, "generation", one.at("generation")+version(one), "22")
	is(t, "Reconciled", one.condition("Reconciled"), "False@2 ReconciledMissingAdapters")
	same := a.do("PATCH", path, `{"spec":{"nodes":1.0,"region":"us"},"labels":{}}`).want(200)
	is(t, "what an equal PATCH returns", string(same.body), string(one.body))
	is(t, "replaced", a.do("PATCH", path, `{"spec":{"nodes":2}}`).want(200).at("spec"), `{"nodes":2}`)
	merge := a.do("PATCH", path, `{"spec":{"region":"eu","nodes":null},"labels":{"a":"b"}}`,
		"Content-Type: application/merge-patch+json").want(200)
	is(t, "merged", merge.at("spec")+merge.at("labels")+merge.at("generation"), `{"region":"eu"}{"a":"b"}4`)
	ref := a.do("PATCH", path, `{"references":{"wif_config":[{"id":"`+wif+`","kind":"WifConfig"}]}}`).want(200)
	is(t, "reference", ref.at("references.wif_config.0.href"), basePath+"/wifconfigs/"+wif)
	is(t, "who refers to it", a.do("GET", "/clusters?ref_type=wif_config&ref_target_id="+wif, "").want(200).at("total"),
		"1")
	a.do("DELETE", "/wifconfigs/"+wif, "").want(409, "CNF-003")
	a.do("PATCH", path, `{"references":{}}`).want(200)
	is(t, "the generation after no reference again", a.do("PATCH", path, `{"references":{"wif_config":[]}}`).want(
		200).at("generation"), "6")
	a.do("DELETE", "/wifconfigs/"+wif, "").want(202)
}

// A merge patch keeps members that it does not name, to the last digit, and removes members that it
// sets to null.
func TestMergePatches(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	patch := func(body string) answer {
		t.Helper()
		return a.do("PATCH", path, body, "Content-Type: application/merge-patch+json").want(200)
	}
	patch(`{"spec":{"id":9007199254740993,"rate":0.10,"a":{"b":1,"c":2}},"labels":{"x":"1","y":"2"}}`)
	got := patch(`{"spec":{"a":{"b":null}},"labels":{"x":null}}`)
	is(t, "the spec", got.at("spec"), `{"a":{"c":2},"id":9007199254740993,"rate":0.10}`)
	is(t, "the labels", got.at("labels"), `{"y":"2"}`)
	got = patch(`{"spec":{"id":9007199254740992}}`)
	is(t, "the number next to it", got.at("spec.id")+" "+got.at("generation"), "9007199254740992 4")
	got = patch(`{"labels":null,"references":null}`)
	is(t, "without labels", got.at("labels")+got.at("generation"), "5")
}

// A write with a stale version is refused (I2).
func TestI2StaleWritesAreRefused(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	etag := a.do("GET", path, "").header.Get("Etag")
	a.do("PATCH", path, `{"labels":{"a":"1"}}`, "If-Match: "+etag).want(200)
	a.do("PATCH", path, `{"labels":{"a":"2"}}`, "If-Match: "+etag).want(412, "CNF-002")
	a.do("DELETE", path, "", "If-Match: "+etag).want(412, "CNF-002")
	a.do("PATCH", path, `{"labels":{"a":"3"}}`, `If-Match: "0"`).want(412, "CNF-002") // which nothing ever was
	a.do("DELETE", path, "", `If-Match: "0"`).want(412, "CNF-002")
	is(t, "label", a.do("GET", path, "").at("labels.a"), "1")
}

// Of many writers at once none is lost (I2): each merges a label of its own.
func TestI2ConcurrentMergesAreAllKept(t *testing.T) {
	a := start(t)
	path := "/clusters/" + a.cluster("abc")
	const writers = 20
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			a.do("PATCH", path, fmt.Sprintf(`{"labels":{"l%d":"x"}}`, i),
				"Content-Type: application/merge-patch+json").want(200)
		})
	}
	wg.Wait()
	got := a.do("GET", path, "")
	if n := strings.Count(got.at("labels"), ":"); n != writers || got.at("generation") != fmt.Sprint(writers+1) {
		t.Fatalf("%d labels at generation %s", n, got.at("generation"))
	}
}

// However often a POST is sent with one key, it makes one resource.
func TestIdempotencyKey(t *testing.T) {
	a := start(t)
	const body = `{"kind":"Cluster","name":"abc","spec":{}}`
	ids := make([]string, 10)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() { ids[i] = a.do("POST", "/clusters", body, "Idempotency-Key: k").want(201).at("id") })
	}
	wg.Wait()
	if slices.Sort(ids); ids[0] != ids[len(ids)-1] {
		t.Fatalf("made %v", ids)
	}
	a.do("POST", "/clusters", strings.Replace(body, "abc", "abd", 1), "Idempotency-Key: k").want(422)
	a.caller.Name = "somebody@else.org"
	a.do("POST", "/clusters", body, "Idempotency-Key: k").want(409, "CNF-001") // a key is its user's
}
