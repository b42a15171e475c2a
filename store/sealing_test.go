package store

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"atoll.dev/envelope"
	"atoll.dev/internal/pgtest"
)

func TestTheBackgroundSealsAnOlderDatabase(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	old, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}})
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
	if _, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}, Envelope: file.kms()}); err == nil ||
		!strings.Contains(err.Error(), `"k2"`) {
		t.Errorf("without the key: %v", err)
	}
	if _, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}}); err == nil ||
		!strings.Contains(err.Error(), "--envelope-key-file") {
		t.Errorf("without keys: %v", err)
	}
}

// Writers go on while the background seals and rotates; no value is lost, and none is left in clear.
func TestWritersAndTheBackgroundAgree(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	old, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}})
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

// A restored region whose key file belongs to another region must not take all its Secrets for damaged.
func TestAKeyOfTheSameNameThatDoesNotFitIsRefusedAtTheStart(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.DSN(t)
	s, _ := openSealing(t, dsn, newKeyFile(t, "k1").kms())
	for _, id := range []string{"1", "2"} {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: id, Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	other, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}, Envelope: newKeyFile(t, "k1").kms()})
	if err == nil {
		other.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "k1") {
		t.Errorf("with another key of the same name: %v", err)
	}
}

// Somebody puts another key under the name of the one in use. Without a refusal each Secret written from then on could
// be read until a restart, and never again.
func TestNothingIsSealedWithAReplacedKey(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	s, _ := openSealing(t, dsn, file.kms())
	create := func(id string, spec string) error {
		_, err := s.Create(ctx, Document{Kind: "A", ID: id, Spec: []byte(spec)})
		return err
	}
	if err := create("before", sealedSpec1); err != nil {
		t.Fatal(err)
	}
	earlier := file.keys["k1"]
	file.keys["k1"] = nil
	file.write("k1") // another key
	written := []string{"before"}
	var err error
	for i := 0; err == nil; i++ { // the process reads the file each second
		id := fmt.Sprint(i)
		if err = create(id, sealedSpec1); err == nil {
			written = append(written, id)
		}
	}
	if !errors.Is(err, envelope.ErrReplacedKey) || !strings.Contains(err.Error(), file.path) {
		t.Errorf("refused with %v", err)
	}
	if err := create("no secret", `{"team": "web"}`); err != nil {
		t.Errorf("a document without sensitive values: %v", err)
	}
	d, err := s.Get(ctx, "A", "before")
	mustHave(t, "meanwhile", d, err, "hunter2")
	file.keys["k1"] = earlier
	file.write("k1")
	for err = create("after", sealedSpec1); errors.Is(err, envelope.ErrReplacedKey); {
		err = create("after", sealedSpec1)
	}
	if err != nil {
		t.Error(err)
	}
	s.Close()
	again, _ := openSealing(t, dsn, file.kms())
	for _, id := range append(written, "after") {
		d, err := again.Get(ctx, "A", id)
		mustHave(t, id, d, err, "hunter2", "swordfish")
	}
}

// A caller that has read placeholders and writes them back would replace the values for ever.
func TestPlaceholdersOfADamagedSealAreNotSealed(t *testing.T) {
	ctx := t.Context()
	s, _ := openSealing(t, pgtest.DSN(t), newKeyFile(t, "k1").kms())
	made, err := s.Create(ctx, Document{Kind: "A", ID: "1", Spec: []byte(sealedSpec1)})
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string, args ...any) {
		t.Helper()
		if err := s.Tx(ctx, func(tx *Tx) error {
			_, err := tx.Exec(ctx, sql, args...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	exec(`update document set sealed = $1`, []byte("damaged"))
	_, _, err = s.Update(ctx, "A", "1", 0, func(d *Document) error {
		d.Spec = bytes.Replace(d.Spec, []byte("web"), []byte("ops"), 1)
		return nil
	})
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("a spec with placeholders was stored: %v", err)
	}
	exec(`update document set sealed = $1`, made.sealed.column)
	d, err := s.Get(ctx, "A", "1")
	mustHave(t, "the mended document", d, err, "hunter2", "swordfish")
}

// A process of an earlier version does not know the column sealed: it stores a new spec in clear beside it.
func TestASpecOfAnEarlierVersionIsSealedAgain(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.DSN(t)
	s, progress := openSealing(t, dsn, newKeyFile(t, "k1").kms())
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Spec: []byte(sealedSpec1)}); err != nil {
		t.Fatal(err)
	}
	const spec = `{"team": "web", "secret": "opensesame"}`
	if err := s.Tx(ctx, func(tx *Tx) error {
		_, err := tx.Exec(ctx, `update document set spec = $1, wire = $2, version = 2, generation = 2,
			xid = pg_current_xact_id()`, []byte(spec), []byte(`{"spec":`+spec+`,"status":{}}`))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	d, err := s.Get(ctx, "A", "1")
	mustHave(t, "the document", d, err, "opensesame")
	for progress().Sealed == 0 {
	}
	d, err = s.Get(ctx, "A", "1")
	mustHave(t, "the sealed document", d, err, "opensesame")
	if strings.Contains(pgtest.Dump(t, dsn), "opensesame") {
		t.Error("the database has the value in clear")
	}
}

// While another process seals, nobody knows whether all documents are sealed.
func TestAProcessThatDidNotCheckDoesNotSayThatAllIsSealed(t *testing.T) {
	ctx, dsn, file := t.Context(), pgtest.DSN(t), newKeyFile(t, "k1")
	first, progress := openSealing(t, dsn, file.kms())
	for !progress().IsChecked {
	}
	err := first.Tx(ctx, func(tx *Tx) error {
		if _, err := tx.Exec(ctx, `select from sealing for update`); err != nil {
			return err
		}
		_, progress := openSealing(t, dsn, file.kms())
		for range 5 {
			if progress().IsChecked {
				t.Error("it is said to be checked")
				break
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A document that its kind no longer renders delays no other.
func TestADocumentThatCannotBeSealedDelaysNoOther(t *testing.T) {
	ctx, dsn := t.Context(), pgtest.DSN(t)
	old, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"1", "2"} {
		if _, err := old.Create(ctx, Document{Kind: "A", ID: id, Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	kind, latest := sealedKind, make(chan SealingProgress)
	kind.Render = func(d Document) ([]byte, error) {
		if d.ID == "1" {
			return nil, errors.New("unknown form")
		}
		return sealedKind.Render(d)
	}
	s, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{kind}, Envelope: newKeyFile(t, "k1").kms(),
		SealingInterval: 5 * time.Millisecond, SealingProgress: func(p SealingProgress) {
			select {
			case latest <- p:
			case <-ctx.Done():
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for p := <-latest; !p.IsChecked || p.Sealed != 1; p = <-latest {
	}
}
