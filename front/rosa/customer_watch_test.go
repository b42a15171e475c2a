package rosa_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/test/testsite"
)

// get makes a signed GET as any HTTP client does.
func (l *lifecycle) get(t *testing.T, path string, into any) (status int) {
	t.Helper()
	body, status := l.curl(t, "GET", path, "")
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatalf("%s: %v: %s", path, err, body)
	}
	return status
}

// curl calls the API with the program curl.
func (l *lifecycle) curl(t *testing.T, method, path, body string, headers ...string) ([]byte, int) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "body")
	args := []string{
		"--silent", "--show-error", "--max-time", "30", "--cacert", l.ca, "--request", method, "--output", out,
		"--write-out", "%{http_code}",
		"--aws-sigv4", "aws:amz:" + region + ":execute-api", "--user", operator.AccessKeyID + ":" + operator.Secret,
	}
	for _, h := range headers {
		args = append(args, "--header", h)
	}
	if body != "" {
		args = append(args, "--header", "Content-Type: application/json", "--data-binary", body)
	}
	code, err := exec.CommandContext(t.Context(), "curl", append(args, l.endpoint+path)...).CombinedOutput()
	if err != nil {
		t.Fatalf("curl %s %s: %v: %s", method, path, err, code)
	}
	status := 0
	if _, err := fmt.Sscanf(string(code), "%d", &status); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(out)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return data, status
}

func TestChangesOfTheAccountsClustersAreWatched(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testsite.HangLimit)
	defer cancel()
	l := startLifecycle(t)
	p, other := l.as(operator), l.as(neighbour)
	if _, err := other.CreateCluster(ctx, named("theirs", "")); err != nil {
		t.Fatal(err)
	}
	first, err := p.CreateCluster(ctx, named("first", ""))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.WatchClusters(ctx, remote.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cursor := ""
	next := func(w *remote.Watch) (rest.EventType, platform.Cluster) {
		t.Helper()
		for {
			e, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			if e.Cursor != "" {
				cursor = e.Cursor
			}
			if e.Type == rest.Bookmark {
				continue
			}
			var c platform.Cluster
			if err := json.Unmarshal(e.Object, &c); err != nil {
				t.Fatal(err)
			}
			return e.Type, c
		}
	}
	is := func(kind rest.EventType, c platform.Cluster, wanted rest.EventType, name string,
		phase platform.ClusterPhase) {
		t.Helper()
		if kind != wanted || c.Name != name || c.Status.Phase != phase {
			t.Errorf("got %s %s %s, want %s %s %s", kind, c.Name, c.Status.Phase, wanted, name, phase)
		}
	}
	kind, c := next(w)
	is(kind, c, rest.Added, "first", platform.ClusterPhaseWaitingForPlacement)
	l.up(first.ID)
	for c.Status.Phase != platform.ClusterPhaseReady { // states between may be left out
		kind, c = next(w)
	}
	is(kind, c, rest.Modified, "first", platform.ClusterPhaseReady)
	_ = w.Close()
	if _, err := other.CreateCluster(ctx, named("theirs-too", "")); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteCluster(ctx, cluster.ID(first.ID), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if w, err = p.WatchClusters(ctx, remote.WatchOptions{Cursor: cursor, ID: first.ID}); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	kind, c = next(w)
	is(kind, c, rest.Modified, "first", platform.ClusterPhaseDeleting)
	l.gone("clusters", first.ID, "hosted-cluster", "pull-secret", "placement")
	for kind != rest.Deleted {
		kind, c = next(w)
	}
	is(kind, c, rest.Deleted, "first", platform.ClusterPhaseDeleting)
	_, err = p.WatchClusters(ctx, remote.WatchOptions{Cursor: "nonsense"})
	if s := remote.StatusOf(err); s != http.StatusGone && s != http.StatusBadRequest {
		t.Errorf("a cursor that is none: %v", err)
	}
}

// A watch sends the events of a cluster and its node pools when they happen, and from
// a cursor on.
func TestAWatchSendsEventsWhenTheyHappen(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testsite.HangLimit)
	defer cancel()
	l := startLifecycle(t)
	p := l.as(operator)
	made, err := p.CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	w, err := p.WatchClusterEvents(ctx, cluster.ID(made.ID), "")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cursor := ""
	next := func(w *remote.Watch) platform.Event {
		t.Helper()
		for {
			e, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			if e.Cursor != "" {
				cursor = e.Cursor
			}
			if e.Type == rest.Bookmark {
				continue
			}
			var happened platform.Event
			if err := json.Unmarshal(e.Object, &happened); err != nil || e.Type != rest.Added {
				t.Fatalf("%s %s, %v", e.Type, e.Object, err)
			}
			return happened
		}
	}
	wantEvents := func(w *remote.Watch, wanted ...string) {
		t.Helper()
		for _, s := range wanted {
			if e := next(w); fmt.Sprintf("%s %s %s", e.Type, e.Stage, e.Reason) != s {
				t.Errorf("event %+v, want %s", e, s)
			}
		}
	}
	wantEvents(w, "Normal Accepted Created")
	n, err := p.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: made.ID, Name: "w"})
	if err != nil {
		t.Fatal(err)
	}
	wantEvents(w, "Normal  NodePoolCreated")
	l.report("clusters", made.ID, "placement", `{}`, "Available=False:NoCapacity:no management cluster")
	wantEvents(w, "Waiting Placed NoCapacity")
	l.up(made.ID)
	wantEvents(w, "Normal Placed Placed")
	middle := cursor
	wantEvents(w, "Normal Ordered Ordered", "Normal PlaneStarting PlaneStarting", "Normal APIServing APIServing",
		"Normal Ready Ready")
	l.report("nodepools", n.ID, "node-pool", `{"replicas":2}`, "Available=True:AsExpected")
	wantEvents(w, "Normal  NodePoolReady", "Normal NodesReady NodesReady")

	resumed, err := p.WatchClusterEvents(ctx, cluster.ID(made.ID), middle)
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Close()
	wantEvents(resumed, "Normal Ordered Ordered", "Normal PlaneStarting PlaneStarting", "Normal APIServing APIServing",
		"Normal Ready Ready", "Normal  NodePoolReady", "Normal NodesReady NodesReady")

	events, err := p.ClusterEvents(ctx, cluster.ID(made.ID))
	if err != nil || len(events) != 10 || events[0].SinceMs != 0 || events[9].Stage != platform.EventStageNodesReady ||
		events[9].SinceMs <= 0 {
		t.Errorf("events %+v, %v", events, err)
	}
	_, err = p.WatchClusterEvents(ctx, cluster.ID(made.ID), "nonsense")
	want(t, err, 400, "CLUSTERS-MGMT-EVENTS-001", "cursor")

	// The end of the cluster is the end of the road.
	var last platform.Event
	ended, begun := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- p.FollowClusterEvents(ctx, cluster.ID(made.ID), func(e platform.Event) error {
			if last.Reason == "" {
				close(begun)
			}
			last = e
			return nil
		})
	}()
	select {
	case <-begun:
	case <-ctx.Done():
		t.Fatal("no event was delivered")
	}
	if err := p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantEvents(w, "Normal  NodePoolDeletionRequested", "Normal  DeletionRequested")
	l.gone("nodepools", n.ID, "node-pool")
	l.gone("clusters", made.ID, "hosted-cluster", "pull-secret", "placement")
	if err := <-ended; remote.StatusOf(err) != 404 || last.Reason != "Deleted" {
		t.Errorf("the end is %+v, %v", last, err)
	}
}

// The lifecycle manager's limit of open watches holds for a customer, whichever watches of the Platform API
// they are. Another customer does not notice, and a watch that ends makes room for the next one.
func TestACustomerHasALimitOfWatches(t *testing.T) {
	l := startLifecycle(t)
	ctx := t.Context()
	mine, others := l.once(operator), l.once(neighbour)
	made, err := l.as(operator).CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	first, err := mine.WatchClusterEvents(ctx, cluster.ID(made.ID), "")
	if err != nil {
		t.Fatal(err)
	}
	open := func(p *client.Client) error {
		w, err := p.WatchClusters(ctx, remote.WatchOptions{})
		if err == nil {
			t.Cleanup(func() { _ = w.Close() })
		}
		return err
	}
	for range watchesPerCaller - 1 {
		if err := open(mine); err != nil {
			t.Fatal(err)
		}
	}
	e, ok := errors.AsType[*remote.Error](open(mine))
	if !ok || e.Status != 429 || e.Code != "too-many-watches" || e.RetryAfter != 5*time.Second {
		t.Fatalf("one more watch: %+v", e)
	}
	if err := open(others); err != nil {
		t.Errorf("another customer's watch: %v", err)
	}
	if _, err := mine.Clusters(ctx, client.ClusterQuery{}); err != nil {
		t.Errorf("a list: %v", err)
	}
	_ = first.Close()
	for err = open(mine); err != nil; err = open(mine) { // the server notices the end a moment later
		if remote.StatusOf(err) != 429 {
			t.Fatal(err)
		}
	}
}
