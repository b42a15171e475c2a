package maestro

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/original"
)

// theirSchema is what the migrations of openshift-online/maestro make of the
// tables that are imported, and of one that is not.
const theirSchema = `
create table consumers (id text primary key, created_at timestamptz, updated_at timestamptz, deleted_at timestamptz, name text unique not null, labels jsonb);
create table resources (id text primary key, created_at timestamptz, updated_at timestamptz, deleted_at timestamptz, name text unique, source text,
	consumer_name text references consumers (name) on delete restrict, version bigint not null, type text, payload jsonb, status jsonb);
create index on resources (consumer_name);
create index on resources (deleted_at);
create table events (id text primary key, source text, source_id text, event_type text, reconciled_date timestamptz);
`

// theirs is a database of the other Maestro.
type theirs struct {
	t    testing.TB
	dsn  string
	conn *pgx.Conn
}

func newTheirs(t testing.TB) *theirs {
	t.Helper()
	d := &theirs{t: t, dsn: pgtest.DSN(t)}
	var err error
	if d.conn, err = pgx.Connect(context.Background(), d.dsn); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.conn.Close(context.Background()) })
	d.exec(theirSchema)
	return d
}

func (d *theirs) exec(sql string, args ...any) {
	d.t.Helper()
	if _, err := d.conn.Exec(context.Background(), sql, args...); err != nil {
		d.t.Fatalf("%s: %v", sql, err)
	}
}

func (d *theirs) consumer(name string) {
	d.t.Helper()
	d.exec(
		`insert into consumers values ($1, '2024-01-02T03:04:05Z', '2024-01-02T03:04:06Z', null, $2, '{"zone":"a"}')`,
		"id-of-"+name, name)
}

// resourceState says how far a resource of the other server has come.
type resourceState string

const (
	unreported       resourceState = "unreported"       // the agent has not reported a status
	reported         resourceState = "reported"         // the agent has reported the last version
	reportedDeleting resourceState = "reportedDeleting" // the same, and the deletion is requested
)

// resource inserts a row as the other server stores it: a resource at a version.
func (d *theirs) resource(id string, consumer work.Consumer, version int, state resourceState) {
	d.t.Helper()
	payload := fmt.Sprintf(
		`{"id":"e-%[1]s","source":"mw-client","specversion":"1.0","type":"io.open-cluster-management.works.v1alpha1.manifestbundles.spec.update_request",
		"time":"2024-02-02T03:04:05.123Z","datacontenttype":"application/json","clustername":%[2]q,"resourceid":%[1]q,"resourceversion":%[3]d,
		"metadata":{"name":"name-of-%[1]s","namespace":%[2]q,"labels":{"k":"v"}},
		"data":{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%[1]q,"namespace":"default"},"data":{"value":"%[3]d"}}],
			"executer":{"subject":{"type":"ServiceAccount","serviceAccount":{"namespace":"n","name":"sa"}}}}}`, id, consumer, version)
	status := "null"
	if state != unreported {
		status = fmt.Sprintf(
			`{"id":"s-%[1]s","source":"%[2]s-agent","specversion":"1.0","type":"io.open-cluster-management.works.v1alpha1.manifestbundles.status.update_request",
			"time":"2024-02-02T03:04:06Z","datacontenttype":"application/json","clustername":%[2]q,"resourceid":%[1]q,"resourceversion":"%[3]d","originalsource":"maestro",
			"sequenceid":"1750000000000000000","statushash":"abc",
			"data":{"conditions":[{"type":"Applied","status":"True","reason":"AppliedManifestWorkComplete","message":"","lastTransitionTime":"2024-02-02T03:04:06Z"}],
				"manifestBundle":{"manifests":[]}}}`, id, consumer, version)
	}
	var deleted any
	if state == reportedDeleting {
		deleted = "2024-03-02T03:04:05Z"
	}
	d.exec(
		`insert into resources values ($1, '2024-02-02T03:04:05Z', '2024-02-02T03:04:06.5Z', $2, $1, 'mw-client', $3, $4, 'Bundle', $5, $6)`, id, deleted, consumer, version, payload, status)
}

func (s *site) importFrom(d *theirs, batch int) original.Report {
	s.T.Helper()
	r, err := original.Import(context.Background(), original.Options{From: d.dsn, To: s.dsn, Batch: batch})
	if err != nil {
		s.T.Fatal(err)
	}
	return r
}

// TestAnImportAppliesNothingAgain imports while an agent is there that holds
// what it was sent by the other server.
func TestAnImportAppliesNothingAgain(t *testing.T) {
	t.Parallel()
	d := newTheirs(t)
	d.consumer("mc1")
	d.consumer("mc2")
	for n := range 25 {
		d.resource(fmt.Sprintf("w%02d", n), "mc1", n+1, reported)
	}
	d.resource("fresh", "mc1", 4, unreported) // never reported
	d.resource("going", "mc2", 2, reportedDeleting)
	site := newSite(t)
	// The server runs while it is imported to, which is harder than before.
	m := site.start()
	agent := &scriptedAgent{t: t, site: site, consumer: "mc1", addr: site.broker.Address, works: map[work.ID]*agentWork{},
		sequence: time.Now().UnixMilli() << 22}
	for n := range 25 {
		id := work.ID(fmt.Sprintf("w%02d", n))
		agent.works[id] = &agentWork{generation: int64(n + 1), status: []byte(`{}`), hash: "abc"}
	}
	agent.start()
	t.Cleanup(agent.stop)
	report := site.importFrom(d, 7)
	want := original.Report{Consumers: original.Count{Read: 2, Imported: 2},
		Bundles: original.Count{Read: 27, Imported: 27, Deleting: 1},
		Refused: []original.Remark{}, Notes: []original.Remark{}}
	if diff := cmp.Diff(want, report); diff != "" {
		t.Fatal(diff)
	}
	eventually(t, "what was never reported is delivered", func() error {
		if b := m.bundle("fresh"); b.Status == nil || b.Status.ObservedVersion != 4 {
			return fmt.Errorf("%+v", b.Status)
		}
		return nil
	})
	agent.stop()
	agent.start() // and reports what it holds
	m.source().create("mc1", "last", 1)
	eventually(t, "what came after its return is delivered", func() error {
		if b := m.bundle("last"); b.Status == nil || b.Status.ObservedVersion != 1 {
			return fmt.Errorf("%+v", b.Status)
		}
		return nil
	})
	agent.mu.Lock()
	for _, e := range agent.events {
		if id := e.Extensions[work.ExtResourceID]; e.Type != work.StatusResync && id != "fresh" && id != "last" {
			t.Errorf("%s of %s was sent again", e.Type, id)
		}
	}
	agent.mu.Unlock()
	var b struct {
		api.ResourceBundle
		Status struct {
			ObservedVersion int64
			SequenceID      string
		} `json:"status"`
	}
	m.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/w06", "").into(t, &b)
	if b.Version != 7 || b.ConsumerName != "mc1" || b.Status.ObservedVersion != 7 ||
		b.Status.SequenceID != "1750000000000000000" ||
		b.CreatedAt.Format("2006-01-02T15:04:05Z07:00") != "2024-02-02T03:04:05Z" ||
		!strings.Contains(string(b.Metadata), `"name":"name-of-w06"`) {
		t.Errorf("%+v", b)
	}
	if going := m.bundle("going"); going.DeletedAt == nil || going.DeletedAt.Format("2006-01-02") != "2024-03-02" ||
		going.Version != 2 {
		t.Errorf("%+v", going)
	}
	var c api.Consumer
	m.want(http.StatusOK, "GET", "/api/maestro/v1/consumers/id-of-mc1", "").into(t, &c)
	if c.Name != "mc1" || c.Labels["zone"] != "a" || c.CreatedAt.Year() != 2024 {
		t.Errorf("%+v", c)
	}
	// 25 and fresh
	if got := m.bundles("search",
		`source='mw-client' and consumer_name='mc1' and payload->'metadata'->'labels'@>'{"k":"v"}'`); len(got) != 26 {
		t.Errorf("%d bundles are found by their label", len(got))
	}
	// What was ordered to go goes.
	site.agent("mc2")
	eventually(t, "the deletion is confirmed", func() error {
		if a := m.call("GET", "/api/maestro/v1/resource-bundles/going", ""); a.status != http.StatusNotFound {
			return fmt.Errorf("status %d", a.status)
		}
		return nil
	})

	// Again: what is here stays as it is, and what was deleted does not come back.
	(&source{t: t, client: m.dial("system:platform-api"), name: "mw-client"}).update("mc1", "w00", "later")
	d.exec(`update resources set version = 9 where id = 'w01'`)
	again := site.importFrom(d, 0)
	if again.Bundles.Imported != 0 || again.Consumers.Present != 2 || again.Bundles.Present != 25 ||
		again.Bundles.Refused != 2 {
		t.Errorf("%+v", again)
	}
	var reasons []string
	for _, r := range append(again.Refused, again.Notes...) {
		reasons = append(reasons, r.ID+": "+r.Reason)
	}
	slices.Sort(reasons)
	wantReasons := []string{
		"going: it was deleted in this database; an import does not create deleted bundles again",
		"w00: it is here with the later version 2, and stays so",
		"w01: it is here with other content, version 2 on consumer mc1; nothing is overwritten",
	}
	if diff := cmp.Diff(wantReasons, reasons); diff != "" {
		t.Error(diff)
	}
}

// TestWhatCannotBeImportedIsRefusedAlone has rows of every kind of fault among
// good ones.
func TestWhatCannotBeImportedIsRefusedAlone(t *testing.T) {
	t.Parallel()
	d := newTheirs(t)
	d.consumer("mc1")
	d.exec(
		`insert into consumers values ('c2', now(), now(), null, 'Not_A_Label', null), ('c3', now(), now(), now(), 'mc3', null), ('c4', now(), now(), null, 'mc4', '[1]'), ('c5', null, null, null, 'mc5', null)`)
	for n := range 10 {
		d.resource(fmt.Sprintf("good%d", n), "mc1", 1, []resourceState{reported, unreported}[n%2])
	}
	faults := map[string]string{
		"a-payload":  `update resources set payload = '[]' where id = $1`,
		"b-null":     `update resources set payload = null where id = $1`,
		"c-data":     `update resources set payload = payload - 'data' where id = $1`,
		"d-empty":    `update resources set payload = jsonb_set(payload, '{data,manifests}', '[]') where id = $1`,
		"e-version":  `update resources set version = 0 where id = $1`,
		"f-source":   `update resources set source = null where id = $1`,
		"g-id":       `update resources set payload = jsonb_set(payload, '{resourceid}', '"other"') where id = $1`,
		"h-cluster":  `update resources set payload = jsonb_set(payload, '{clustername}', '"other"') where id = $1`,
		"i-metadata": `update resources set payload = jsonb_set(payload, '{metadata}', '{"labels":{"a b":"c"}}') where id = $1`,
		"j-consumer": `update resources set consumer_name = null where id = $1`,
		"k_id":       `update resources set id = id where id = $1`, // not a name that Kubernetes has
		"l-manifest": `update resources set payload = jsonb_set(payload, '{data,manifests,0,kind}', '7') where id = $1`,
		"m-refused":  `update resources set consumer_name = 'Not_A_Label', payload = jsonb_set(payload, '{clustername}', '"Not_A_Label"') where id = $1`,
	}
	for id, fault := range faults {
		d.resource(id, "mc1", 1, reported)
		d.exec(fault, id)
	}
	d.resource("n-status", "mc1", 1, reported)
	d.exec(`update resources set status = jsonb_set(status, '{resourceversion}', '7') where id = 'n-status'`)
	d.resource("o-name", "mc1", 1, reported)
	d.exec(`update resources set name = 'a-name' where id = 'o-name'`)
	d.resource("p-text", "mc1", 1, reported)
	d.exec(
		`update resources set payload = jsonb_set(payload, '{metadata}', to_jsonb(payload->>'metadata')) where id = 'p-text'`)

	site := newSite(t)
	report := site.importFrom(d, 4)
	if report.Consumers != (original.Count{Read: 5, Imported: 2, Refused: 3}) ||
		report.Bundles != (original.Count{Read: 26, Imported: 13, Refused: 13}) {
		t.Errorf("%+v %+v", report.Consumers, report.Bundles)
	}
	var refused, noted []string
	for _, r := range report.Refused {
		refused = append(refused, r.ID)
		if r.Reason == "" || len(r.Reason) > 500 || strings.Contains(r.Reason, "SQLSTATE") {
			t.Errorf("%+v", r)
		}
	}
	for _, r := range report.Notes {
		noted = append(noted, r.ID)
	}
	want := []string{"c2", "c3", "c4"}
	for id := range faults {
		want = append(want, id)
	}
	slices.Sort(want)
	slices.Sort(refused)
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"n-status", "o-name"}, noted); diff != "" {
		t.Error(diff)
	}
	if text, err := json.Marshal(report); err != nil || !strings.Contains(string(text),
		`"refused":[{"table":"consumers","id":"c2"`) {
		t.Errorf("%v %.300s", err, text)
	}
	m := site.start()
	if got := m.bundles("search", "name like 'good%'"); len(got) != 10 {
		t.Errorf("%v", got)
	}

	for _, bad := range []original.Options{{From: pgtest.DSN(t), To: site.dsn}, {From: "postgres://nobody@127.0.0.1:1/x",
		To: site.dsn}} {
		if _, err := original.Import(t.Context(), bad); err == nil {
			t.Errorf("%s is imported", bad.From)
		}
	}
}

// TestAnImportThatWasStoppedGoesOn stops one after each batch.
func TestAnImportThatWasStoppedGoesOn(t *testing.T) {
	t.Parallel()
	d := newTheirs(t)
	d.consumer("mc1")
	for n := range 12 {
		d.resource(fmt.Sprintf("w%02d", n), "mc1", 2, reported)
	}
	site := newSite(t)
	runs := 0
	for {
		runs++
		ctx, cancel := context.WithCancel(t.Context())
		imported := 0
		o := original.Options{From: d.dsn, To: site.dsn, Batch: 5, Progress: func(r original.Report) {
			if imported = r.Bundles.Imported; imported > 0 {
				cancel()
			}
		}}
		report, err := original.Import(ctx, o)
		cancel()
		if err == nil {
			if report.Bundles.Present != 12 {
				t.Errorf("%+v", report)
			}
			break
		}
		if runs > 10 {
			t.Fatalf("%v %+v", err, report)
		}
	}
	if runs != 4 {
		t.Errorf("%d runs", runs)
	}
	if got := site.start().bundles(); len(got) != 12 {
		t.Errorf("%v", got)
	}
}
