package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/internal/pgtest"
)

var secretPattern = regexp.MustCompile(`"secret": *("[^"]*")`)

// sealedKind finds the member secret of a spec sensitive. Its wire form has spec and status.
var sealedKind = KindSpec{Kind: "A", BriefHistory: true,
	Render: func(d Document) ([]byte, error) {
		return fmt.Appendf(nil, `{"spec":%s,"status":%s}`, d.Spec, d.Status), nil
	},
	Sensitive: func(spec json.RawMessage) (spans [][2]int) {
		for _, m := range secretPattern.FindAllSubmatchIndex(spec, -1) {
			spans = append(spans, [2]int{m[2], m[3]})
		}
		return spans
	},
	Indexes: []Index{{Name: "team", On: "btree ((spec->>'team'))"}}}

// keyFile is a file of keys that a test rotates.
type keyFile struct {
	t    *testing.T
	path string
	keys map[string][]byte
}

func newKeyFile(t *testing.T, names ...string) *keyFile {
	f := &keyFile{t, filepath.Join(t.TempDir(), "keys"), map[string][]byte{}}
	f.write(names...)
	return f
}

func (f *keyFile) write(names ...string) {
	var content []byte
	for _, name := range names {
		if f.keys[name] == nil {
			f.keys[name] = envelope.NewKeyLine(name)
		}
		content = append(content, f.keys[name]...)
	}
	if err := os.WriteFile(f.path, content, 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *keyFile) kms() envelope.KMS {
	keys, err := envelope.ReadKeyFile(f.path)
	if err != nil {
		f.t.Fatal(err)
	}
	return keys
}

// openSealing opens a store with the kind sealedKind; progress returns what the background has done.
func openSealing(t *testing.T, dsn string, kms envelope.KMS) (s *Store, progress func() SealingProgress) {
	t.Helper()
	latest := make(chan SealingProgress, 1)
	s, err := OpenPatiently(t.Context(), Options{DSN: dsn, Kinds: []KindSpec{sealedKind}, Envelope: kms,
		SealingInterval: 5 * time.Millisecond, SealingProgress: func(p SealingProgress) {
			select {
			case <-latest:
			default:
			}
			latest <- p
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s, func() SealingProgress { return <-latest }
}

const sealedSpec1 = `{"team": "web", "list": [{"secret": "hunter2"}, {"secret": "swordfish"}], "a": {"secret": "<&>"}}`

func mustHave(t *testing.T, where string, d Document, err error, texts ...string) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", where, err)
	}
	for _, text := range texts {
		if !bytes.Contains(d.Wire, []byte(text)) || d.Spec != nil && !bytes.Contains(d.Spec, []byte(text)) {
			t.Errorf("%s has no %q: spec %s wire %s", where, text, d.Spec, d.Wire)
		}
		if strings.Contains(string(d.Wire)+string(d.Spec), "atoll-sealed") {
			t.Errorf("%s shows placeholders: spec %s wire %s", where, d.Spec, d.Wire)
		}
	}
}

func TestI11SensitiveValuesAreSealedInTheDatabase(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.DSN(t)
	s, _ := openSealing(t, dsn, newKeyFile(t, "k1").kms())
	made, err := s.Create(ctx, Document{Kind: "A", ID: "1", Scope: "s", Name: "one", Spec: []byte(sealedSpec1)})
	mustHave(t, "the created document", made, err, "hunter2", "swordfish", "<&>")
	_, err = s.Create(ctx, Document{Kind: "A", ID: "2", Scope: "s", Name: "two", Spec: []byte(`{"team":"web"}`)})
	if err != nil {
		t.Fatal(err)
	}
	check := func(texts ...string) {
		t.Helper()
		d, err := s.Get(ctx, "A", "1")
		mustHave(t, "Get", d, err, texts...)
		d, err = s.GetByName(ctx, "A", "s", "one")
		mustHave(t, "GetByName", d, err, texts...)
		d, err = s.Find(ctx, "1")
		mustHave(t, "Find", d, err, texts...)
		d, err = s.GetWire(ctx, "A", "1")
		mustHave(t, "GetWire", d, err, texts...)
		for _, q := range []Query{{Kind: "A"}, {Kind: "A", WireOnly: true}, {Kind: "A", WithoutSpec: true},
			{Kind: "A", Where: Fragment{SQL: "d.spec->>'team' = $1", Args: []any{"web"}}}} {
			page, err := s.List(ctx, q)
			if err != nil || len(page.Documents) != 2 {
				t.Fatalf("%d documents, %v", len(page.Documents), err)
			}
			mustHave(t, "List", page.Documents[0], nil, texts...)
			err = s.Stream(ctx, q, func(Extent) error { return nil }, func(docs []Document) error {
				mustHave(t, "Stream", docs[0], nil, texts...)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		err = s.Tx(ctx, func(tx *Tx) error {
			d, err := tx.GetForUpdate(ctx, "A", "1")
			mustHave(t, "GetForUpdate", d, err, texts...)
			docs, err := tx.ListScope(ctx, "A", "s")
			mustHave(t, "ListScope", docs[0], err, texts...)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if strings.Contains(pgtest.Dump(t, dsn), text) {
				t.Errorf("the database has %q", text)
			}
		}
		if !strings.Contains(pgtest.Dump(t, dsn), "web") {
			t.Error("the dump lacks what is not sensitive")
		}
	}
	check("hunter2", "swordfish", "<&>")
	if page, err := s.List(ctx, Query{Kind: "A", Where: Fragment{SQL: "d.spec::text like '%hunter2%'"}}); err != nil ||
		len(page.Documents) != 0 {
		t.Errorf("a search finds %d documents by a sealed value, %v", len(page.Documents), err)
	}
	d, changed, err := s.Update(ctx, "A", "1", 0, func(d *Document) error { d.Status = []byte(`{"n":1}`); return nil })
	if mustHave(t, "a change of the status", d, err, "hunter2", "swordfish", "<&>"); !changed || d.Generation != 1 {
		t.Errorf("changed %v, generation %d", changed, d.Generation)
	}
	check("hunter2", "swordfish", "<&>")
	_, changed, err = s.Update(ctx, "A", "1", 0, func(d *Document) error { d.Spec = []byte(sealedSpec1); return nil })
	if err != nil || changed {
		t.Errorf("an equal spec: changed %v, %v", changed, err)
	}
	replace := func(old, new string) func(*Document) error {
		return func(d *Document) error { d.Spec = bytes.ReplaceAll(d.Spec, []byte(old), []byte(new)); return nil }
	}
	d, changed, err = s.UpdateFrom(ctx, d, replace("hunter2", "hunter3"))
	if mustHave(t, "a change of a value", d, err, "hunter3", "swordfish"); !changed || d.Generation != 2 {
		t.Errorf("changed %v, generation %d", changed, d.Generation)
	}
	check("hunter3", "swordfish", "<&>")
	if _, _, err = s.Update(ctx, "A", "1", 0, replace(`"secret"`, `"public"`)); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(pgtest.Dump(t, dsn), "hunter3") {
		t.Error("a spec without sensitive values is not stored as it is")
	}
	for _, wrong := range []string{`{"secret": "\u0000"}`, `{"secret": "\ud800"}`} {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: "3", Spec: []byte(wrong)}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s, which PostgreSQL refuses: %v", wrong, err)
		}
	}
}

func TestFollowersGetSealedValues(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s, _ := openSealing(t, pgtest.DSN(t), newKeyFile(t, "k1").kms())
	for i := range 3 {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: fmt.Sprint(i), Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Remove(ctx, "A", "2", 0); err != nil {
		t.Fatal(err)
	}
	page, err := s.List(ctx, Query{Kind: "A"})
	if err != nil || len(page.Documents) != 2 {
		t.Fatal(err)
	}
	cursor := page.Cursor
	_, _, err = s.Update(ctx, "A", "0", 0, func(d *Document) error { d.Status = []byte(`{"n":2}`); return nil })
	if err != nil {
		t.Fatal(err)
	}
	err = s.Follow(ctx, FollowOptions{Kinds: []Kind{"A"}, From: cursor}, func(_ context.Context, b Batch) error {
		for _, d := range b.Documents {
			mustHave(t, "a follower's document", d, nil, "hunter2", "swordfish")
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// A column that somebody changed keeps its placeholders, and the documents beside it can be read.
func TestADamagedSealHarmsItsDocumentOnly(t *testing.T) {
	ctx := t.Context()
	s, _ := openSealing(t, pgtest.DSN(t), newKeyFile(t, "k1").kms())
	for _, id := range []string{"1", "2", "3"} {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: id, Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	err := s.Tx(ctx, func(tx *Tx) error { // the values of another document
		_, err := tx.Exec(ctx, `update document set sealed = (select sealed from document where id = '1') where id = '2'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := s.List(ctx, Query{Kind: "A"})
	if err != nil || len(page.Documents) != 3 {
		t.Fatalf("%d documents, %v", len(page.Documents), err)
	}
	for _, d := range page.Documents {
		if strings.Contains(string(d.Spec), "hunter2") == (d.ID == "2") {
			t.Errorf("document %s: %s", d.ID, d.Spec)
		}
	}
	d, _, err := s.Update(ctx, "A", "2", 0, func(d *Document) error { d.Spec = []byte(sealedSpec1); return nil })
	mustHave(t, "a new spec", d, err, "hunter2")
	d, err = s.Get(ctx, "A", "2")
	mustHave(t, "the mended document", d, err, "hunter2")
}
