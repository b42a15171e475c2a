package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/api/work"
	"atoll.dev/envelope"
	"atoll.dev/internal/pgtest"
)

// What sealing costs a creation, a change of the status and a read: without an envelope, and with one for a document
// without and with a Secret.
func BenchmarkSealing(b *testing.B) {
	keys, err := envelope.ParseKeys(envelope.NewKeyLine("k1"))
	if err != nil {
		b.Fatal(err)
	}
	manifest := `{"apiVersion":"v1","kind":"%s","metadata":{"name":"a"},"data":{"key":"` +
		strings.Repeat("dmFsdWU=", 250) + `"}}`
	for _, c := range []struct {
		name, kind string
		kms        envelope.KMS
	}{{"no envelope", "ConfigMap", nil}, {"no Secret", "ConfigMap", keys}, {"a Secret", "Secret", keys}} {
		kind := sealedKind
		kind.Sensitive = func(spec json.RawMessage) [][2]int { return work.SecretSpans(spec) }
		s, err := Open(b.Context(), Options{DSN: pgtest.DSN(b), Kinds: []KindSpec{kind}, Envelope: c.kms})
		if err != nil {
			b.Fatal(err)
		}
		spec := fmt.Appendf(nil, manifest, c.kind)
		n := 0
		b.Run(c.name+"/create", func(b *testing.B) {
			for b.Loop() {
				n++
				if _, err := s.Create(b.Context(), Document{Kind: "A", ID: fmt.Sprint(n), Spec: spec}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/status", func(b *testing.B) {
			for b.Loop() {
				n++
				_, _, err := s.Update(b.Context(), "A", "1", 0, func(d *Document) error {
					d.Status = fmt.Appendf(nil, `{"n":%d}`, n)
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(c.name+"/get", func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Get(b.Context(), "A", "1"); err != nil {
					b.Fatal(err)
				}
			}
		})
		s.Close()
	}
}
