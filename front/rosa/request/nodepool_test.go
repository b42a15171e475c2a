package request

import (
	"encoding/json"
	"fmt"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
)

var pool = NodePools{Releases: older.Releases, Image: "atoll.dev/release:1.36.3"}

const poolDefaults = `"management":{"autoRepair":true,"upgradeType":"Replace"},"platform":{"type":"AWS","aws":{"instanceType":"m6a.xlarge"}},"release":{"image":"atoll.dev/release:1.36.3"},"nodeDrainTimeout":"0s"`

func TestANodePoolIsNormalised(t *testing.T) {
	for spec, want := range map[string]string{
		`null`:           `{"nodePool":{"replicas":2,` + poolDefaults + `}}`,
		`{"replicas":3}`: `{"nodePool":{"replicas":3,` + poolDefaults + `}}`,
		`{"autoRepair":true,"management":{"upgradeType":"Replace"},"nodePool":{"replicas":3},"replicas":3}`: `{"nodePool":{"replicas":3,` + poolDefaults + `}}`,
		`{"replicas":0,"management":{"autoRepair":true,"upgradeType":"Replace"},"platform":{"type":"AWS","aws":{"instanceType":"m6a.xlarge"}},"release":{"image":"atoll.dev/release:1.36.3"},"nodeDrainTimeout":"0s",
			"labels":{"a":"b"},"taints":[{"key":"k","effect":"NoSchedule"}]}`: `{"labels":{"a":"b"},"taints":[{"key":"k","effect":"NoSchedule"}],"nodePool":{"replicas":0,` + poolDefaults + `}}`,
	} {
		made, p, err := pool.Create([]byte(`{"cluster_id":"c","name":"workers","spec":` + spec + `}`))
		if err != nil {
			t.Fatal(err)
		}
		expectProblems(t, p)
		expectJSON(t, made.Spec, want)
		if made.Name != "workers" || made.Cluster != "c" {
			t.Errorf("%+v", made)
		}
	}
}

func TestEveryWrongFieldOfANodePoolIsNamedAtOnce(t *testing.T) {
	for body, want := range map[string][]string{
		`{}`: {"cluster_id: is missing", "name: is missing"},
		`{"cluster_id":"c","name":"a-name-too-long-1"}`:  {"name: 15 are possible"},
		`{"cluster_id":"c","name":"w","kind":"Cluster"}`: {"kind: a NodePool goes"},
		`{"cluster_id":"c","name":"w","spec":{"replicas":-1}}`: {
			"spec.nodePool.replicas: from 0 to 500"},
		`{"cluster_id":"c","name":"w","spec":{"replicas":501}}`: {
			"spec.nodePool.replicas: from 0 to 500"},
		`{"cluster_id":"c","name":"w","spec":{"replicas":1.5}}`: {
			"spec.nodePool.replicas: whole number"},
		`{"cluster_id":"c","name":"w","spec":{"replicas":99999999999999999999}}`: {
			"spec.nodePool.replicas: whole number"},
		`{"cluster_id":"c","name":"w","spec":{"replicas":1,"nodePool":{"replicas":2}}}`: {
			"spec.replicas: with another value"},
		`{"cluster_id":"c","name":"w","spec":{"management":{"replace":{"strategy":"Recreate","rollingUpdate":{` +
			`"maxSurge":"110%","maxUnavailable":-1}}}}}`: {
			"spec.nodePool.management.replace.rollingUpdate.maxSurge: no share",
			"spec.nodePool.management.replace.rollingUpdate.maxUnavailable: whole number",
			"spec.nodePool.management.replace.strategy: RollingUpdate"},
		`{"cluster_id":"c","name":"w","spec":{"management":{"replace":{"rollingUpdate":{"maxSurge":0}}}}}`: {
			"spec.nodePool.management.replace.rollingUpdate: cannot both be 0"},
		`{"cluster_id":"c","name":"w","spec":{"nodePool":3,"replicas":1}}`: {"spec.nodePool: must be an object",
			"spec.replicas: not known"},
		`{"cluster_id":"c","name":"w","spec":{"platform":{"aws":{"instanceType":"m6a.tiny","rootVolume":{"size":1}}},"labels":{"atoll.dev/simulated":"false","x y":"1"},"autoRepair":"on","nodeDrainTimeout":"soon"}}`: {
			`spec.labels."x y": not a label key`, "spec.labels.atoll.dev/simulated: reserved",
			"spec.nodePool.management.autoRepair: true or false",
			"spec.nodePool.nodeDrainTimeout: duration", "spec.nodePool.platform.aws.instanceType: m6a.xlarge",
			"spec.nodePool.platform.aws.rootVolume.size: from 8"},
		`{"cluster_id":"c","name":"w","spec":{"taints":[{"key":"k","effect":"Never"},{"key":"a b","effect":"NoSchedule","value":"!"},{"key":"k"},{"key":"k","effect":"Never"},1]}}`: {
			"spec.taints[0].effect: NoSchedule", "spec.taints[1].key: not a taint key",
			"spec.taints[1].value: not a label value", "spec.taints[2]: needs a key",
			"spec.taints[3]: twice", "spec.taints[3].effect: NoSchedule", "spec.taints[4]: must be an object",
			"spec.taints[4]: needs a key"},
		`{"cluster_id":"c","name":"w","spec":{"release":{"image":"atoll.dev/release:1.36.10"}}}`: {
			"spec.nodePool.release.image: upgrade that first"},
		`{"cluster_id":"c","name":"w","spec":{"release":{"image":"other"}}}`: {
			"spec.nodePool.release.image: not a release"},
		`{"cluster_id":"c","name":"w","spec":{"release":{"image":"atoll.dev/release:1.35.9"}}}`: nil,
	} {
		_, p, err := pool.Create([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		t.Log(body)
		expectProblems(t, p, want...)
	}
}

func TestANodePoolChanges(t *testing.T) {
	have := stored(`{"labels":{"a":"b"},"nodePool":{"replicas":2,` + poolDefaults + `}}`)
	for body, want := range map[string]string{
		`{"spec":{"replicas":5}}`: `{"labels":{"a":"b"},"nodePool":{"replicas":5,` +
			poolDefaults + `}}`,
		`{"spec":{"labels":null,"nodePool":{}}}`: `{"nodePool":{"replicas":2,` + poolDefaults + `}}`,
		`{"cluster_id":"c","spec":{"labels":{"c":"d"}}}`: `{"labels":{"a":"b","c":"d"},"nodePool":{"replicas":2,` +
			poolDefaults + `}}`,
	} {
		got, p, err := pool.Change(have, Patch, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		expectProblems(t, p)
		expectJSON(t, got, want)
	}
	// What is replaced keeps what the API filled in and what cannot change.
	for _, body := range []string{`{"spec":{"replicas":4}}`,
		`{"resource_version":"3","spec":{"replicas":4,"management":{"autoRepair":true},"nodeDrainTimeout":"0s"}}`} {
		got, p, err := pool.Change(have, Replace, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		expectProblems(t, p)
		expectJSON(t, got, `{"nodePool":{"replicas":4,`+poolDefaults+`}}`)
	}
	for body, want := range map[string][]string{
		`{"cluster_id":"d","name":"x","spec":{}}`: {"cluster_id: cannot be changed",
			"name: cannot be changed"},
		`{"cluster_id":null,"name":null,"spec":{}}`: {"cluster_id: cannot be removed",
			"name: cannot be removed"},
		`{"spec":{"platform":{"aws":{"instanceType":"m5.large"}}}}`: {
			"spec.nodePool.platform.aws.instanceType: cannot be changed"},
		`{"spec":{"replicas":null,"management":{"upgradeType":"InPlace"}}}`: {
			"spec.nodePool.management.upgradeType: cannot be changed", "spec.nodePool.replicas: cannot be removed"},
		`{"spec":{"release":{"image":"atoll.dev/release:1.35.9"},"replicas":-3}}`: {
			"spec.nodePool.release.image: does not go back", "spec.nodePool.replicas: from 0"},
	} {
		_, p, err := pool.Change(have, Patch, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		t.Log(body)
		expectProblems(t, p, want...)
	}
}

func FuzzNodePool(f *testing.F) {
	f.Add(
		[]byte(
			`{"cluster_id":"c","name":"w","spec":{"replicas":3,"autoRepair":false,"labels":{"a":"b"},"taints":[{"key":"k","effect":"NoExecute"}]}}`), []byte(`{"spec":{"replicas":4}}`))
	f.Add(
		[]byte(
			`{"cluster_id":"c","name":"w","spec":{"nodePool":{"platform":{"aws":{"rootVolume":{"size":120,"type":"gp3"}}}}}}`), []byte(`{"spec":{"autoRepair":null,"nodePool":null}}`))
	f.Fuzz(func(t *testing.T, body, patch []byte) {
		made, p, err := pool.Create(body)
		if err != nil || len(p) > 0 {
			return
		}
		var typed platform.NodePoolSpec
		if err := json.Unmarshal(made.Spec, &typed); err != nil {
			t.Fatalf("%s: %v", made.Spec, err)
		}
		if typed.NodePool == nil || typed.NodePool.Replicas == nil || *typed.NodePool.Replicas < 0 ||
			*typed.NodePool.Replicas > cluster.MaxReplicas {
			t.Fatalf("%s has no replicas to speak of", made.Spec)
		}
		back, p, err := pool.Change(stored(string(made.Spec)), Replace, fmt.Appendf(nil, `{"spec":%s}`, made.Spec))
		if err != nil || len(p) > 0 {
			t.Fatalf("putting %s back: %v, %v", made.Spec, format(p), err)
		}
		expectSame(t, made.Spec, back)
		if after, p, err := pool.Change(stored(string(made.Spec)), Patch, patch); err == nil && len(p) == 0 {
			if err := json.Unmarshal(after, &typed); err != nil {
				t.Fatalf("%s: %v", after, err)
			}
		}
	})
}
