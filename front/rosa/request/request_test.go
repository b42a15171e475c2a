package request

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
)

var env = Clusters{Creator: "arn:aws:iam::123456789012:user/c", Releases: cluster.Releases{
	release("1.35.9"), release("1.36.3"), release("1.36.10"), release("1.38.0"), {Version: "bad", Image: "x"},
}}

func release(version string) cluster.Release {
	return cluster.Release{Version: version, Image: cluster.ReleaseImage(version)}
}

var older = Clusters{Creator: env.Creator, Releases: env.Releases[:3]}

// format returns problems as "field: message".
func format(p document.Problems) (all []string) {
	for _, f := range p {
		all = append(all, f.Field+": "+f.Message)
	}
	return all
}

// expectProblems compares problems with the wanted ones: a field, and a part of the
// message after ": ".
func expectProblems(t *testing.T, p document.Problems, want ...string) {
	t.Helper()
	got := format(p)
	ok := len(got) == len(want)
	for i := 0; ok && i < len(got); i++ {
		field, part, _ := strings.Cut(want[i], ": ")
		ok = p[i].Field == field && strings.Contains(p[i].Message, part)
	}
	if !ok {
		t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func expectJSON(t *testing.T, got json.RawMessage, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal(got, &g); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

const defaults = `"creatorARN":"arn:aws:iam::123456789012:user/c","hostedCluster":{"release":{"image":"atoll.dev/release:1.36.10"},
	"networking":{"clusterNetwork":[{"cidr":"10.132.0.0/14"}],"serviceNetwork":[{"cidr":"172.31.0.0/16"}],"machineNetwork":[{"cidr":"10.0.0.0/16"}]}}`

func TestACompleteClusterComesOfLittle(t *testing.T) {
	for _, body := range []string{`{"name":"demo"}`, `{"name":"demo","spec":null}`,
		`{"name":"demo","kind":"Cluster","spec":{"hostedCluster":null,"displayName":null}}`} {
		made, p, err := older.Create([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		expectProblems(t, p)
		expectJSON(t, made.Spec, "{"+defaults+"}")
		if made.Name != "demo" || made.Project != "" {
			t.Errorf("%+v", made)
		}
	}
	made, p, err := older.Create(
		[]byte(
			`{"name":"a","target_project_id":"p1","spec":{"aws":{"region":"us-east-1","privateSubnetIds":"subnet-1"},"hibernated":true,
		"hostedCluster":{"release":{"image":"atoll.dev/release:1.35.9"},"networking":{"machineNetwork":[{"cidr":"192.168.0.0/24"}]},"pausedUntil":"true"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	expectProblems(t, p)
	expectJSON(t, made.Spec,
		`{"creatorARN":"arn:aws:iam::123456789012:user/c","aws":{"region":"us-east-1","privateSubnetIds":"subnet-1"},"hibernated":true,
		"hostedCluster":{"release":{"image":"atoll.dev/release:1.35.9"},"pausedUntil":"true",
		"networking":{"clusterNetwork":[{"cidr":"10.132.0.0/14"}],"serviceNetwork":[{"cidr":"172.31.0.0/16"}],"machineNetwork":[{"cidr":"192.168.0.0/24"}]}}}`)
	if made.Project != "p1" {
		t.Errorf("project %q", made.Project)
	}
}

func TestEveryWrongFieldOfAClusterIsNamedAtOnce(t *testing.T) {
	network := func(kind, cidr string) string {
		return fmt.Sprintf(`{"hostedCluster":{"networking":{%q:[{"cidr":%q}]}}}`, kind, cidr)
	}
	const at = "spec.hostedCluster.networking."
	for _, c := range []struct {
		spec string
		want []string
	}{
		{`{"regoin":"us"}`, []string{"spec.regoin: not known"}},
		{`{"displayname":"x","deleteProtection":"yes","hibernated":1,"expirationTimestamp":"tomorrow"}`, []string{
			"spec.deleteProtection: must be true or false, not a string", "spec.displayname: did you mean displayName?",
			"spec.expirationTimestamp: not a time", "spec.hibernated: not a number"}},
		{`{"creatorARN":"arn:aws:iam::1:root"}`, []string{"spec.creatorARN: set by the service"}},
		{`{"hostedCluster":3}`, []string{"spec.hostedCluster: must be an object"}},
		{`{"hostedCluster":{"infraID":"x","etcd":{},"fips":"no","wrong":1}}`, []string{
			"spec.hostedCluster.etcd: set by the service", "spec.hostedCluster.fips: true or false",
			"spec.hostedCluster.infraID: set by the service", "spec.hostedCluster.wrong: not known"}},
		{`{"hostedCluster":{"release":{"image":"quay.io/x:1"}}}`,
			[]string{"spec.hostedCluster.release.image: atoll.dev/release:1.36.3"}},
		{`{"hostedCluster":{"release":"1.36.3"}}`, []string{"spec.hostedCluster.release: must be an object"}},
		{`{"hostedCluster":{"release":{"image":7}}}`, []string{"spec.hostedCluster.release.image: must be a string"}},
		{network("clusterNetwork", "10.1.0.0/16"), nil},
		{network("clusterNetwork", "10.0.0.0/15"),
			[]string{at + "machineNetwork[0].cidr: 10.0.0.0/16, which is the default, overlaps with 10.0.0.0/15 of " +
				at + "clusterNetwork[0].cidr"}},
		{network("clusterNetwork", "10.0.0.0/24"), []string{at + "clusterNetwork[0].cidr: too small"}},
		{network("serviceNetwork", "10.0.0.0/8"), []string{at + "serviceNetwork[0].cidr: too large"}},
		{network("machineNetwork", "10.0.0.1/16"), []string{at + "machineNetwork[0].cidr: did you mean 10.0.0.0/16?"}},
		{network("machineNetwork", "10.0.0.0"), []string{at + "machineNetwork[0].cidr: not a network"}},
		{network("machineNetwork", "fd00::/48"), []string{at + "machineNetwork[0].cidr: not an IPv4"}},
		{network("machineNetwork", "127.0.0.0/16"), []string{at + "machineNetwork[0].cidr: reserved"}},
		{network("machineNetwork", ""), []string{at + "machineNetwork[0].cidr: not a network"}},
		{
			`{"hostedCluster":{"networking":{"clusterNetwork":[{"cidr":"10.128.0.0/14","hostPrefix":14}],"serviceNetwork":[],"machineNetwork":[{"cidr":"172.30.0.0/16"},{"cidr":"172.30.1.0/24"},{}]}}}`, []string{
				at + "clusterNetwork[0].hostPrefix: no room", at +
					"machineNetwork[1].cidr: overlaps with 172.30.0.0/16", at + "machineNetwork[2].cidr: is missing",
				at + "serviceNetwork: is empty"}},
		{`{"hostedCluster":{"networking":{"machineNetwork":"10.0.0.0/16"}}}`,
			[]string{at + "machineNetwork: must be a list"}},
		{
			`{"hostedCluster":{"networking":{"clusterNetwork":[{"cidr":"10.128.0.0/14"},{"cidr":"10.132.0.0/14"}],"serviceNetwork":[{"cidr":"172.30.0.0/16"},{"cidr":"172.31.0.0/16"}]}}}`, []string{
				at + "clusterNetwork: has 2 items; 1", at + "serviceNetwork: has 2 items; 1"}},
		{`{"hostedCluster":{"configuration":{"a":"` + strings.Repeat("x", 256<<10) + `"}}}`,
			[]string{"spec: 262144 are possible"}},
		{`{"tags":{"aws:x":"1","a b":"c"},"properties":{"k":1},"aws":{"vpc-id":"x","region":["a"]}}`, []string{
			"spec.aws.region: must be a string", "spec.aws.vpc-id: privateSubnetIds",
			"spec.properties.k: must be a string", `spec.tags."a b": not the name`, "spec.tags.aws:x: reserved"}},
		{`{"placement":{"managementCluster":"No!","selector":{"a b":"c","k":"v!"}}}`, []string{
			"spec.placement.managementCluster: is not possible", `spec.placement.selector."a b": not a label key`,
			"spec.placement.selector.k: not a label value"}},
		{`{"controlPlaneUpgradePolicy":{"updateType":"Mine","schedule":"now","version":"9.9.9"}}`, []string{
			"spec.controlPlaneUpgradePolicy.schedule: cron", "spec.controlPlaneUpgradePolicy.updateType: UserInitiated",
			"spec.controlPlaneUpgradePolicy.version: not a version"}},
	} {
		made, p, err := older.Create([]byte(`{"name":"demo","spec":` + c.spec + `}`))
		if err != nil {
			t.Fatalf("%s: %v", c.spec, err)
		}
		t.Logf("%.200s", c.spec)
		expectProblems(t, p, c.want...)
		if len(p) > 0 && made.Spec != nil {
			t.Errorf("%.200s: there is a spec: %.200s", c.spec, made.Spec)
		}
	}
}

func TestBodiesThatAreNoCluster(t *testing.T) {
	long := strings.Repeat("a", 55)
	for body, want := range map[string][]string{
		`{}`:                                     {"name: is missing"},
		`{"name":""}`:                            {"name: not possible"},
		`{"name":7}`:                             {"name: must be a string"},
		`{"name":"` + long + `"}`:                {"name: 54 are possible"},
		`{"name":"A","spec":[]}`:                 {"name: use a-z", "spec: must be an object"},
		`{"name":"a","kind":"NodePool"}`:         {"kind: a Cluster goes"},
		`{"name":"a","cluster_id":"x"}`:          {"cluster_id: not known here"},
		`{"name":"a","target_project_id":"a b"}`: {"target_project_id: not a label value"},
		`{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":"w"},"spec":{"workload":{}}}`: {
			"apiVersion: not known", "kind: ManifestWork", "metadata: not known", "name: is missing",
			"spec.workload: not known"},
	} {
		_, p, err := older.Create([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		t.Log(body)
		expectProblems(t, p, want...)
	}
	for _, body := range []string{``, `[]`, `"x"`, `{`, `null`} {
		if _, _, err := older.Create([]byte(body)); err == nil {
			t.Errorf("%q is read", body)
		}
	}
	if _, p, err := (Clusters{}).Create([]byte(`{"name":"a"}`)); err != nil || len(p) != 1 {
		t.Errorf("without a catalogue: %v, %v", format(p), err)
	}
	if _, p, err := older.Create([]byte(`{"name":"` + long[:54] + `"}`)); err != nil || len(p) != 0 {
		t.Errorf("a name of 54: %v, %v", format(p), err)
	}
}

func stored(spec string) Stored {
	return Stored{ID: "7", Name: "demo", Cluster: "c", Project: "p1", CreatedBy: env.Creator, Account: "1",
		Spec: json.RawMessage(spec)}
}

func TestAClusterChanges(t *testing.T) {
	have := stored(`{"displayName":"old","properties":{"a":"1","b":"2"},` + defaults + `}`)
	got, p, err := older.Change(have, Patch, []byte(
		`{"spec":{"displayName":null,"hibernated":false,"properties":{"b":null,"c":"3"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	expectProblems(t, p)
	expectJSON(t, got, `{"hibernated":false,"properties":{"a":"1","c":"3"},`+defaults+`}`)

	// What is replaced keeps what the API filled in and what cannot change.
	got, p, err = older.Change(have, Replace, []byte(
		`{"id":"7","name":"demo","status":{"phase":"Ready"},"generation":4,"spec":{"deleteProtection":true}}`))
	if err != nil {
		t.Fatal(err)
	}
	expectProblems(t, p)
	expectJSON(t, got, `{"deleteProtection":true,`+defaults+`}`)
}

func TestWhatOfAClusterCannotChange(t *testing.T) {
	have := stored(`{"aws":{"region":"us"},` + strings.ReplaceAll(defaults, "1.36.10", "1.36.3") + `}`)
	const at = "spec.hostedCluster."
	for _, c := range []struct {
		body string
		want []string
	}{
		{`{"name":"other","id":"8","spec":{}}`, []string{"id: cannot be changed", "name: cannot be changed"}},
		{`{"target_project_id":"p2","account":"2","created_by":"me","spec":{}}`, []string{"account: cannot",
			"created_by: cannot", "target_project_id: cannot"}},
		{`{}`, []string{"spec: is missing"}},
		{`{"spec":null}`, []string{"spec: is missing"}},
		{`{"kind":null,"id":null,"name":null,"target_project_id":null,"account":null,"created_by":null,"spec":{}}`,
			[]string{
				"account: cannot be removed", "created_by: cannot", "id: cannot", "name: cannot",
				"target_project_id: cannot"}},
		{`{"spec":[]}`, []string{"spec: must be an object"}},
		{`{"status":{},"spec":{}}`, []string{"status: not known"}},
		{`{"kind":"NodePool","spec":{}}`, []string{"kind: a Cluster"}},
		{`{"spec":{"creatorARN":"arn:me"}}`, []string{"spec.creatorARN: cannot be changed"}},
		{`{"spec":{"creatorARN":null,"aws":null}}`, []string{"spec.aws.region: cannot", "spec.creatorARN: cannot"}},
		{`{"spec":{"aws":{"region":"eu","vpcId":"v"},"placement":{"managementCluster":"m"}}}`, []string{
			"spec.aws.region: cannot", "spec.aws.vpcId: cannot", "spec.placement.managementCluster: cannot"}},
		{
			`{"spec":{"hostedCluster":{"networking":{"machineNetwork":[{"cidr":"10.9.0.0/16"}],"networkType":"Calico"},"platform":{"type":"None"},"fips":true}}}`, []string{
				at + "fips: cannot", at + "networking.machineNetwork: cannot", at +
					"networking.networkType: cannot", at + "platform.type: cannot"}},
		{`{"spec":{"hostedCluster":null}}`, []string{
			at + "networking.clusterNetwork: cannot", at + "networking.machineNetwork: cannot", at +
				"networking.serviceNetwork: cannot", at + "release.image: cannot be removed"}},
		{`{"spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:1.35.9"}}}}`,
			[]string{at + "release.image: does not go back"}},
		{`{"spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:1.38.0"}}}}`,
			[]string{at + "release.image: one minor version at a time"}},
		{`{"spec":{"hostedCluster":{"release":{"image":"nope"}}}}`, []string{at + "release.image: not a release"}},
		{`{"spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.10"}}}}`, nil},
		{`{"spec":{"replicas":3,"deleteProtection":null}}`, []string{"spec.replicas: not known"}},
	} {
		got, p, err := env.Change(have, Patch, []byte(c.body))
		if err != nil {
			t.Fatalf("%s: %v", c.body, err)
		}
		t.Log(c.body)
		expectProblems(t, p, c.want...)
		if (got == nil) != (len(p) > 0) {
			t.Errorf("%s: %s", c.body, got)
		}
	}
	// A release that is offered no more stays, and can be left.
	gone := Clusters{Creator: env.Creator, Releases: env.Releases[2:3]}
	if _, p, err := gone.Change(have, Patch, []byte(`{"spec":{"displayName":"x"}}`)); err != nil || len(p) > 0 {
		t.Errorf("%v, %v", format(p), err)
	}
	if _, p, err := gone.Change(have, Patch, []byte(
		`{"spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.10"}}}}`)); err != nil || len(p) > 0 {
		t.Errorf("%v, %v", format(p), err)
	}
}

// An accepted spec can be decoded by the contract's types, and putting it back changes
// nothing.
func FuzzCluster(f *testing.F) {
	f.Add([]byte(`{"name":"demo","spec":{"displayName":"x","aws":{"region":"us"},"tags":{"a":"b"}}}`),
		[]byte(`{"spec":{"displayName":null}}`))
	f.Add([]byte(`{"name":"demo","spec":{`+strings.ReplaceAll(defaults, "\n\t", "")+`}}`),
		[]byte(`{"spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.10"}}}}`))
	f.Add(
		[]byte(
			`{"name":"demo","spec":{"hostedCluster":{"networking":{"clusterNetwork":[{"cidr":"10.0.0.0/8","hostPrefix":9}]}}}}`), []byte(`{"spec":{"hostedCluster":3}}`))
	f.Fuzz(func(t *testing.T, body, patch []byte) {
		made, p, err := older.Create(body)
		if err != nil || len(p) > 0 {
			if made.Spec != nil {
				t.Errorf("refused, and there is a spec: %s", made.Spec)
			}
			return
		}
		var typed platform.ClusterSpec
		if err := json.Unmarshal(made.Spec, &typed); err != nil {
			t.Fatalf("%s: %v", made.Spec, err)
		}
		have := stored(string(made.Spec))
		back, p, err := older.Change(have, Replace, fmt.Appendf(nil, `{"spec":%s}`, made.Spec))
		if err != nil || len(p) > 0 {
			t.Fatalf("putting %s back: %v, %v", made.Spec, format(p), err)
		}
		expectSame(t, made.Spec, back)
		after, p, err := older.Change(have, Patch, patch)
		if err != nil || len(p) > 0 {
			return
		}
		again, p, err := older.Change(stored(string(after)), Patch, patch)
		if err != nil || len(p) > 0 {
			t.Fatalf("the patch %s a second time: %v, %v", patch, format(p), err)
		}
		expectSame(t, after, again)
	})
}

func expectSame(t *testing.T, a, b json.RawMessage) {
	t.Helper()
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil || !reflect.DeepEqual(x, y) {
		t.Errorf("%s\nis not\n%s", b, a)
	}
}

func FuzzCredential(f *testing.F) {
	f.Add([]byte(`{"expiration_seconds":600}`))
	f.Add([]byte(`{"csr":"-----BEGIN CERTIFICATE REQUEST-----\nMIHP\n-----END CERTIFICATE REQUEST-----\n"}`))
	f.Add([]byte(`{"role":"view"}`))
	f.Add([]byte(` `))
	f.Fuzz(func(t *testing.T, body []byte) {
		c, p, err := ReadCredential(body, time.Hour)
		if err == nil && len(p) == 0 && (c.Lifetime < time.Minute || c.Lifetime > time.Hour ||
			!slices.Contains(cluster.CredentialRoles, c.Role)) {
			t.Errorf("%q is %+v", body, c)
		}
	})
}
