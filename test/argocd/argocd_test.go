package argocd

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
)

var run = flag.Bool("argocd", false, "build Argo CD, which takes half an hour, and run it")

// TestArgoCDSyncsWhatIsRendered lets Argo CD follow a repository with the charts and a rendered region through two
// commits. Only the root Application is created by hand.
func TestArgoCDSyncsWhatIsRendered(t *testing.T) {
	if !*run {
		t.Skip("without -argocd")
	}
	w := newWorld(t)
	w.run(w.repo, nil, "git", "init", "-q", "-b", "main")
	if err := os.CopyFS(filepath.Join(w.repo, "deploy/charts/regional-cluster/atoll"),
		os.DirFS(filepath.Join(w.root, "deploy/charts/regional-cluster/atoll"))); err != nil {
		t.Fatal(err)
	}
	w.write("config/defaults.yaml", "git: {repository: 'file://%s'}\nversions: {atoll: '1.0.0'}\n"+
		"dns: {domain: example.com}\n", w.repo)
	w.write("config/prod/environment.yaml", "sectors: [main]\n")
	const region = "config/prod/regions/r1.yaml"
	w.write(region, "sector: main\nservices: {replicas: {clm: 2}}\n")
	first := w.commit("one")
	w.kubectl("", "apply", "-f", filepath.Join(w.repo, "deploy/prod/r1/regional-cluster/root.yaml"))
	w.awaitSynced(first)
	w.awaitReplicas("2")
	w.write(region, "sector: main\nservices: {replicas: {clm: 3}}\n")
	w.awaitSynced(w.commit("two"))
	w.awaitReplicas("3")
}

// awaitSynced waits until the root Application and that of the chart, which the ApplicationSet makes, are in sync with
// a commit.
func (w *world) awaitSynced(commit string) {
	w.t.Helper()
	const state = "jsonpath={.status.sync.status} {.status.sync.revision}{.status.sync.revisions[0]} " +
		"{.status.operationState.phase}"
	for _, name := range []string{"root", "atoll"} {
		w.await("the Application "+name+" in sync with "+commit, func() bool {
			return w.kubectl("", "get", "application", name, "-n", "argocd", "--ignore-not-found", "-o", state) ==
				"Synced "+commit+" Succeeded"
		})
	}
}

// awaitReplicas waits until the service of the chart has so many replicas. Their number is in the ApplicationSet. The
// Application may read the commit first, and is in sync with it until the ApplicationSet has changed it.
func (w *world) awaitReplicas(want string) {
	w.t.Helper()
	w.await(want+" replicas of atoll-clm", func() bool {
		return w.kubectl("", "get", "statefulset", "atoll-clm", "-n", "atoll", "-o", "jsonpath={.spec.replicas}") == want
	})
}
