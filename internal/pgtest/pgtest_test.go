package pgtest_test

import (
	"context"
	"testing"

	"atoll.dev/internal/pgtest"

	"github.com/jackc/pgx/v5"
)

func query(t *testing.T, dsn, sql string) (got string) {
	t.Helper()
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := conn.QueryRow(context.Background(), sql).Scan(&got); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEachTestHasADatabaseOfItsOwn(t *testing.T) {
	a, b := pgtest.DSN(t), pgtest.DSN(t)
	if x, y := query(t, a, "select current_database()"), query(t, b, "select current_database()"); x == y {
		t.Fatalf("both are %s", x)
	}
}

func TestAPrivateServerKeepsItsDataAfterAKill(t *testing.T) {
	s := pgtest.Server(t)
	dsn := pgtest.Database(t, s.Cluster)
	query(t, dsn, "with x as (select 1) select 'made'")
	conn, err := pgx.Connect(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(context.Background(), "create table kept as select 'yes' as answer"); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Start()
	if got := query(t, dsn, "select answer from kept"); got != "yes" {
		t.Fatal(got)
	}
}
