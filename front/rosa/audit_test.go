package rosa_test

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
)

// Maestro records the caller of the Platform API as the author of a change, not the
// Platform API.
func TestEveryMutationIsMadeByItsCallerI10(t *testing.T) {
	ctx := t.Context()
	dsn := pgtest.DSN(t)
	b := startBehind(t, dsn)
	endpoint, ca := platformAPI(t, b.client())
	p := clientOf(t, endpoint, ca, operator)
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	made, err := p.CreateWork(ctx, "m", manifestWork("w", "1", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReplaceWork(ctx, work.ID(made.ID), "", manifestWork("w", "2", 1), ""); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteWork(ctx, work.ID(made.ID), ""); err != nil {
		t.Fatal(err)
	}
	if _, err := p.RegisterManagementCluster(ctx, platform.ManagementClusterRequest{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteManagementCluster(ctx, "n"); err != nil {
		t.Fatal(err)
	}

	by := " " + string(operator.Principal) + " " + string(operator.Account)
	recorded(t, dsn, "true",
		"create Consumer"+by, "create Bundle"+by, "update Bundle"+by, "delete Bundle"+by, "create Consumer"+by,
		"remove Consumer"+by)
}

// The lifecycle manager records the caller, too.
func TestI10EveryMutationOfAClusterIsMadeByItsCaller(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	newPlane(t).serve(l, nil)
	c, err := p.CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	l.up(c.ID)
	n, err := p.CreateNodePool(ctx, platform.NodePoolRequest{ClusterID: c.ID, Name: "w"})
	if err != nil {
		t.Fatal(err)
	}
	pass, err := p.CreateCredential(ctx, cluster.ID(c.ID), platform.CredentialRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		p.RevokeCredential(ctx, cluster.ID(c.ID), cluster.CredentialID(pass.ID)),
		func() error {
			_, err := p.UpdateNodePool(ctx, cluster.NodePoolID(n.ID), []byte(`{"spec":{"replicas":0}}`), "")
			return err
		}(),
		p.DeleteNodePool(ctx, cluster.NodePoolID(n.ID), ""),
		func() error {
			_, err := p.UpdateCluster(ctx, cluster.ID(c.ID), []byte(`{"spec":{"displayName":"x"}}`), "")
			return err
		}(),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	by := " " + string(operator.Principal) + " " + string(operator.Account)
	recorded(t, l.dsn, "principal not like 'system:%'",
		"create Cluster"+by, "create NodePool"+by, "create Credential"+by, "delete Credential"+by, "update NodePool"+by,
		"delete NodePool"+by, "update Cluster"+by)
}

// recorded compares the history of a database with the wanted lines, and checks that
// each change has a request id of its own.
func recorded(t *testing.T, dsn, of string, want ...string) {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	rows, err := conn.Query(
		ctx, `select action || ' ' || kind || ' ' || principal || ' ' || account, request_id from history where `+of+
			` order by at, xid, seq`)
	if err != nil {
		t.Fatal(err)
	}
	var got, ids []string
	for rows.Next() {
		var what, id string
		if err := rows.Scan(&what, &id); err != nil {
			t.Fatal(err)
		}
		got, ids = append(got, what), append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	for i, id := range ids {
		if id == "" || strings.Contains(strings.Join(ids[:i], " "), id) {
			t.Errorf("request ids %q", ids)
		}
	}
}
