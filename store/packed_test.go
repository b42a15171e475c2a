package store

import (
	"bytes"
	"compress/flate"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
)

func TestUnpackReturnsThePackedText(t *testing.T) {
	for n := range 4000 {
		text := []byte(strings.Repeat("condition ", n/10) + fmt.Sprint(n))
		packed := pack(text)
		if back, err := unpack(nil, packed); err != nil || !bytes.Equal(back, text) {
			t.Fatalf("%d bytes: %v", len(text), err)
		}
		if len(packed) > len(text)+1 {
			t.Fatalf("%d bytes became %d", len(text), len(packed))
		}
	}
	if _, err := unpack(nil, []byte{9, 1, 2}); !errors.Is(err, ErrNewer) {
		t.Errorf("an unknown form: %v", err)
	}
	if _, err := unpack(nil, []byte{packedDeflate, 1, 2}); err == nil {
		t.Error("unpack accepted a text that was cut")
	}
	whole := pack([]byte(report))
	for n := 1; n < len(whole); n++ {
		if _, err := unpack(nil, whole[:n]); err == nil {
			t.Errorf("unpack accepted %d of %d bytes", n, len(whole))
		}
	}
}

// report is the stored form of a report of one adapter.
const report = `{"adapter":"dns","observed_generation":1,"conditions":[{"type":"Available","status":"True",` +
	`"reason":"Checked","message":"filled","last_transition_time":"2026-11-22T18:30:00.123456Z"},` +
	`{"type":"Applied","status":"True","reason":"Applied","message":"all is applied",` +
	`"last_transition_time":"2026-11-22T18:30:00.123456Z"},{"type":"Health","status":"True",` +
	`"reason":"Healthy","message":"no errors","last_transition_time":"2026-11-22T18:30:00.123456Z"}],` +
	`"data":{"job":{"name":"job-filled","attempts":1}},"created_time":"2026-11-22T18:30:00.125Z",` +
	`"last_report_time":"2026-11-22T18:30:00.123456Z","recent":["q83vEjRWeJAABkWp5XHQQAAAAAAAAAAAAAZFqeVx0EAA` +
	`BkWp5XHQQAAGRanlcdBA"]}`

// A report is small because the dictionary has its words. The bound guards the dictionary, which must never change.
func TestAPackedReportIsSmall(t *testing.T) {
	if n := len(pack([]byte(report))); n > len(report)/2 {
		t.Errorf("%d bytes became %d", len(report), n)
	}
	if sum := crc32.ChecksumIEEE([]byte(dictionary)); sum != dictionarySum {
		t.Errorf("the dictionary has the checksum %#x; stored texts need %#x", sum, uint32(dictionarySum))
	}
}

const dictionarySum = 0x665451c1

// Earlier releases packed with deflate.
func TestPackedTextsOfEarlierReleasesAreUnpacked(t *testing.T) {
	var b bytes.Buffer
	b.WriteByte(packedDeflate)
	w, _ := flate.NewWriter(&b, flate.BestSpeed)
	w.Write([]byte(report))
	w.Close()
	if text, err := unpack(nil, b.Bytes()); err != nil || string(text) != report {
		t.Errorf("%s, %v", text, err)
	}
}

// Any text is the same after pack and unpack, and any bytes are unpacked without a panic.
func FuzzPack(f *testing.F) {
	f.Add([]byte(report))
	f.Add([]byte(report + report))
	f.Add([]byte(strings.Repeat("a", 1000)))
	f.Add(bytes.Repeat([]byte(report), 200))
	f.Fuzz(func(t *testing.T, text []byte) {
		packed := pack(text)
		if back, err := unpack([]byte("x"), packed); err != nil || !bytes.Equal(back[1:], text) {
			t.Errorf("%q became %q, %v", text, back, err)
		}
		_, _ = unpack(nil, append([]byte{packedByDictionary}, text...))
	})
}

func BenchmarkPack(b *testing.B) {
	text := []byte(strings.Repeat(report, 4))
	packed := pack(text)
	b.Run("pack", func(b *testing.B) {
		for b.Loop() {
			pack(text)
		}
		b.ReportMetric(float64(len(packed)), "packed-bytes")
	})
	b.Run("unpack", func(b *testing.B) {
		for b.Loop() {
			_, _ = unpack(nil, packed)
		}
	})
}

// A kind chooses the content of its history; records without it, and older ones, are read as
// written.
func TestTheHistoryStoresTheRecordOfTheKind(t *testing.T) {
	ctx := t.Context()
	long := `{"changed":"` + strings.Repeat("x", 3000) + `"}`
	s, err := OpenPatiently(ctx, Options{DSN: pgtest.DSN(t), Kinds: []KindSpec{
		{Kind: "A", History: true, Recorded: func(before, after Document) json.RawMessage {
			if string(before.Status) == string(after.Status) {
				t.Error("the store called Recorded for an unchanged status")
			}
			return json.RawMessage(long)
		}}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := s.Create(ctx, Document{Kind: "A", ID: "1", Status: []byte(`{"n":0}`)}); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*Document) error{
		func(d *Document) error { d.Status = []byte(`{"n":1}`); return nil },
		func(d *Document) error { d.Spec = []byte(`{"n":1}`); return nil },
	} {
		if _, _, err := s.Update(ctx, "A", "1", 0, change); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.pool.Exec(
		ctx,
		`insert into history (at, action, kind, id, scope, version, generation, principal, account, request_id, status, token)
		values (now(), 'update', 'A', '1', '', 9, 1, '', '', '', '{"old": true}', 1)`,
	); err != nil {
		t.Fatal(err)
	}
	records, err := s.History(ctx, HistoryQuery{Kind: "A", ID: "1"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range records {
		got = append(got, string(r.Status))
	}
	if want := []string{`{"old": true}`, "", long, `{"n":0}`}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the history has %s", got)
	}
}
