package clm

import (
	"fmt"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/test/testsite"
)

// eventually repeats a check until it holds.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(testsite.HangLimit); !ask(); {
		select {
		case <-end:
			t.Fatalf("not within %s: %s", testsite.HangLimit, what)
		case <-tick.C:
		}
	}
}

func TestExpiredResourcesAreDeleted(t *testing.T) {
	dsn := pgtest.DSN(t)
	a, stop := startWith(t, dsn, func(*Options) {})
	visit := func(name, until string) string {
		t.Helper()
		return "/visits/" + a.do("POST", "/visits", fmt.Sprintf(`{"kind":"Visit","name":%q,"spec":{"until":%s}}`, name,
			until)).want(201).at("id")
	}
	in := func(d time.Duration) string {
		return `"` + time.Now().Add(d).In(time.FixedZone("", 3600)).Format(time.RFC3339Nano) + `"`
	}
	gone := func(a *testAPI, path string) func() bool {
		return func() bool { return a.do("GET", path, "").status == 404 }
	}
	for _, wrong := range []string{`"tomorrow"`, `17`, `"2026-01-01"`, `{}`} {
		a.do("POST", "/visits", `{"kind":"Visit","name":"wrong","spec":{"until":`+wrong+`}}`).want(400, "VAL-000")
	}
	forever, long := visit("forever", "null"), visit("long", in(time.Hour))
	a.do("PATCH", long, `{"spec":{"until":"soon"}}`).want(400, "VAL-000")

	short := visit("short", in(200*time.Millisecond))
	eventually(t, "the short visit ends", gone(a, short))
	if by := a.do("GET", short+"/history", "").want(200).at("items.0.principal"); by != itself {
		t.Errorf("it was ended by %q", by)
	}
	// A change moves the time, forth and back.
	moved := visit("moved", in(time.Hour))
	a.do("PATCH", moved, `{"spec":{"until":`+in(-time.Second)+`}}`).want(200)
	eventually(t, "the visit ends whose time was moved", gone(a, moved))

	// Adapters clean up, as after any DELETE.
	cluster := "/clusters/" + a.cluster("one")
	pass := "/passes/" + a.do("POST", cluster+"/passes", `{"kind":"Pass","name":"p","spec":{"expires_at":`+in(
		-time.Hour)+`}}`).want(201).at("id")
	eventually(t, "the pass is being deleted", func() bool {
		return a.do("GET", pass, "").want(200).at(
			"deleted_time") != ""
	})
	a.report(pass, "credential", 2, "False", "True").want(201)
	a.do("GET", pass, "").want(404)

	// A resource that cannot be deleted does not delay others.
	held := visit("held", in(time.Hour))
	a.do("POST", held+"/stamps", `{"kind":"Stamp","name":"s","spec":{}}`).want(201)
	a.do("PATCH", held, `{"spec":{"until":`+in(-time.Second)+`}}`).want(200)
	next := visit("next", in(100*time.Millisecond))
	eventually(t, "the visit after one that is held ends", gone(a, next))
	a.do("GET", held, "").want(200)

	// Expiry continues after a restart, and one server sees the deletions of the other.
	late := visit("late", in(time.Second))
	stop()
	b, _ := startWith(t, dsn, func(*Options) {})
	startWith(t, dsn, func(*Options) {})
	eventually(t, "the visit ends that began before the restart", gone(b, late))
	b.do("GET", forever, "").want(200)
	b.do("GET", long, "").want(200)
}
