package clm

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/postgres"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// run runs a statement as the superuser.
func run(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// eventually repeats a request until the answer has the status.
func (a *testAPI) eventually(status int, method, path, body string) answer {
	a.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(testsite.HangLimit); ; <-tick.C {
		if res := a.do(method, path, body); res.status == status || time.Now().After(deadline) {
			return res.want(status)
		}
	}
}

// later checks that an answer is a 503 with Retry-After.
func (a answer) later() {
	a.t.Helper()
	a.refused(503)
}

// refused holds that nothing was done, for now: the status, and when to try again.
func (a answer) refused(status int) {
	a.t.Helper()
	if a.want(status, "SVC-001"); a.header.Get("Retry-After") == "" {
		a.t.Fatalf("%s: there is no Retry-After", a.what)
	}
}

// CLM answers a request after its commit, and refuses a request whose commit fails (I5).
func TestI5AFailedCommitGrantsNoSlot(t *testing.T) {
	dsn := pgtest.DSN(t)
	a := startOn(t, dsn)
	run(t, dsn,
		`create function refuse() returns trigger language plpgsql as $$ begin raise exception 'at the last moment'; end $$;
		create constraint trigger late after insert or update on document deferrable initially deferred for each row
		when (new.name like 'doomed%' or new.spec->'labels' ? 'doomed') execute function refuse()`)
	a.do("POST", "/clusters", `{"kind":"Cluster","name":"doomed","spec":{}}`, "Idempotency-Key: k").want(500, "INT-002")
	is(t, "what is there", a.do("GET", "/clusters", "").at("total"), "0")
	a.do("POST", "/clusters", `{"kind":"Cluster","name":"doomed","spec":{}}`, "Idempotency-Key: k").want(500, "INT-002")
	path := "/clusters/" + a.cluster("fine")
	a.do("PATCH", path, `{"labels":{"doomed":"x"}}`).want(500, "INT-002")
	is(t, "the labels", a.do("GET", path, "").at("labels")+a.do("GET", path, "").at("generation"), "1")
	is(t, "records", a.do("GET", path+"/history", "").want(200).at("items.1"), "")
}

// On a full disk writes fail and reads work. No write is partial.
func TestI5AFullDiskRefusesWritesAndReadsGoOn(t *testing.T) {
	server := pgtest.StartServer(t)
	a := startOn(t, pgtest.NewDatabase(t, server.Cluster))
	root := server.DSN("postgres", postgres.Superuser)
	path := "/clusters/" + a.cluster("before")
	run(t, root, "alter system set default_transaction_read_only = on") // what the guard of a region's disk does
	run(t, root, "select pg_reload_conf()")
	a.eventually(507, "PATCH", path, `{"labels":{"a":"b"}}`).refused(507)
	for _, c := range [][3]string{
		{"POST", "/clusters", `{"kind":"Cluster","name":"after","spec":{}}`}, {"DELETE", path, ""},
		{"POST", path + "/reconcile", ""},
		{"PUT", path + "/statuses", statusBody("dns", 1, time.Now(), "True")},
	} {
		a.do(c[0], c[1], c[2]).refused(507)
	}
	a.do("GET", path, "").want(200)
	a.do("GET", path+"/history", "").want(200)
	is(t, "what is listed", a.do("GET", "/clusters", "").want(200).at("total"), "1")
	run(t, root, "alter system reset default_transaction_read_only")
	run(t, root, "select pg_reload_conf()")
	a.eventually(201, "POST", "/clusters", `{"kind":"Cluster","name":"after","spec":{}}`)
}

// While PostgreSQL is away, or its tables are locked, CLM refuses requests soon. Acknowledged
// writes exist when PostgreSQL is back (I1, I12).
func TestI1I12CLMSurvivesARestartOfPostgreSQL(t *testing.T) {
	server := pgtest.StartServer(t)
	dsn := pgtest.NewDatabase(t, server.Cluster)
	// Only the limit for locks is a service's. Whoever waits for another limit is a minute late.
	a, _ := startOnStore(t, dsn, testEntities, func(o store.Options) store.Options {
		o.LockTimeout = 1500 * time.Millisecond
		return o.Patient()
	}, func(*Options) {})
	path := "/clusters/" + a.cluster("abc")
	soon := func(f func()) {
		t.Helper()
		begun := time.Now()
		if f(); time.Since(begun) > 30*time.Second { // 2 s are promised; this machine may be busy
			t.Errorf("it took %v", time.Since(begun))
		}
	}
	for range 2 {
		server.Kill()
		soon(func() { a.do("GET", path, "").later() })
		soon(func() { a.do("PATCH", path, `{"labels":{"a":"b"}}`).later() })
		soon(func() { a.do("POST", "/clusters", `{"kind":"Cluster","name":"lost","spec":{}}`).later() })
		server.Start()
		a.eventually(200, "GET", path, "")
	}
	is(t, "what is there", a.do("GET", "/clusters", "").want(200).at("total"), "1")

	holder, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close(context.Background())
	if _, err := holder.Exec(t.Context(), "begin; lock table document in access exclusive mode"); err != nil {
		t.Fatal(err)
	}
	soon(func() { a.do("GET", path, "").later() })
	soon(func() { a.do("PATCH", path, `{"labels":{"a":"b"}}`).later() })
	if _, err := holder.Exec(t.Context(), "rollback"); err != nil {
		t.Fatal(err)
	}
	a.eventually(200, "PATCH", path, `{"labels":{"a":"c"}}`)
	is(t, "the label", a.do("GET", path, "").at("labels.a"), "c")
}
