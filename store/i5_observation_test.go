package store_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
)

// The answer to the statement of a group is lost in each way: the caller gets success, and the observation is stored.
func TestI5TheOutcomeOfAnUnansweredObservationIsDetermined(t *testing.T) {
	for _, how := range []fault{lostRequest, lostReply, lostBoth} {
		t.Run(fmt.Sprint(how), func(t *testing.T) {
			var b breaker
			s := open(t, pgtest.DSN(t), b.use, func(o *store.Options) {
				o.Kinds = []store.KindSpec{{Kind: "Bundle", History: true,
					Render: func(d store.Document) ([]byte, error) { return fmt.Appendf(nil, "head|%s", d.Status), nil },
					Head:   func(wire []byte) int { return bytes.IndexByte(wire, '|') },
					Tail:   func(d store.Document) ([]byte, error) { return fmt.Appendf(nil, "|%s", d.Status), nil },
					Compare: func(before, after store.Document) store.Difference {
						if same, err := store.SameJSON(before.Status, after.Status); err == nil && same {
							return store.Equal
						}
						return store.ObservedLater
					},
					Observations: &store.ObservationForm{
						Of:     func(_, after store.Document, _ []byte) []byte { return after.Status },
						Status: func(d *store.Document, short []byte) error { d.Status = bytes.Clone(short); return nil },
						Tail:   func(_, short []byte) ([]byte, error) { return append([]byte("|"), short...), nil },
					},
				}}
			})
			t.Cleanup(leaked.close)
			must[store.Document](t)(s.Create(t.Context(), doc("Bundle", "x", "x", `{}`)))
			b.arm("marker", how)
			_, changed, err := s.Update(t.Context(), "Bundle", "x", 0, func(d *store.Document) error {
				d.Status = json.RawMessage(`{"at":"marker"}`)
				return nil
			})
			if err != nil || changed {
				t.Fatal(changed, err)
			}
			<-b.wasHit()
			if d := must[store.Document](t)(s.Get(t.Context(), "Bundle", "x")); !strings.Contains(string(d.Status), "marker") {
				t.Fatalf("%s", d.Status)
			}
		})
	}
}
