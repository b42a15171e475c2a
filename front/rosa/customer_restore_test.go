package rosa_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
)

// A customer sees his backups, orders a restore in place, one at a time, and makes a clone. The order is stored in the
// cluster's spec, which customers neither see nor change. A request that is sent again makes no second order or clone.
func TestACustomerOrdersRestores(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	made, err := p.CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	id := cluster.ID(made.ID)
	refuse := func(what string, r platform.RestoreRequest, status int, code string) {
		t.Helper()
		_, err := l.once(operator).Restore(ctx, id, r)
		if e, ok := errors.AsType[*remote.Error](err); !ok || e.Status != status || e.Code != "CLUSTERS-MGMT-"+code {
			t.Errorf("%s: %v, want %d %s", what, err, status, code)
		}
	}
	orderOf := func(id string) *cluster.RestoreOrder {
		t.Helper()
		r, err := l.system.Get(ctx, "clusters", id, "")
		if err != nil {
			t.Fatal(err)
		}
		_, order, err := cluster.CutRestore(r.Spec)
		if err != nil {
			t.Fatal(err)
		}
		return order
	}
	now := time.Now().UTC().Truncate(time.Second)
	at, from := now.Add(-time.Minute), now.Add(-time.Hour)
	if b, err := p.Backups(ctx, id); err != nil || b.From != nil || b.Count != 0 || b.Restore != nil {
		t.Errorf("before the first backup: %+v, %v", b, err)
	}
	refuse("before the first backup", platform.RestoreRequest{At: at}, 409, "RESTORE-010")

	report := func(restore string) {
		t.Helper()
		l.report("clusters", made.ID, "hosted-cluster", fmt.Sprintf(
			`{"backups":{"from":%q,"chains":[{"taken":%q,"everySecond":true},
				{"taken":%q,"everySecond":true,"damaged":true}]},"restore":%s}`,
			from.Format(time.RFC3339), from.Format(time.RFC3339), from.Add(time.Minute).Format(time.RFC3339), restore),
			"Available=True")
	}
	report(`{}`)
	b, err := p.Backups(ctx, id)
	if err != nil || b.Count != 2 || b.From == nil || !b.From.Equal(from) || b.To == nil ||
		time.Since(*b.To) < 9*time.Second || time.Since(*b.To) > time.Minute || !b.Items[0].EverySecond ||
		b.Items[0].Damaged || !b.Items[1].Damaged {
		t.Errorf("the window: %+v, %v", b, err)
	}
	refuse("before the window", platform.RestoreRequest{At: from.Add(-time.Hour)}, 422, "VALIDATION-001")
	refuse("in the future", platform.RestoreRequest{At: now.Add(time.Hour)}, 422, "VALIDATION-001")
	refuse("without a time", platform.RestoreRequest{}, 422, "VALIDATION-001")
	refuse("with a name", platform.RestoreRequest{At: at, Name: "x"}, 422, "VALIDATION-001")
	clone := platform.RestoreRequestModeClone
	refuse("without a name", platform.RestoreRequest{At: at, Mode: clone}, 422, "VALIDATION-001")
	refuse("with its own name", platform.RestoreRequest{At: at, Mode: clone, Name: "demo"}, 409, "RESTORE-003")

	first, err := p.Restore(ctx, id, platform.RestoreRequest{At: at})
	if err != nil || first.Phase != platform.RestorePhaseOrdered || first.ClusterID != made.ID ||
		first.Mode != platform.RestoreModeInPlace {
		t.Fatalf("%+v, %v", first, err)
	}
	if order := orderOf(made.ID); order == nil || order.ID != first.ID || !order.At.Equal(at) || order.Source != nil {
		t.Errorf("the stored order: %+v", order)
	}
	if again, err := p.Restore(ctx, id, platform.RestoreRequest{At: at}); err != nil || again.ID != first.ID {
		t.Errorf("ordered twice: %+v, %v", again, err)
	}
	refuse("while another runs", platform.RestoreRequest{At: at.Add(time.Second)}, 409, "RESTORE-011")
	if _, err := p.UpdateCluster(ctx, id, json.RawMessage(`{"spec":{"displayName":"x"}}`), ""); err != nil {
		t.Fatal(err)
	}
	if order := orderOf(made.ID); order == nil || order.ID != first.ID {
		t.Errorf("a change of the spec removed the order: %+v", order)
	}
	if _, err := p.UpdateCluster(ctx, id, json.RawMessage(`{"spec":{"restore":{"id":"mine"}}}`), ""); err == nil {
		t.Error("a customer wrote an order into the spec")
	}
	report(fmt.Sprintf(`{"id":%q,"at":"2026-01-01T00:00:00Z","phase":"Completed","completedAt":"2026-01-01T00:00:10Z",
		"changes":{"created":1,"updated":2,"deleted":3}}`, first.ID))
	b, err = p.Backups(ctx, id)
	if err != nil || b.Restore == nil || b.Restore.Phase != platform.RestorePhaseCompleted ||
		b.Restore.CompletedAt == nil || b.Restore.Changes == nil || b.Restore.Changes.Deleted != 3 {
		t.Errorf("after its end: %+v, %v", b.Restore, err)
	}
	if next, err := p.Restore(ctx, id, platform.RestoreRequest{At: at, DryRun: true}); err != nil ||
		next.ID == first.ID || !next.DryRun {
		t.Errorf("after its end, another: %+v, %v", next, err)
	}
	report(fmt.Sprintf(`{"id":%q,"phase":"Failed"}`, orderOf(made.ID).ID))

	copied, err := p.Restore(ctx, id, platform.RestoreRequest{At: at, Mode: clone, Name: "copy"})
	if err != nil || copied.ClusterID == made.ID || copied.Mode != platform.RestoreModeClone {
		t.Fatalf("the clone: %+v, %v", copied, err)
	}
	other, err := p.Cluster(ctx, cluster.ID(copied.ClusterID))
	if err != nil || other.Name != "copy" || other.Spec.DisplayName != "" ||
		other.Spec.HostedCluster.Release.Image != made.Spec.HostedCluster.Release.Image {
		t.Errorf("the clone: %+v, %v", other, err)
	}
	if order := orderOf(copied.ClusterID); order == nil || order.ID != copied.ID || order.Source == nil ||
		order.Source.Namespace != "clusters-"+made.ID {
		t.Errorf("the order of the clone: %+v", order)
	}

	send := func(key, body string) (r platform.Restore) {
		t.Helper()
		answer, status := l.curl(t, "POST", "/prod/api/v0/clusters/"+made.ID+"/restore", body, "Idempotency-Key: "+key)
		if err := json.Unmarshal(answer, &r); err != nil || status != 202 {
			t.Errorf("%s with the key %s: %d %s, %v", body, key, status, answer, err)
		}
		return r
	}
	t.Run("a repeated request in place orders nothing", func(t *testing.T) {
		body := fmt.Sprintf(`{"at":%q}`, at.Format(time.RFC3339))
		ordered := send("k1", body)
		report(fmt.Sprintf(`{"id":%q,"phase":"Completed"}`, ordered.ID))
		if again := send("k1", body); again.ID != ordered.ID || !again.At.Equal(at) {
			t.Errorf("repeated: %+v, want %+v", again, ordered)
		}
		if order := orderOf(made.ID); order == nil || order.ID != ordered.ID {
			t.Errorf("a repeated request changed the stored order %s: %+v", ordered.ID, order)
		}
		answer, status := l.curl(t, "POST", "/prod/api/v0/clusters/"+made.ID+"/restore",
			fmt.Sprintf(`{"at":%q,"dryRun":true}`, at.Format(time.RFC3339)), "Idempotency-Key: k1")
		if status != 422 || !strings.Contains(string(answer), "CLUSTERS-MGMT-RESTORE-006") {
			t.Errorf("another body with the same key: %d %s", status, answer)
		}
		if next := send("k2", body); next.ID == ordered.ID || orderOf(made.ID).ID != next.ID {
			t.Errorf("another key: %+v, want an order other than %s", next, ordered.ID)
		}
	})
	t.Run("a repeated clone is the same cluster", func(t *testing.T) {
		body := fmt.Sprintf(`{"at":%q,"mode":"clone","name":"twin"}`, at.Format(time.RFC3339))
		twin := send("k3", body)
		if again := send("k3", body); again.ID != twin.ID || again.ClusterID != twin.ClusterID {
			t.Errorf("repeated: %+v, want %+v", again, twin)
		}
	})
}
