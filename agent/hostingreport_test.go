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

// A report is sent while hosting writes it again and again, and for 25 minutes more.
func TestAReportThatHostingWritesNoMoreIsDropped(t *testing.T) {
	const rewrite, limit = work.HostingRewriteEvery, work.MaxHostingReportAge
	start, two, three := time.Now(), &work.HostingReport{WarmPlanes: 2}, &work.HostingReport{WarmPlanes: 3}
	var last hostingRecord
	check := func(what string, at time.Duration, want *work.HostingReport) {
		t.Helper()
		if got := last.reportAt(start.Add(at)); got != want {
			t.Errorf("%s: the heartbeats have %+v, want %+v", what, got, want)
		}
	}
	check("nothing was read", 0, nil)
	last.record(two, "1", start)
	check("it was read", 0, two)
	last.record(two, "1", start.Add(limit-time.Second))
	check("it is not written again", limit-time.Second, two)
	check("it cannot be read any more", limit, nil)
	last.record(two, "1", start.Add(limit+time.Second))
	check("it is read again, and has the same version", limit+time.Second, nil)
	now := limit + time.Minute
	for _, version := range []string{"2", "3", "4", "5"} { // an unchanged report
		now += rewrite
		last.record(two, version, start.Add(now))
		check("it is written again", now+rewrite, two)
	}
	last.record(three, "6", start.Add(now))
	check("it has changed", now, three)
	last.record(nil, "", start.Add(now))
	check("there is none", now, nil)
	last.record(two, "7", start.Add(now+2*limit))
	check("there is one again", now+2*limit, two)
	last.record(nil, "8", start.Add(now+2*limit))
	check("its content is no report", now+2*limit, nil)
}

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
