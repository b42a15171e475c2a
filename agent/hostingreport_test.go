package agent

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/api/work"
	"atoll.dev/test/testsite"
)

// TestHeartbeatsHaveTheReportOfHosting: the agent finds no report, then one, and then one that is none.
func TestHeartbeatsHaveTheReportOfHosting(t *testing.T) {
	c, ns := sharedCluster(t)
	_, err := c.in(namespaces, "").Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": work.HostingReportNamespace}}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // -count repeats the test in the same cluster
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := c.in(configMaps, work.HostingReportNamespace).Delete(context.WithoutCancel(t.Context()),
			work.HostingReportName, metav1.DeleteOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	b := testsite.New(t).StartBroker()
	s := startServer(t, b, work.Consumer(ns))
	o := agentOptions(t, c, b, work.Consumer(ns), t.TempDir())
	o.SeenEvery = 10 * time.Millisecond
	// The agent reads the report when it starts, and then at long intervals.
	starts := func(what, want string) {
		t.Helper()
		a := startAgent(t, o)
		s.await(what, func() bool { return s.lastSeen == want })
		a.stop()
	}
	starts("a heartbeat without a report", `{}`)
	report := c.create(t, configMaps, work.HostingReportNamespace, map[string]any{"apiVersion": "v1",
		"kind": "ConfigMap", "metadata": map[string]any{"name": work.HostingReportName}, "data": map[string]any{
			work.HostingReportKey: `{"warm_planes":2,"capacity":{"planes":40}}`}})
	starts("the report", `{"hosting":{"warm_planes":2,"capacity":{"planes":40}}}`)
	report.Object["data"] = map[string]any{work.HostingReportKey: `two`}
	_, err = c.in(configMaps, work.HostingReportNamespace).Update(t.Context(), report, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	starts("a heartbeat without a report again", `{}`)
}
