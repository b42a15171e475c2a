package rosa_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
)

// Maestro writes down who changed what: the caller of the Platform API, not
// the Platform API.
func TestEveryMutationIsMadeByItsCallerI10(t *testing.T) {
	ctx := t.Context()
	dsn := pgtest.DSN(t)
	b := startBehind(t, dsn)
	endpoint, ca := platformAPI(t, b.client)
	p := clientOf(t, endpoint, ca, operator)
	if _, err := p.CreateManagementCluster(ctx, "m", nil); err != nil {
		t.Fatal(err)
	}
	made, err := p.CreateWork(ctx, "m", manifestWork("w", "1", 1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReplaceWork(ctx, made.ID, "", manifestWork("w", "2", 1), ""); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteWork(ctx, made.ID, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := p.CreateManagementCluster(ctx, "n", nil); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteManagementCluster(ctx, "n"); err != nil {
		t.Fatal(err)
	}

	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, `select action || ' ' || kind || ' ' || principal || ' ' || account, request_id from history order by at, xid, seq`)
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
	by := " " + operator.Principal + " " + operator.Account
	want := []string{"create Consumer" + by, "create Bundle" + by, "update Bundle" + by, "delete Bundle" + by, "create Consumer" + by, "remove Consumer" + by}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	for i, id := range ids {
		if id == "" || strings.Contains(strings.Join(ids[:i], " "), id) {
			t.Errorf("request ids %q", ids)
		}
	}
}
