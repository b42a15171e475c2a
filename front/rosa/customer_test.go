package rosa_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

func TestAClusterIsCreatedChangedAndDeleted(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	made, err := p.CreateCluster(ctx, platform.ClusterRequest{Name: "demo", TargetProjectID: "p1"})
	if err != nil {
		t.Fatal(err)
	}
	if made.Name != "demo" || cluster.Account(made.Account) != operator.Account ||
		made.CreatedBy != string(operator.Principal) || made.TargetProjectID != "p1" || made.Generation != 1 ||
		made.ETag != `"`+made.ResourceVersion+`"` || made.Status.Phase != platform.ClusterPhaseWaitingForPlacement ||
		made.PlacementRef != nil ||
		made.Spec.CreatorARN != string(operator.Principal) ||
		made.Spec.HostedCluster.Release.Image != "atoll.dev/release:1.36.3" ||
		made.Spec.HostedCluster.Networking.ClusterNetwork[0].Cidr != "10.132.0.0/14" || made.Status.Conditions == nil ||
		made.CreatedAt.IsZero() {
		t.Errorf("made %+v", made)
	}
	_, err = p.CreateCluster(ctx, named("demo", ""))
	want(t, err, 409, "CLUSTERS-MGMT-CREATE-003", "already exists")

	l.report("clusters", made.ID, "placement", `{"state":"Waiting"}`, "Available=False:NoCapacity:waiting for capacity")
	c, err := p.Cluster(ctx, cluster.ID(made.ID))
	if err != nil || c.Status.Reason != "NoCapacity" || !strings.HasPrefix(c.Status.Message,
		"waiting for capacity: ") || c.ETag == made.ETag {
		t.Errorf("waiting: %+v, %v", c.Status, err)
	}
	l.up(made.ID)
	if c, err = p.Cluster(ctx, cluster.ID(made.ID)); err != nil || c.Status.Phase != platform.ClusterPhaseReady ||
		c.Status.ObservedGeneration != 1 || c.Status.Version != "1.36.3" ||
		c.Status.Power != "Awake" || c.Status.ControlPlaneEndpoint.Port != 30001 ||
		c.PlacementRef.ManagementCluster != "management-01" {
		t.Errorf("up: %+v, %v", c.Status, err)
	}
	statuses, err := p.ClusterStatuses(ctx, cluster.ID(made.ID))
	if err != nil || statuses.ClusterID != made.ID || statuses.Status.Phase != platform.ClusterPhaseReady ||
		len(statuses.ControllerStatuses) != 3 ||
		statuses.ControllerStatuses[0].ControllerName != "hosted-cluster" ||
		len(statuses.ControllerStatuses[0].Conditions) != 3 {
		t.Errorf("statuses: %+v, %v", statuses, err)
	}

	// A stale tag is refused, a present one is not; without one the latest counts.
	_, err = p.UpdateCluster(ctx, cluster.ID(made.ID), json.RawMessage(`{"spec":{"hibernated":true}}`), made.ETag)
	want(t, err, 412, "precondition-failed", "If-Match")
	changed, err := p.UpdateCluster(ctx, cluster.ID(made.ID), json.RawMessage(
		`{"spec":{"hibernated":true,"deleteProtection":true}}`), c.ETag)
	if err != nil || changed.Generation != 2 || changed.Spec.Hibernated == nil || !*changed.Spec.Hibernated ||
		changed.Spec.HostedCluster.Networking.MachineNetwork == nil {
		t.Errorf("changed: %+v, %v", changed, err)
	}
	same, err := p.UpdateCluster(ctx, cluster.ID(made.ID), json.RawMessage(`{"spec":{"hibernated":true}}`), "")
	if err != nil || same.ETag != changed.ETag || same.Generation != 2 {
		t.Errorf("an equal change: %+v, %v (I3)", same, err)
	}
	_, err = p.UpdateCluster(ctx, cluster.ID(made.ID), json.RawMessage(
		`{"name":"other","spec":{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.2"}}}}`), "")
	want(t, err, 422, "CLUSTERS-MGMT-VALIDATION-001", "2 fields")

	want(t, p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{}), 409, "CLUSTERS-MGMT-DELETE-005",
		`{"spec":{"deleteProtection":false}}`)
	want(t, p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{Force: true, Reason: "x"}), 409,
		"CLUSTERS-MGMT-DELETE-005", "protected")
	if _, err = p.UpdateCluster(ctx, cluster.ID(made.ID),
		json.RawMessage(`{"spec":{"deleteProtection":null}}`), ""); err != nil {
		t.Fatal(err)
	}
	want(t, p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{ETag: made.ETag}), 412,
		"precondition-failed", "")
	for range 2 {
		if err := p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if c, err = p.Cluster(ctx, cluster.ID(made.ID)); err != nil || c.DeletedAt == nil ||
		c.Status.Phase != platform.ClusterPhaseDeleting || !strings.Contains(c.Status.Message, "hosted-cluster") {
		t.Errorf("deleting: %+v, %v", c, err)
	}
	_, err = p.UpdateCluster(ctx, cluster.ID(made.ID), json.RawMessage(`{"spec":{"displayName":"x"}}`), "")
	want(t, err, 409, "CLUSTERS-MGMT-UPDATE-004", "being deleted")
	l.gone("clusters", made.ID, "hosted-cluster", "pull-secret", "placement")
	_, err = p.Cluster(ctx, cluster.ID(made.ID))
	want(t, err, 404, "CLUSTERS-MGMT-GET-002", made.ID)
	want(t, p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{}), 404, "CLUSTERS-MGMT-DELETE-002", made.ID)
	if _, err := p.CreateCluster(ctx, named("demo", "")); err != nil {
		t.Errorf("the name is not free: %v", err)
	}
}

func TestADeletionThatDoesNotEndCanBeForced(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	made, err := p.CreateCluster(ctx, named("stuck", ""))
	if err != nil {
		t.Fatal(err)
	}
	want(t, p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{Force: true}), 400, "CLUSTERS-MGMT-DELETE-001",
		"reason")
	want(t, p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{Force: true,
		Reason: strings.Repeat("é", 1025)}),
		400, "CLUSTERS-MGMT-DELETE-001", "reason has more than 1024")
	if c, err := p.Cluster(ctx, cluster.ID(made.ID)); err != nil || c.DeletedAt != nil {
		t.Errorf("after what was refused: %+v, %v", c.DeletedAt, err)
	}
	if err := p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{Force: true,
		Reason: "its management cluster is lost"}); err != nil {
		t.Fatal(err)
	}
	_, err = p.Cluster(ctx, cluster.ID(made.ID))
	want(t, err, 404, "CLUSTERS-MGMT-GET-002", "")
	records, err := l.system.History(ctx, "clusters", made.ID, 0, 10)
	if err != nil || !strings.Contains(fmt.Sprintf("%s", records[1].Note), "lost") ||
		records[1].Principal != string(operator.Principal) {
		t.Errorf("history %+v, %v", records, err)
	}
}

func TestNothingIsHalfMadeOfABadRequest(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	_, err := p.CreateCluster(ctx, named("Bad_Name",
		`{"displayName":"x","tags":{"aws:a":"b"},"hostedCluster":{"release":{"image":"nope"},"networking":{"machineNetwork":[{"cidr":"10.133.0.0/16"}]}}}`))
	want(t, err, 422, "CLUSTERS-MGMT-VALIDATION-001", "4 fields")
	fields := ""
	if e, ok := err.(*remote.Error); ok {
		for _, f := range e.Fields {
			fields += f.Field + " "
		}
	}
	if fields != "name spec.hostedCluster.networking.machineNetwork[0].cidr spec.hostedCluster.release.image "+
		"spec.tags.aws:a " {
		t.Errorf("fields %s", fields)
	}
	made, err := p.CreateCluster(ctx, named("good", ""))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		r      platform.NodePoolRequest
		status int
		code   string
	}{
		{platform.NodePoolRequest{Name: "w"}, 422, "NODEPOOLS-MGMT-VALIDATION-001"},
		{platform.NodePoolRequest{Name: "w", ClusterID: "x"}, 404, "NODEPOOLS-MGMT-CREATE-002"},
		{platform.NodePoolRequest{Name: "w", ClusterID: "0190a000-0000-7000-8000-000000000000"}, 404,
			"NODEPOOLS-MGMT-CREATE-002"},
		{platform.NodePoolRequest{Name: "a-name-too-long-", ClusterID: made.ID}, 422, "NODEPOOLS-MGMT-VALIDATION-001"},
		{platform.NodePoolRequest{Name: "w", ClusterID: made.ID, Spec: &platform.NodePoolSpec{
			Replicas: new(int32(-1))}}, 422, "NODEPOOLS-MGMT-VALIDATION-001"},
	} {
		_, err := p.CreateNodePool(ctx, c.r)
		want(t, err, c.status, c.code, "")
	}
	if all, err := p.Clusters(ctx, client.ClusterQuery{}); err != nil || len(all) != 1 {
		t.Errorf("clusters %+v, %v", all, err)
	}
	if pools, err := p.NodePools(ctx, client.NodePoolQuery{}); err != nil || len(pools) != 0 {
		t.Errorf("node pools %+v, %v", pools, err)
	}
}

func TestNodePoolsBelongToTheirCluster(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	var ids []string
	for _, name := range []string{"one", "two"} {
		c, err := p.CreateCluster(ctx, named(name,
			`{"hostedCluster":{"release":{"image":"atoll.dev/release:1.36.2"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, c.ID)
	}
	var pools []client.NodePool
	for _, id := range ids { // the same name in both
		n, err := p.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: id, Name: "workers",
			Spec: &platform.NodePoolSpec{Replicas: new(int32(3)), Labels: map[string]string{"a": "b"}}})
		if err != nil {
			t.Fatal(err)
		}
		if n.ClusterID != id || *n.Spec.NodePool.Replicas != 3 || n.Spec.Replicas != nil ||
			n.Spec.NodePool.Release.Image != "atoll.dev/release:1.36.2" ||
			n.Status.Phase != platform.NodePoolPhaseProvisioning || !n.Status.Simulated ||
			cluster.Account(n.Account) != operator.Account {
			t.Errorf("made %+v", n)
		}
		pools = append(pools, n)
	}
	_, err := p.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: ids[0], Name: "workers"})
	want(t, err, 409, "NODEPOOLS-MGMT-CREATE-003", "one")
	for i, id := range ids {
		got, err := p.NodePools(ctx, client.NodePoolQuery{Cluster: cluster.ID(id), Name: "workers"})
		if err != nil || len(got) != 1 || got[0].ID != pools[i].ID {
			t.Errorf("of %s: %+v, %v", id, got, err)
		}
	}
	n, err := p.UpdateNodePool(ctx, cluster.NodePoolID(pools[0].ID),
		json.RawMessage(`{"spec":{"replicas":5,"labels":{"a":null}}}`), pools[0].ETag)
	if err != nil || *n.Spec.NodePool.Replicas != 5 || len(n.Spec.Labels) != 0 || n.Generation != 2 {
		t.Errorf("scaled: %+v, %v", n, err)
	}
	_, err = p.UpdateNodePool(ctx, cluster.NodePoolID(pools[0].ID), json.RawMessage(
		`{"cluster_id":"`+ids[1]+`","spec":{"platform":{"aws":{"instanceType":"m5.large"}}}}`), "")
	want(t, err, 422, "NODEPOOLS-MGMT-VALIDATION-001", "2 fields")
	l.report("nodepools", pools[0].ID, "node-pool", `{"replicas":5,"version":"1.36.2"}`,
		"Available=True:AsExpected:5 of 5 nodes are Ready")
	if n, err = p.NodePool(ctx, cluster.NodePoolID(pools[0].ID)); err != nil ||
		n.Status.Phase != platform.NodePoolPhaseReady || n.Status.Replicas != 5 || n.Status.Ready != 5 {
		t.Errorf("ready: %+v, %v", n.Status, err)
	}
	s, err := p.NodePoolStatuses(ctx, cluster.NodePoolID(pools[0].ID))
	if err != nil || s.NodepoolID != pools[0].ID || s.ClusterID != ids[0] || len(s.ControllerStatuses) != 1 ||
		s.ControllerStatuses[0].NodepoolID != pools[0].ID {
		t.Errorf("status: %+v, %v", s, err)
	}
	w, err := p.WatchNodePools(ctx, cluster.ID(ids[0]), remote.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	e, err := w.Next()
	var watched platform.NodePool
	if err == nil {
		err = json.Unmarshal(e.Object, &watched)
	}
	if err != nil || e.Type != rest.Added || watched.ID != pools[0].ID ||
		watched.Status.Phase != platform.NodePoolPhaseReady {
		t.Errorf("watched: %s %+v, %v", e.Type, watched, err)
	}
	if err := p.DeleteNodePool(ctx, cluster.NodePoolID(pools[0].ID), ""); err != nil {
		t.Fatal(err)
	}
	if n, err = p.NodePool(ctx, cluster.NodePoolID(pools[0].ID)); err != nil ||
		n.Status.Phase != platform.NodePoolPhaseDeleting {
		t.Errorf("deleting: %+v, %v", n.Status, err)
	}
	l.gone("nodepools", pools[0].ID, "node-pool")
	_, err = p.NodePool(ctx, cluster.NodePoolID(pools[0].ID))
	want(t, err, 404, "NODEPOOLS-MGMT-GET-002", "")
	want(t, p.DeleteNodePool(ctx, cluster.NodePoolID(pools[0].ID), ""), 404, "NODEPOOLS-MGMT-DELETE-002", "")
	// A cluster takes its node pools with it.
	if err := p.DeleteCluster(ctx, cluster.ID(ids[1]), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = p.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: ids[1], Name: "late"})
	want(t, err, 409, "NODEPOOLS-MGMT-CREATE-004", "being deleted")
	if n, err = p.NodePool(ctx, cluster.NodePoolID(pools[1].ID)); err != nil || n.DeletedAt == nil {
		t.Errorf("its node pool: %+v, %v", n, err)
	}
}

// Resources of another account do not exist for a caller, also not for a privileged
// one (I10).
func TestI10AccountsDoNotSeeEachOther(t *testing.T) {
	l := startLifecycle(t)
	ctx, p, other := t.Context(), l.as(operator), l.as(neighbour)
	made, err := p.CreateCluster(ctx, named("ours", ""))
	if err != nil {
		t.Fatal(err)
	}
	n, err := p.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: made.ID, Name: "w"})
	if err != nil {
		t.Fatal(err)
	}
	if theirs, err := other.CreateCluster(ctx, named("ours", "")); err != nil ||
		cluster.Account(theirs.Account) != neighbour.Account {
		t.Errorf("the same name in another account: %+v, %v", theirs, err)
	}
	patch := json.RawMessage(`{"spec":{"displayName":"x"}}`)
	for what, call := range map[string]func() error{
		"get":    func() error { _, err := other.Cluster(ctx, cluster.ID(made.ID)); return err },
		"update": func() error { _, err := other.UpdateCluster(ctx, cluster.ID(made.ID), patch, ""); return err },
		"delete": func() error { return other.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{}) },
		"force": func() error {
			return other.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{Force: true,
				Reason: "x"})
		},
		"statuses": func() error { _, err := other.ClusterStatuses(ctx, cluster.ID(made.ID)); return err },
		"events":   func() error { _, err := other.ClusterEvents(ctx, cluster.ID(made.ID)); return err },
		"watch":    func() error { _, err := other.WatchClusterEvents(ctx, cluster.ID(made.ID), ""); return err },
		"pools": func() error {
			_, err := other.NodePools(ctx, client.NodePoolQuery{Cluster: cluster.ID(made.ID)})
			return err
		},
		"add a pool": func() error {
			_, err := other.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: made.ID, Name: "x"})
			return err
		},
		"pool":          func() error { _, err := other.NodePool(ctx, cluster.NodePoolID(n.ID)); return err },
		"pool's status": func() error { _, err := other.NodePoolStatuses(ctx, cluster.NodePoolID(n.ID)); return err },
		"watch its pools": func() error {
			_, err := other.WatchNodePools(ctx, cluster.ID(made.ID), remote.WatchOptions{})
			return err
		},
		"scale": func() error {
			_, err := other.UpdateNodePool(ctx, cluster.NodePoolID(n.ID), json.RawMessage(`{"spec":{"replicas":0}}`), "")
			return err
		},
		"delete pool": func() error { return other.DeleteNodePool(ctx, cluster.NodePoolID(n.ID), "") },
		"credential": func() error {
			_, err := other.CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{})
			return err
		},
		"credentials": func() error { _, err := other.Credentials(ctx, cluster.ID(made.ID)); return err },
		"revoke": func() error {
			return other.RevokeCredential(ctx, cluster.ID(made.ID), cluster.CredentialID(made.ID))
		},
	} {
		if err := call(); remote.StatusOf(err) != 404 {
			t.Errorf("%s of another account's: %v, want 404", what, err)
		}
	}
	w, err := other.WatchClusters(ctx, remote.WatchOptions{ID: made.ID})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if e, err := w.Next(); err != nil || e.Type != rest.Bookmark {
		t.Errorf("the other watches %s %s, %v", e.Type, e.Object, err)
	}
	if all, err := other.Clusters(ctx, client.ClusterQuery{}); err != nil || len(all) != 1 ||
		cluster.Account(all[0].Account) != neighbour.Account {
		t.Errorf("the other lists %+v, %v", all, err)
	}
	if pools, err := other.NodePools(ctx, client.NodePoolQuery{}); err != nil || len(pools) != 0 {
		t.Errorf("the other lists %+v, %v", pools, err)
	}
	records, err := l.system.History(ctx, "clusters", made.ID, 0, 10)
	if err != nil || len(records) != 1 || records[0].Principal != string(operator.Principal) ||
		records[0].RequestID == "" {
		t.Errorf("history %+v, %v", records, err)
	}
}
