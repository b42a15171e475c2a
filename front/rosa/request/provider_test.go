package request

import (
	"testing"

	"atoll.dev/cluster"
)

func TestTheProviderOfANodePoolIsChosenOnce(t *testing.T) {
	local := pool
	local.Providers = []cluster.NodeProvider{cluster.Local, cluster.Simulated}
	for body, want := range map[string]string{
		`{}`:                       `{"provider":"local","nodePool":{"replicas":2,` + poolDefaults + `}}`,
		`{"provider":"simulated"}`: `{"provider":"simulated","nodePool":{"replicas":2,` + poolDefaults + `}}`,
	} {
		made, p, err := local.Create([]byte(`{"cluster_id":"c","name":"workers","spec":` + body + `}`))
		if err != nil {
			t.Fatal(err)
		}
		expectProblems(t, p)
		expectJSON(t, made.Spec, want)
	}
	_, p, err := pool.Create([]byte(`{"cluster_id":"c","name":"workers","spec":{"provider":"moon"}}`))
	if err != nil {
		t.Fatal(err)
	}
	expectProblems(t, p, "spec.provider: simulated, local, external")
	if _, p, err = pool.Create([]byte(`{"cluster_id":"c","name":"w","spec":{"provider":"local"}}`)); err != nil {
		t.Fatal(err)
	}
	expectProblems(t, p, "spec.provider: the region offers no local nodes")
	unnamed := stored(`{"nodePool":{"replicas":2,` + poolDefaults + `}}`)
	real := stored(`{"provider":"local","nodePool":{"replicas":2,` + poolDefaults + `}}`)
	for _, c := range []struct {
		have   Stored
		change Change
		body   string
		want   []string
	}{
		{unnamed, Patch, `{"spec":{"provider":"simulated"}}`, nil},
		{unnamed, Patch, `{"spec":{"provider":"local"}}`, []string{"spec.provider: cannot be changed from simulated"}},
		{real, Patch, `{"spec":{"provider":"external"}}`, []string{"spec.provider: cannot be changed from local"}},
		{real, Patch, `{"spec":{"provider":null}}`, []string{"spec.provider: cannot be changed from local"}},
		{real, Patch, `{"spec":{"replicas":3}}`, nil},
		{real, Replace, `{"spec":{"replicas":3}}`, nil},
	} {
		got, p, err := local.Change(c.have, c.change, []byte(c.body))
		if err != nil {
			t.Fatal(err)
		}
		t.Log(c.body)
		expectProblems(t, p, c.want...)
		if c.change == Replace {
			expectJSON(t, got, `{"provider":"local","nodePool":{"replicas":3,`+poolDefaults+`}}`)
		}
	}
}
