package rebuild

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apiclm "atoll.dev/api/clm"
	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/cli"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/test/testsite"
)

var (
	namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

const clusters clmclient.Collection = "clusters"

// create makes a cluster and waits until it is reconciled.
func (w *world) create(name, mc string) string {
	w.T.Helper()
	r := w.Create(clusters, "Cluster", name, `{}`, apiclm.Labels{"atoll.dev/management-cluster": mc})
	w.AwaitReconciled(clusters, r.ID, 1)
	return r.ID
}

// applied returns the uid and resourceVersion of each applied object of the clusters, given by
// management cluster, and of the source's own work. An object that was created again or written to
// since has others.
func (w *world) applied(ids map[string]string) map[string]string {
	w.T.Helper()
	found := map[string]string{}
	note := func(mc string, resource schema.GroupVersionResource, ns, name string) {
		o, err := w.Clusters[work.Consumer(mc)].Object(resource, ns, name)
		if err != nil {
			w.T.Fatal(err)
		}
		found[resource.Resource+" "+ns+"/"+name] = string(o.GetUID()) + " " + o.GetResourceVersion()
	}
	for mc, id := range ids {
		note(mc, namespaces, "", "clusters-"+id)
		note(mc, configMaps, "clusters-"+id, "cluster-config")
	}
	note(mc1, configMaps, "default", "direct")
	return found
}

// rebuild runs "atoll maestro rebuild" and returns its exit code, its report, and its standard error.
func (w *world) rebuild(timeout string) (code int, report rebuilt, stderr string) {
	w.T.Helper()
	var out, errs bytes.Buffer
	code = cli.Main([]string{"maestro", "rebuild", "--endpoint", "http://" + w.Maestro.HTTP, "--clm-endpoint",
		w.CLM.URL, "-o", "json", "--timeout", timeout}, strings.NewReader(""), &out, &errs)
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		w.T.Fatalf("%v in %s; %s", err, out.String(), errs.String())
	}
	return code, report, errs.String()
}

type rebuilt struct {
	Consumers struct{ Known, Created int }
	Works     struct{ Present, Unknown int }
	Waiting   []struct{ Kind, ID, Name, What string }
	Unknown   []maestro.UnknownWork `json:"unknown_works"`
	Done      bool
}

// TestI8I9ARebuildRestoresTheOrderedWorks loses Maestro's database while works are applied on two
// management clusters, one of them created by another source, and while a deletion waits for an agent
// that is away. A first rebuild waits for this agent, and the deletion does not end without it. After
// the agent has started, Maestro has the works again, the deletion ends, and no object was created
// again or written to.
func TestI8I9ARebuildRestoresTheOrderedWorks(t *testing.T) {
	w := newWorld(t)
	for _, mc := range []string{mc1, mc2} {
		w.Create("managementclusters", "ManagementCluster", mc, `{}`, nil)
	}
	one, two, deleting := w.create("one", mc1), w.create("two", mc2), w.create("deleting", mc2)
	direct := w.Dial("somebody")
	if _, err := direct.CreateBundle(t.Context(), maestroclient.Bundle{
		ID: direct.BundleID(mc1, "direct"), Consumer: mc1, Metadata: metav1.ObjectMeta{Name: "direct"},
		Spec: work.Bundle{Manifests: []json.RawMessage{
			json.RawMessage(
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"direct","namespace":"default"},"data":{"k":"v"}}`)}},
	}); err != nil {
		t.Fatal(err)
	}
	w.Await("the work of a source is applied", func() error {
		_, err := w.Clusters[mc1].Object(configMaps, "default", "direct")
		return err
	})
	w.Clusters[mc2].Agent.Stop()
	w.Delete(clusters, deleting)
	operator := w.Dial("operator")
	w.Await("the deletion has reached Maestro", func() error {
		doc, err := operator.Bundle(t.Context(), work.BundleID("cl-maestro", mc2, "cl-maestro-"+deleting))
		if err != nil {
			return err
		}
		var b maestro.ResourceBundle
		if err := json.Unmarshal(doc.JSON, &b); err != nil || b.DeletedAt == nil {
			return errors.Join(err, errors.New("the work is not being deleted"))
		}
		return nil
	})
	before := w.applied(map[string]string{mc1: one, mc2: two})

	w.loseDatabase()
	code, report, stderr := w.rebuild("1s")
	waits := map[string]bool{}
	for _, wait := range report.Waiting {
		waits[wait.Kind+" "+wait.Name] = true
	}
	if code != 1 || report.Done || report.Consumers.Created != 2 || !waits["ManagementCluster mc2"] ||
		!waits["Cluster deleting"] {
		t.Fatalf("with one agent away: %d, %+v; %s", code, report, stderr)
	}
	if _, err := w.Client.Get(t.Context(), clusters, deleting, ""); err != nil {
		t.Fatalf("the cluster was deleted before its agent connected: %v", err)
	}

	w.Clusters[mc2].Agent.Start()
	code, report, stderr = w.rebuild(testsite.HangLimit.String())
	if code != 0 || !report.Done || report.Consumers.Created != 0 || report.Consumers.Known != 2 ||
		len(report.Waiting) != 0 {
		t.Fatalf("rebuilt: %d, %+v; %s", code, report, stderr)
	}
	if len(report.Unknown) != 1 || work.ID(report.Unknown[0].ID) != direct.BundleID(mc1, "direct") ||
		report.Works.Present != 2 {
		t.Errorf("works: %+v", report)
	}
	if _, err := w.Client.Get(t.Context(), clusters, deleting, ""); remote.StatusOf(err) != http.StatusNotFound {
		t.Errorf("the cluster that was being deleted: %v", err)
	}
	w.Await("its namespace is being deleted", func() error {
		ns, err := w.Clusters[mc2].Object(namespaces, "", "clusters-"+deleting)
		if err == nil && ns.GetDeletionTimestamp() == nil {
			return errors.New("it is not being deleted")
		}
		return nil
	})
	w.AwaitReconciled(clusters, one, 1)
	w.AwaitReconciled(clusters, two, 1)

	// The database is lost once more while the agents stay connected.
	w.loseDatabase()
	code, report, stderr = w.rebuild(testsite.HangLimit.String())
	if code != 0 || !report.Done || report.Works.Present != 2 || len(report.Unknown) != 1 ||
		report.Consumers.Created != 2 {
		t.Errorf("once more: %d, %+v; %s", code, report, stderr)
	}
	code, report, stderr = w.rebuild(testsite.HangLimit.String()) // nothing is lost
	if code != 0 || !report.Done || report.Works.Present != 2 || report.Consumers.Created != 0 {
		t.Errorf("with nothing lost: %d, %+v; %s", code, report, stderr)
	}
	if diff := cmp.Diff(before, w.applied(map[string]string{mc1: one, mc2: two})); diff != "" {
		t.Errorf("applied objects (-before +after):\n%s", diff)
	}
}
