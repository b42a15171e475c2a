package access

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/api/audit"
	"atoll.dev/envelope/kms"
	"atoll.dev/envelope/kms/kmstest"
	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/store/auditfeed"
	"atoll.dev/test/testsite"
)

// A region goes from a key in the file to a key that a KMS plugin has wrapped, and back. The file has no key in clear
// meanwhile, and key pairs work all the time.
func TestASealKeyIsWrappedByAPlugin(t *testing.T) {
	ctx, server := t.Context(), kmstest.NewServer(t)
	dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "seal.key")
	k := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{})
	pair, _ := addPair(t, k, 0)
	progress := runReseal(t, k)
	var processes []*KeyStore // that began before
	for _, place := range []KeyPlace{KeyPlace(server.Endpoint()), PlaceOfFirst, PlaceInFile} {
		old := k.sealer.ID()
		next, err := k.AddSealKey(ctx, place)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes { // the command waits until each has read the file
			if _, err := p.sealer.awaitCurrent(0); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.PromoteSealKey(ctx, next); err != nil {
			t.Fatal(err)
		}
		for sealedBy(t, k, next) != 1 {
			<-progress
		}
		if err := k.DropSealKey(ctx, old); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(file)
		if err != nil || strings.Contains(string(content), keyFileHeader) != (place == PlaceInFile) {
			t.Errorf("place %q: the file has %d lines, the first is %.30s, %v", place, strings.Count(string(content), "\n"),
				content, err)
		}
		var unusable atomic.Int64 // of this look: a process on a busy machine reads the next rotation's key late
		fresh := runKeys(t, openStore(t, dsn, store.Hooks{}), file, CacheObserver{Unusable: func(string, error) {
			unusable.Add(1)
		}})
		if _, known, err := fresh.Lookup(pair); !known || err != nil || unusable.Load() > 0 {
			t.Errorf("place %q: the key pair is known: %v, %v; %d are unusable", place, known, err, unusable.Load())
		}
		processes = append(processes, fresh)
		testsite.Eventually(t, "each process goes on with the key of this rotation", func() error {
			for i, p := range processes {
				if _, known, err := p.Lookup(pair); !known || err != nil {
					return fmt.Errorf("process %d: the key pair is known: %v, %v", i, known, err)
				}
			}
			return nil
		})
	}
}

// A process that has the key in memory goes on while its plugin is away, and a process that starts says what to do.
func TestASealerGoesOnWhileItsPluginIsAway(t *testing.T) {
	server, dir := kmstest.NewServer(t), t.TempDir()
	path := filepath.Join(dir, "seal.key")
	first, err := wrapSealKey(t.Context(), server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	write := func(keys ...sealKey) {
		var lines []string
		for _, k := range keys {
			lines = append(lines, k.line+"\n")
		}
		if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(first)
	s := sealer(t, path)
	sealed, err := s.Seal(testSecret, testBound)
	if err != nil {
		t.Fatal(err)
	}
	second, err := wrapSealKey(t.Context(), server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	server.Down()
	if _, err := s.awaitCurrent(0); err != nil || s.Problem() != nil {
		t.Errorf("without a change: %v, %v", err, s.Problem())
	}
	if _, err := s.Seal(testSecret, testBound); err != nil {
		t.Errorf("sealing while the plugin is away: %v", err)
	}
	_, err = OpenSealer(path)
	if !errors.Is(err, kms.ErrUnavailable) || !strings.Contains(err.Error(), "start the plugin") {
		t.Errorf("a start without the plugin: %v", err)
	}
	write(first, second) // it opens only, so nothing is lost without it
	if _, err := s.awaitCurrent(0); err != nil || !errors.Is(s.Problem(), kms.ErrUnavailable) {
		t.Errorf("a second key that is not unwrapped: %v, %v", err, s.Problem())
	}
	write(second, first) // the first key may be dropped from now on
	_, _ = s.awaitCurrent(0)
	if _, err := s.Seal(testSecret, testBound); !errors.Is(err, kms.ErrUnavailable) {
		t.Errorf("sealing with an earlier key: %v", err)
	}
	if got, err := s.Open(sealed, testBound); got != testSecret || err != nil {
		t.Errorf("opening: %q, %v", got, err)
	}
	server.Up(t)
	server.Hang()
	read := make(chan error, 1)
	go func() {
		_, err := s.awaitCurrent(0)
		read <- err
	}()
	for range 100 { // beside a question that is not answered
		if got, err := s.Open(sealed, testBound); got != testSecret || err != nil {
			t.Fatalf("opening: %q, %v", got, err)
		}
	}
	server.Continue()
	if err := <-read; err != nil {
		t.Error(err)
	}
	if _, err := s.Seal(testSecret, testBound); err != nil || s.ID() != second.id || s.Problem() != nil {
		t.Errorf("after the plugin is back: %v, %v", err, s.Problem())
	}
}

// A wrapped line with the id of another key, as whoever writes the file could make it, opens nothing.
func TestAWrappedLineNamesItsKey(t *testing.T) {
	server := kmstest.NewServer(t)
	k, err := wrapSealKey(t.Context(), server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "seal.key")
	for name, line := range map[string]string{
		"another id":   strings.Replace(k.line, k.id, "0123456789ab", 1),
		"no id":        strings.Replace(k.line, k.id, "", 1),
		"no endpoint":  strings.Replace(k.line, server.Endpoint(), "tcp://127.0.0.1:1", 1),
		"half the key": k.line[:len(k.line)-40],
	} {
		if err := os.WriteFile(path, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenSealer(path); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// The audit has who rotated and dropped a key, and status how much was sealed again.
func TestI10ARotationOfTheSealKeyIsAudited(t *testing.T) {
	dsn, file := pgtest.DSN(t), filepath.Join(t.TempDir(), "seal.key")
	db := openStore(t, dsn, store.Hooks{})
	k := runKeys(t, db, file, CacheObserver{})
	for i := range 3 {
		addPair(t, k, i)
	}
	ctx := store.WithActor(t.Context(), store.Actor{Principal: "system:cli", Audit: audit.Request{Proof: audit.ByDatabase,
		ProofID: "root@here", Operator: true, Action: "RotateSealKey"}.Encode()})
	old := k.sealer.ID()
	next, err := k.AddSealKey(ctx, PlaceOfFirst)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := k.AddSealKey(ctx, PlaceOfFirst); !errors.Is(err, ErrRotating) {
		t.Errorf("a second rotation: %v", err)
	}
	if err := k.PromoteSealKey(ctx, next); err != nil {
		t.Fatal(err)
	}
	if _, err := k.sealer.awaitCurrent(0); err != nil {
		t.Fatal(err)
	}
	progress := runReseal(t, k)
	for sealedBy(t, k, next) != 3 {
		<-progress
	}
	if err := k.DropSealKey(ctx, old); err != nil {
		t.Fatal(err)
	}
	if _, err := k.sealer.awaitCurrent(0); err != nil {
		t.Fatal(err)
	}
	uses, err := k.SealKeys(t.Context())
	if err != nil || len(uses) != 1 || uses[0].Resealed != 3 || uses[0].Place != PlaceInFile {
		t.Errorf("status %+v, %v", uses, err)
	}
	page, err := auditfeed.Read(t.Context(), db, "", 100, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range page.Items {
		var by audit.Request
		if err := json.Unmarshal(c.Request, &by); c.Kind != string(KindSealKey) || err != nil {
			continue
		}
		if by.ProofID != "root@here" || by.Action != "RotateSealKey" {
			t.Errorf("record %+v by %+v", c, by)
		}
		got = append(got, c.ID+" "+c.Change)
	}
	want := []string{next + " create", next + " update", old + " create"}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		t.Errorf("records %v, want %v", got, want)
	}
}
