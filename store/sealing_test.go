package store

import (
	"fmt"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
)

func TestTheBackgroundSealsAnOlderDatabase(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	old, err := Open(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}})
	if err != nil {
		t.Fatal(err)
	}
	const n = 2*sealingBatch + 7
	for i := range n {
		spec := sealedSpec1
		if i%2 == 1 {
			spec = `{"team": "web"}`
		}
		id := fmt.Sprint(i)
		if _, err := old.Create(ctx, Document{Kind: "A", ID: id, Name: id, Spec: []byte(spec)}); err != nil {
			t.Fatal(err)
		}
	}
	before, err := old.List(ctx, Query{Kind: "A", Limit: n})
	if err != nil || !strings.Contains(pgtest.Dump(t, dsn), "hunter2") {
		t.Fatal(err)
	}
	old.Close()

	s, progress := openSealing(t, dsn, file.kms())
	p := progress()
	for !p.IsChecked {
		p = progress()
	}
	if p.Sealed != n/2+1 || p.Key != "k1" || p.OtherKeys != 0 {
		t.Errorf("progress %+v", p)
	}
	if text := pgtest.Dump(t, dsn); strings.Contains(text, "hunter2") || strings.Contains(text, "swordfish") {
		t.Error("the database has values in clear")
	}
	after, err := s.List(ctx, Query{Kind: "A", Limit: n})
	if err != nil || len(after.Documents) != n {
		t.Fatal(err)
	}
	for i, d := range after.Documents {
		was := before.Documents[i]
		same, err := SameJSON(d.Spec, was.Spec)
		sameWire, wireErr := SameJSON(d.Wire, was.Wire)
		if err != nil || wireErr != nil || !same || !sameWire || d.Version != was.Version {
			t.Fatalf("sealing changed document %s: %s, %s", d.ID, was.Wire, d.Wire)
		}
	}
}

func TestARotationSealsAgain(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	s, progress := openSealing(t, dsn, file.kms())
	const n = sealingBatch + 5
	for i := range n {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: fmt.Sprint(i), Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	file.write("k2", "k1")
	p := progress()
	for p.Key != "k2" || p.OtherKeys > 0 {
		p = progress()
	}
	if p.Resealed != n {
		t.Errorf("progress %+v", p)
	}
	s.Close()
	file.write("k2")
	again, _ := openSealing(t, dsn, file.kms())
	for i := range n {
		d, err := again.Get(ctx, "A", fmt.Sprint(i))
		mustHave(t, "after the rotation", d, err, "hunter2", "swordfish")
		if d.Version != 1 {
			t.Fatalf("the rotation made version %d", d.Version)
		}
	}
	file.write("k3")
	if _, err := Open(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}, Envelope: file.kms()}); err == nil ||
		!strings.Contains(err.Error(), `"k2"`) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := Open(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}}); err == nil ||
		!strings.Contains(err.Error(), "--envelope-key-file") {
		t.Errorf("without keys: %v", err)
	}
}

// Writers go on while the background seals and rotates; no value is lost, and none is left in clear.
func TestWritersAndTheBackgroundAgree(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	old, err := Open(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}})
	if err != nil {
		t.Fatal(err)
	}
	const n = 20
	known := make([]Document, n)
	for i := range n {
		if known[i], err = old.Create(ctx, Document{Kind: "A", ID: fmt.Sprint(i), Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	s, progress := openSealing(t, dsn, file.kms())
	for round := range 60 {
		if round == 30 {
			file.write("k2", "k1")
		}
		for i := range known {
			known[i], _, err = s.UpdateFrom(ctx, known[i], func(d *Document) error {
				d.Status = fmt.Appendf(nil, `{"round":%d}`, round)
				return nil
			})
			mustHave(t, "a write", known[i], err, "hunter2", "swordfish")
		}
	}
	p := progress()
	for !p.IsChecked || p.Key != "k2" || p.OtherKeys > 0 {
		p = progress()
	}
	if text := pgtest.Dump(t, dsn); strings.Contains(text, "hunter2") || strings.Contains(text, "swordfish") {
		t.Error("the database has values in clear")
	}
	for i := range n {
		d, err := s.Get(ctx, "A", fmt.Sprint(i))
		mustHave(t, "the last state", d, err, "hunter2", "swordfish")
		if string(d.Status) != `{"round": 59}` {
			t.Errorf("status %s", d.Status)
		}
	}
}
