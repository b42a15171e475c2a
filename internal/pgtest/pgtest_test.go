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
	s := pgtest.StartServer(t)
	dsn := pgtest.NewDatabase(t, s.Cluster)
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

func TestTheSecondServerStartsFromTheTemplateOfTheFirst(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	t.Setenv("HOME", cache) // where XDG_CACHE_HOME means nothing
	identifier := func() string {
		s := pgtest.StartServer(t)
		return query(t, pgtest.NewDatabase(t, s.Cluster), "select system_identifier::text from pg_control_system()")
	}
	// initdb gives each data directory another identifier.
	if first, second := identifier(), identifier(); first != second {
		t.Fatalf("initdb made both servers: %s, %s", first, second)
	}
}
