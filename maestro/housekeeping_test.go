package maestro

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"atoll.dev/api/work"
	"atoll.dev/internal/rest"
	"atoll.dev/maestro/housekeeping"
	"atoll.dev/store"
)

// exec runs a statement on the server's database.
func (i *instance) exec(sql string, args ...any) {
	i.t.Helper()
	ctx := context.Background()
	err := i.server.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, sql, args...)
		return err
	})
	if err != nil {
		i.t.Fatal(err)
	}
}

// text reads one value from the server's database.
func (i *instance) text(sql string, args ...any) (value string) {
	i.t.Helper()
	ctx := context.Background()
	err := i.server.store.Tx(ctx, func(tx *store.Tx) error { return tx.QueryRow(ctx, sql, args...).Scan(&value) })
	if err != nil {
		i.t.Fatal(err)
	}
	return value
}

// TestTheHistoryHasNoContentAndEnds: a status makes no record, a change makes
// one without content, and old ones go, also those that an earlier version
// wrote with Secrets in them. What operators did stays.
func TestTheHistoryHasNoContentAndEnds(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	agent := site.agent("mc1")
	src := m.source()
	secret := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"default"},"stringData":{"key":"hunter2"}}`
	// What is there of an earlier version, more than a batch, and an operator's.
	m.exec(
		`insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id, spec, status, token)
		select now() - interval '25 hours', 'update', 'Bundle', 'old-' || n, 'mc1', n, n, '', '', '', $1::jsonb, '{}', n from generate_series(1, 2 * $2 + 7) n`,
		`{"data":{"manifests":[`+secret+`]}}`, housekeeping.PurgeBatch)
	for action, age := range map[string]string{"force-delete": "300 days", "delete-unknown": "500 days"} {
		m.exec(
			`insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id, token)
			values (now() - $2::interval, $1, 'Bundle', 'x', 'mc1', 0, 0, '', '', '', 1)`, action, age)
	}
	if err := src.publish(src.event(work.SpecCreate, "mc1", "w1", 0, specData(secret))); err != nil {
		t.Fatal(err)
	}
	m.awaitAllObserved(1)
	for n := range 20 {
		agent.report("w1", fmt.Sprintf("Turn%d", n))
	}
	eventually(t, "the last status is stored", func() error {
		if b := m.bundle("w1"); len(b.Status.Conditions) != 1 || !strings.Contains(string(b.Status.Conditions[0]),
			"Turn19") {
			return fmt.Errorf("%s", b.Status.Conditions)
		}
		return nil
	})
	src.remove("mc1", "w1")
	eventually(t, "the bundle is gone", func() error {
		if a := m.call("GET", "/api/maestro/v1/resource-bundles/w1", ""); a.status != 404 {
			return fmt.Errorf("status %d", a.status)
		}
		return nil
	})
	if got := m.text(
		`select string_agg(action || coalesce(spec::text, '') || coalesce(status::text, ''), ' ' order by seq) from history where id = 'w1'`); got != "create delete remove" {
		t.Errorf("records %s", got)
	}

	if err := m.server.keeper.TrimHistory(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.text(`select count(*)::text from history where spec::text like '%hunter2%'`); got != "0" {
		t.Errorf("%s records have a Secret", got)
	}
	if got := m.text(
		`select string_agg(action, ' ' order by action) from history where kind = 'Bundle'`); got != "create delete force-delete remove" {
		t.Errorf("records %s", got)
	}
}

// TestManifestsOfDeletedBundlesAreDropped: a Secret of a deleted bundle is
// nowhere in the database after a while, and who watches still learns of the
// deletion.
func TestManifestsOfDeletedBundlesAreDropped(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	m.consumer("mc1")
	site.agent("mc1")
	src := m.source()
	secret := func(id work.ID) []byte {
		return specData(string(`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"` + id +
			`","namespace":"default"},"stringData":{"key":"hunter2"}}`))
	}
	for _, id := range []string{"gone", "late", "lives"} {
		if err := src.publish(src.event(work.SpecCreate, "mc1", work.ID(id), 0, secret(work.ID(id)))); err != nil {
			t.Fatal(err)
		}
	}
	m.awaitAllObserved(3)
	before, err := m.server.store.CurrentCursor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"gone", "late"} {
		src.remove("mc1", work.ID(id))
		m.awaitGone(work.ID(id))
	}
	m.exec(`update document set removed_at = removed_at - interval '11 minutes' where id = 'gone'`)
	version := m.text(`select version || ' ' || xid::text || ' ' || token from document where id = 'gone'`)
	if err := m.server.keeper.DropManifests(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := m.text(
		`select string_agg(id, ' ' order by id) from document where spec::text || convert_from(wire, 'UTF8') like '%hunter2%'`); got != "late lives" {
		t.Errorf("%s have a Secret", got)
	}
	if got := m.text(
		`select version || ' ' || xid::text || ' ' || token from document where id = 'gone'`); got != version {
		t.Errorf("version, transaction and token are %s, they were %s", got, version)
	}
	if err := m.server.keeper.DropManifests(t.Context()); err != nil {
		t.Fatal(err)
	}

	// This server has the change in memory yet, manifests included; one that starts now has not.
	e, b := site.start().watch(t, "&id=gone&cursor="+url.QueryEscape(string(before))).next()
	if e.Type != rest.Deleted || b.ID != "gone" || b.Version != 1 || b.DeletedAt == nil || len(b.Manifests) != 0 {
		t.Errorf("a watch that comes back sees %s %+v", e.Type, b)
	}
	src.create("mc1", "gone", "again")
	if b := m.bundle("gone"); b.Version != 1 || len(b.Manifests) != 1 {
		t.Errorf("created again: %+v", b)
	}
}

// TestTombstonesArePurgedAsFastAsTheyArise: all that are old go at once, and of
// an incident's flood the latest stay; those that no agent has confirmed stay.
func TestTombstonesArePurgedAsFastAsTheyArise(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	m := site.start()
	const insert = `insert into ledger (id, consumer, source, wanted, deleting, gone_at, unconfirmed) `
	for at := 0; at < housekeeping.MaxTombstones+5000; at += 5000 { // a statement has a time limit
		m.exec(
			insert+
				`select 'flood-' || n, 'mc1', 's', 1, true, now() - n * interval '1 second', false from generate_series($1 + 1, $1 + 5000) n`, at)
	}
	m.exec(
		insert +
			`select 'old-' || n, 'mc1', 's', 1, true, now() - interval '31 days', false from generate_series(1, 5000) n
		union all select 'ended-' || n, 'mc1', 's', 1, true, now() - interval '100 days', true from generate_series(1, 10) n
		union all select 'live-' || n, 'mc1', 's', 1, false, null, false from generate_series(1, 10) n`)
	if err := m.server.keeper.PurgeTombstones(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := m.text(
		`select string_agg(kind || ' ' || n, ', ' order by kind) from (select split_part(id, '-', 1) as kind, count(*) as n from ledger group by 1) k`)
	if want := fmt.Sprintf("ended 10, flood %d, live 10", housekeeping.MaxTombstones); got != want {
		t.Errorf("%s are left, want %s", got, want)
	}
	if latest := m.text(`select exists (select from ledger where id = 'flood-1')::text`); latest != "true" {
		t.Error("the latest tombstone is gone")
	}
}

// TestOneServerDoesATask: of servers that share a database one runs a task
// that is due.
func TestOneServerDoesATask(t *testing.T) {
	t.Parallel()
	site := newSite(t)
	one, two := site.start(), site.start()
	claim := func(m *instance) bool {
		t.Helper()
		mine, err := m.server.keeper.ClaimTask(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		return mine
	}
	if !claim(one) || claim(two) || claim(one) {
		t.Error("a task was claimed by nobody, or twice")
	}
	one.exec(`update housekeeping set ran_at = now() - interval '11 minutes' where task = 'test'`)
	if !claim(two) || claim(one) {
		t.Error("a task that is due again was claimed by nobody, or twice")
	}
}
