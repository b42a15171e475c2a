package maestro

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"atoll.dev/api/audit"
	"atoll.dev/envelope"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro/database"
	"atoll.dev/maestro/envelopekeys"
	"atoll.dev/maestro/records"
	"atoll.dev/store"
)

// The audit has who rotated the key of the key file, and what each of the two steps changed.
func TestI10ARotationOfTheEnvelopeKeyIsAudited(t *testing.T) {
	t.Parallel()
	site, file := newSite(t), filepath.Join(t.TempDir(), "envelope.keys")
	if err := envelope.EnsureKeyFile(file); err != nil {
		t.Fatal(err)
	}
	keys, err := envelope.ReadKeyFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m := site.start(func(o *Options) { o.Envelope = keys })
	m.http = site.client(records.PlatformName)
	options := database.Options(site.dsn, 0, nil)
	options.Envelope = keys
	db, err := store.Open(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx := store.WithActor(t.Context(), store.Actor{Principal: "system:cli", Audit: audit.Request{Proof: audit.ByDatabase,
		ProofID: "root@here", Operator: true, Action: "RotateEnvelopeKey"}.Encode()})

	next, err := envelopekeys.Add(ctx, db, file)
	if err != nil {
		t.Fatal(err)
	}
	if err := envelopekeys.Promote(ctx, db, file, "k-of-no-file"); err == nil {
		t.Error("a key that the file does not have is promoted")
	}
	if err := envelopekeys.Promote(ctx, db, file, next); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(content, []byte(next+" ")) || bytes.Count(content, []byte("\n")) != 2 {
		t.Errorf("the file has %d lines and does not begin with %s, %v", bytes.Count(content, []byte("\n")), next, err)
	}
	var page audit.Page
	m.want(200, "GET", "/api/maestro/v1/audit?wait=0", "").into(t, &page)
	var got []audit.Change
	for _, c := range page.Items {
		if c.Kind == string(envelopekeys.Kind) {
			got = append(got, c)
		}
	}
	if len(got) != 2 || got[0].ID != next || got[0].Change != "create" || got[1].ID != next || got[1].Change != "update" {
		t.Fatalf("records %+v", got)
	}
	if got[0].Before != "" || got[0].After == "" || got[1].Before != got[0].After || got[1].After == "" ||
		got[1].After == got[1].Before {
		t.Errorf("hashes of %+v", got)
	}
	for _, c := range got {
		var by audit.Request
		if err := json.Unmarshal(c.Request, &by); err != nil || by.ProofID != "root@here" || by.Proof != audit.ByDatabase ||
			by.Action != "RotateEnvelopeKey" || c.Principal != "system:cli" {
			t.Errorf("record %+v by %+v, %v", c, by, err)
		}
	}
	dump := pgtest.Dump(t, site.dsn)
	for line := range strings.Lines(string(content)) {
		if _, key, _ := strings.Cut(strings.TrimSpace(line), " "); strings.Contains(dump, key) {
			t.Error("the database has a key of the file")
		}
	}
}
