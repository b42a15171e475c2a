package rosa_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"atoll.dev/access"
	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
)

// The tests of this file run the front as it is in a region: signed requests
// over TLS, a real Maestro on a real PostgreSQL and a real broker behind it.

type keyring map[string]access.Key

func (k keyring) Lookup(id string) (access.Key, bool, error) { key, ok := k[id]; return key, ok, nil }

var (
	operator = access.Key{
		AccessKeyID: "AKIAOPERATOR22222222", Secret: "operator-secret", Privileged: true,
		Account: "123456789012", Principal: "arn:aws:iam::123456789012:user/operator",
	}
	customer = access.Key{
		AccessKeyID: "AKIACUSTOMER22222222", Secret: "customer-secret",
		Account: "210987654321", Principal: "arn:aws:iam::210987654321:user/customer",
	}
)

// neighbour is privileged, too, and has another account.
var neighbour = access.Key{
	AccessKeyID: "AKIANEIGHBOUR2222222", Secret: "neighbour-secret", Privileged: true,
	Account: "345678901234", Principal: "arn:aws:iam::345678901234:user/neighbour",
}

const region = "test-1"

// platformAPI serves the front and returns its address and CA file.
func platformAPI(t testing.TB, m *maestroclient.Client) (endpoint, caFile string) {
	return platformOver(t, rosa.Options{Maestro: m, Log: slog.New(slog.DiscardHandler)})
}

func platformOver(t testing.TB, o rosa.Options) (endpoint, caFile string) {
	t.Helper()
	o.Ops = rest.NewOps()
	o.Identifier = &access.Verifier{Region: region, Keys: keyring{operator.AccessKeyID: operator,
		customer.AccessKeyID: customer, neighbour.AccessKeyID: neighbour}}
	s := httptest.NewTLSServer(asDocumented(t, rosa.New(o)))
	t.Cleanup(s.Close)
	caFile = filepath.Join(t.TempDir(), "ca.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(caFile, block, 0o600); err != nil {
		t.Fatal(err)
	}
	return s.URL, caFile
}

func clientOf(t *testing.T, endpoint, caFile string, key access.Key) *client.Client {
	t.Helper()
	p, err := client.New(client.Options{
		Endpoint: endpoint + "/prod", CAFile: caFile, Budget: 5 * time.Second,
		Credentials: client.Credentials{AccessKeyID: key.AccessKeyID, SecretAccessKey: key.Secret, Region: region},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// manifestWork is a ManifestWork of ConfigMaps with this value.
func manifestWork(name, value string, configMaps int) json.RawMessage {
	var manifests []string
	for i := range configMaps {
		manifests = append(manifests, fmt.Sprintf(
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%d","namespace":"default"},"data":{"k":%q}}`,
			i, value))
	}
	return fmt.Appendf(
		nil, `{"apiVersion":"work.open-cluster-management.io/v1","kind":"ManifestWork","metadata":{"name":%q},"spec":{"workload":{"manifests":[%s]}}}`,
		name, strings.Join(manifests, ","))
}

func want(t *testing.T, err error, status int, code, reason string) {
	t.Helper()
	e, ok := errors.AsType[*remote.Error](err)
	if !ok || e.Status != status || e.Code != code || !strings.Contains(e.Reason, reason) {
		t.Errorf("got %v\nwant %d %s: ...%s...", err, status, code, reason)
	}
}

func TestManagementClustersAndWork(t *testing.T) {
	ctx := t.Context()
	endpoint, ca := platformAPI(t, startMaestro(t))
	p := clientOf(t, endpoint, ca, operator)

	if _, err := p.Ready(ctx); err != nil {
		t.Fatalf("ready: %v", err)
	}
	mc, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "management-01",
		Labels: map[string]string{"cluster_type": "management"}})
	if err != nil {
		t.Fatal(err)
	}
	if mc.Kind != "Consumer" || mc.Href != "/api/maestro/v1/consumers/"+mc.ID ||
		mc.Labels["cluster_type"] != "management" {
		t.Errorf("registered %+v", mc)
	}
	_, err = p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "management-01"})
	want(t, err, 409, "maestro-6", "already exists")
	for _, key := range []string{"management-01", mc.ID} {
		if got, err := p.ManagementCluster(ctx, key); err != nil || got.ID != mc.ID {
			t.Errorf("by %s: %+v, %v", key, got, err)
		}
	}
	_, err = p.ManagementCluster(ctx, "management-02")
	want(t, err, 404, "not-found", "management-02")
	if all, err := p.ManagementClusters(ctx); err != nil || len(all) != 1 {
		t.Errorf("list: %+v, %v", all, err)
	}

	made, err := p.CreateWork(ctx, "management-01", manifestWork("w", "1", 1))
	if err != nil {
		t.Fatal(err)
	}
	if work.ID(made.ID) != work.BundleID(work.SourcePlatform, "management-01", "w") || made.Kind != "ManifestWork" ||
		made.Href != "/api/v0/work/"+made.ID || made.ClusterID != "management-01" || made.Name != "w" ||
		made.Status.Conditions == nil || made.Status.ResourceStatus.Manifests == nil {
		t.Errorf("posted %+v", made)
	}
	_, err = p.CreateWork(ctx, "management-01", manifestWork("w", "2", 1))
	want(t, err, 409, "maestro-6", "already exists")
	_, err = p.CreateWork(ctx, "management-02", manifestWork("w", "1", 1))
	want(t, err, 404, "not-found", "management-02")

	w, err := p.Work(ctx, work.ID(made.ID))
	if err != nil {
		t.Fatal(err)
	}
	if w.Generation != 1 || w.ETag == "" || w.ClusterID != "management-01" || w.Delivery == nil ||
		w.Delivery.AcceptedAt == nil || w.DeletedAt != nil {
		t.Errorf("got %+v", w)
	}
	var data struct {
		Metadata struct{ Name, Namespace string }
		Spec     struct {
			Workload struct{ Manifests []json.RawMessage }
		}
	}
	if err := json.Unmarshal(w.Data, &data); err != nil || data.Metadata.Name != "w" ||
		data.Metadata.Namespace != "management-01" || len(data.Spec.Workload.Manifests) != 1 {
		t.Errorf("data %s, %v", w.Data, err)
	}

	same, err := p.ReplaceWork(ctx, work.ID(w.ID), "", manifestWork("w", "1", 1), w.ETag)
	if err != nil || same.ETag != w.ETag || same.Generation != 1 {
		t.Errorf("an equal PUT: %s after %s, %v (I3)", same.ETag, w.ETag, err)
	}
	changed, err := p.ReplaceWork(ctx, work.ID(w.ID), "management-01", manifestWork("w", "2", 1), w.ETag)
	if err != nil || changed.ETag == w.ETag || changed.Generation != 2 || !strings.Contains(string(changed.Data),
		`"k":"2"`) {
		t.Errorf("a PUT: %+v, %v", changed, err)
	}
	_, err = p.ReplaceWork(ctx, work.ID(w.ID), "management-01", manifestWork("w", "3", 1), w.ETag)
	want(t, err, 412, "precondition-failed", "If-Match")
	_, err = p.ReplaceWork(ctx, work.ID(w.ID), "", manifestWork("v", "3", 1), "")
	want(t, err, 400, "invalid-manifestwork", "cannot be renamed")
	_, err = p.ReplaceWork(ctx, work.ID(w.ID), "management-02", manifestWork("w", "3", 1), "")
	want(t, err, 400, "invalid-request", "cannot move")
	unknown := work.BundleID(work.SourcePlatform, "management-01", "unknown")
	for _, cluster := range []string{"", "management-01"} {
		_, err = p.ReplaceWork(ctx, unknown, client.ManagementClusterName(cluster), manifestWork("unknown", "3", 1), "")
		want(t, err, 404, "not-found", string(unknown))
	}

	_, err = p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "management-02"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.CreateWork(ctx, "management-02", manifestWork("w", "1", 1)); err != nil {
		t.Fatal(err)
	}
	for cluster, n := range map[string]int{"": 2, "management-01": 1, "management-03": 0} {
		if works, err := p.Works(ctx, client.ManagementClusterName(cluster)); err != nil || len(works) != n {
			t.Errorf("works of %q: %d, %v", cluster, len(works), err)
		}
	}
	bundles, err := p.ListBundles(ctx, remote.ListOptions{Search: remote.SearchEqual("consumer_name", "management-01"),
		Fields: "name,version"})
	if err != nil || len(bundles.Items) != 1 || bundles.Items[0].ID != w.ID || bundles.Items[0].Version != 2 ||
		bundles.Items[0].Manifests != nil {
		t.Errorf("bundles: %+v, %v", bundles, err)
	}

	want(t, p.DeleteManagementCluster(ctx, "management-01"), 409, "management-cluster-in-use", "delete them")
	want(t, p.DeleteWork(ctx, work.ID(w.ID), w.ETag), 412, "precondition-failed", "If-Match")
	for range 2 { // the second changes nothing
		if err := p.DeleteWork(ctx, work.ID(w.ID), ""); err != nil {
			t.Fatal(err)
		}
	}
	gone, err := p.Work(ctx, work.ID(w.ID))
	if err != nil || gone.DeletedAt == nil {
		t.Errorf("a work whose agent has not confirmed: %+v, %v", gone, err)
	}
	_, err = p.ReplaceWork(ctx, work.ID(w.ID), "", manifestWork("w", "4", 1), "")
	want(t, err, 409, "maestro-6", "deletion")
	want(t, p.DeleteWork(ctx, unknown, ""), 404, "not-found", string(unknown))
	want(t, p.DeleteManagementCluster(ctx, "management-01"), 409, "management-cluster-in-use", "delete them")
	want(t, p.DeleteManagementCluster(ctx, "management-03"), 404, "not-found", "management-03")
	_, err = p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "management-03"})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteManagementCluster(ctx, "management-03"); err != nil {
		t.Error(err)
	}
}

func TestBadManifestsAreRefusedWithAdvice(t *testing.T) {
	ctx := t.Context()
	endpoint, ca := platformAPI(t, startMaestro(t))
	p := clientOf(t, endpoint, ca, operator)
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	good := string(manifestWork("w", "1", 2))
	for _, c := range []struct{ name, old, new, reason string }{
		{"no kind", `"kind":"ConfigMap",`, ``, "manifests[0]"},
		{"no apiVersion", `{"apiVersion":"v1",`, `{`, "manifests[0]"},
		{"no name", `"name":"c-1",`, ``, "manifests[1]"},
		{"generateName", `"name":"c-1"`, `"generateName":"c-"`, "generateName"},
		{"resourceVersion", `"name":"c-1"`, `"name":"c-1","resourceVersion":"7"`, "resourceVersion"},
		{"twice the same", `c-1`, `c-0`, "same object"},
		{"too much", `"k":"1"`, `"k":"` + strings.Repeat("x", 500<<10) + `"`, "split"},
		{"a bad label", `"name":"c-1"`, `"name":"c-1","labels":{"not a label":"x"}`, "labels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := p.CreateWork(ctx, "m", []byte(strings.Replace(good, c.old, c.new, 1)))
			want(t, err, 400, "invalid-manifestwork", c.reason)
		})
	}
	_, err := p.ManagementCluster(ctx, "m")
	if err != nil {
		t.Error(err)
	}
	_, err = p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "n",
		Labels: map[string]string{"not a label": ""}})
	want(t, err, 400, "maestro-8", "label")
	_, err = p.ListBundles(ctx, remote.ListOptions{Search: "nonsense"})
	want(t, err, 400, "maestro-21", "search")
	_, err = p.ListBundles(ctx, remote.ListOptions{Search: "name='\x00'"})
	want(t, err, 400, "invalid-request", "NUL")
	if works, err := p.Works(ctx, ""); err != nil || len(works) != 0 {
		t.Errorf("something was stored: %+v, %v", works, err)
	}
}

func TestAnUnprivilegedAccountIsRefused(t *testing.T) {
	endpoint, ca := platformAPI(t, startMaestro(t))
	p := clientOf(t, endpoint, ca, customer)
	_, err := p.ManagementClusters(t.Context())
	want(t, err, 403, "not-privileged", "privileged")
	wrong := operator
	wrong.Secret = "x"
	_, err = clientOf(t, endpoint, ca, wrong).ManagementClusters(t.Context())
	want(t, err, 403, "wrong-signature", "")
}

func TestApplyCreatesChangesAndLeavesAlone(t *testing.T) {
	ctx := t.Context()
	endpoint, ca := platformAPI(t, startMaestro(t))
	p := clientOf(t, endpoint, ca, operator)
	_, _, err := p.ApplyWork(ctx, "m", manifestWork("w", "1", 1))
	want(t, err, 404, "not-found", "m")
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	var etags []string
	for i, c := range []struct {
		value   string
		outcome client.Outcome
	}{{"1", client.Created}, {"1", client.Unchanged}, {"2", client.Changed}, {"2", client.Unchanged}} {
		w, outcome, err := p.ApplyWork(ctx, "m", manifestWork("w", c.value, 1))
		if err != nil || outcome != c.outcome {
			t.Errorf("apply %d: %s, %v; want %s", i, outcome, err, c.outcome)
		}
		etags = append(etags, w.ETag)
	}
	if etags[0] != etags[1] || etags[1] == etags[2] || etags[2] != etags[3] {
		t.Errorf("etags %v (I3)", etags)
	}
	_, _, err = p.ApplyWork(ctx, "m", json.RawMessage(`{"kind":"ConfigMap"}`))
	want(t, err, 400, "invalid-manifestwork-type", "ConfigMap")

	// Writers that race: each apply lands, and the last state is one of theirs.
	errs := make(chan error)
	for i := range 8 {
		go func() {
			_, _, err := p.ApplyWork(ctx, "m", manifestWork("race", fmt.Sprint(i), 1))
			errs <- err
		}()
	}
	for range 8 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}
