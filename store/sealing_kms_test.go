package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/envelope"
	"atoll.dev/envelope/kms"
	"atoll.dev/envelope/kms/kmstest"
	"atoll.dev/internal/pgtest"
)

// A database goes from a key file to a plugin, and from one key of the plugin to the next, in the background.
func TestAPluginSealsInThePlaceOfAKeyFile(t *testing.T) {
	ctx, dsn, server := t.Context(), pgtest.DSN(t), kmstest.NewServer(t)
	const n = sealingBatch + 3
	file := newKeyFile(t, "k1")
	old, _ := openSealing(t, dsn, file.kms())
	for i := range n {
		if _, err := old.Create(ctx, Document{Kind: "A", ID: fmt.Sprint(i), Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	keys, err := envelope.ReadKeyFile(file.path)
	if err != nil {
		t.Fatal(err)
	}
	both, progress := openSealing(t, dsn, kms.WithKeyFile(kmstest.Open(t, server), keys))
	p := progress()
	for p.OtherKeys > 0 || p.Resealed < n {
		p = progress()
	}
	if p.Key != "kms:key-1" {
		t.Errorf("progress %+v", p)
	}
	both.Close()

	s, progress := openSealing(t, dsn, kmstest.Open(t, server)) // without the file
	server.Rotate()
	for p = progress(); p.Key != "kms:key-2" || p.OtherKeys > 0; {
		p = progress()
	}
	for i := range n {
		d, err := s.Get(ctx, "A", fmt.Sprint(i))
		mustHave(t, "after the rotation", d, err, "hunter2", "swordfish")
	}
	if text := pgtest.Dump(t, dsn); strings.Contains(text, "hunter2") {
		t.Error("the database has values in clear")
	}
}

// While the plugin is away, a store reads what it has read or written before, and writes; another store with an empty
// memory says that values are unavailable, and not that they are damaged.
func TestAStoreGoesOnWhileThePluginIsAway(t *testing.T) {
	ctx, dsn, server := t.Context(), pgtest.DSN(t), kmstest.NewServer(t)
	plugin := kmstest.Open(t, server)
	s, _ := openSealing(t, dsn, plugin)
	late, _ := openSealing(t, dsn, plugin)
	server.Down()
	for _, id := range []string{"1", "2"} {
		if _, err := s.Create(ctx, Document{Kind: "A", ID: id, Spec: []byte(sealedSpec1)}); err != nil {
			t.Fatal(err)
		}
		d, err := s.Get(ctx, "A", id)
		mustHave(t, "while the plugin is away", d, err, "hunter2")
	}
	if _, err := late.Get(ctx, "A", "1"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without the data key: %v", err)
	}
	server.Up(t)
	for {
		d, err := late.Get(ctx, "A", "1")
		if errors.Is(err, ErrUnavailable) && ctx.Err() == nil {
			continue // until the connection is back, within a second
		}
		mustHave(t, "after the plugin is back", d, err, "hunter2")
		break
	}
	if _, err := OpenPatiently(ctx, Options{DSN: dsn, Kinds: []KindSpec{sealedKind}}); err == nil ||
		!strings.Contains(err.Error(), "--envelope-kms") {
		t.Errorf("without the plugin: %v", err)
	}
}
