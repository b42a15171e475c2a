package interop

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// Neither Helm nor Argo CD deletes a kind or a namespace of a chart, since every object in it would go with it: with
// HostedCluster all hosted clusters, with the namespace of hosting the volume of all planes.
func TestChartsKeepKindsAndNamespaces(t *testing.T) {
	kept := map[string]int{}
	for _, c := range chartCases(t) {
		for _, o := range c.render(t) {
			if kind := o.GetKind(); kind != "CustomResourceDefinition" && kind != "Namespace" {
				continue
			}
			kept[o.GetName()]++
			for key, want := range map[string]string{"helm.sh/resource-policy": "keep",
				"argocd.argoproj.io/sync-options": "Prune=false,Delete=false"} {
				if have := o.GetAnnotations()[key]; have != want {
					t.Errorf("%s: %s %s: annotation %s is %q, want %q", c.name, o.GetKind(), o.GetName(), key, have, want)
				}
			}
		}
	}
	for _, name := range []string{"hostedclusters.hypershift.openshift.io", "atoll-hosting",
		"appliedmanifestworks.work.open-cluster-management.io"} {
		if kept[name] == 0 {
			t.Errorf("no chart has %s", name)
		}
	}
}

// The ApplicationSets of the examples delete no Application when a revision has no charts, and no resource of an
// Application that somebody deletes.
func TestApplicationSetsDeleteNothing(t *testing.T) {
	files, err := filepath.Glob(examples + "/*/*/*/apps/applicationset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(examples + "/*/*/*/*/apps/applicationset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if files = append(files, more...); len(files) == 0 {
		t.Fatal("the examples have no ApplicationSet")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := documents(t, text)[0].Object
		sync, _, _ := unstructured.NestedString(set, "spec", "syncPolicy", "applicationsSync")
		preserve, _, _ := unstructured.NestedBool(set, "spec", "syncPolicy", "preserveResourcesOnDeletion")
		if sync != "create-update" || !preserve {
			t.Errorf("%s: applicationsSync %q, preserveResourcesOnDeletion %t", file, sync, preserve)
		}
	}
}
