package status

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/cluster"
	"atoll.dev/internal/jsonvalue"
)

// digestOfEarlierReleases is how earlier releases computed the digests that stored reports have.
func digestOfEarlierReleases(r Report) []byte {
	type content struct {
		Adapter    cluster.Adapter
		Generation int32
		At         int64
		Conditions []Reported
		Data       any
		Metadata   any
	}
	s := content{Adapter: r.Adapter, Generation: r.Generation, At: r.ObservedAt.UnixMicro(),
		Conditions: byType(r.Conditions)}
	for i := range s.Conditions {
		s.Conditions[i].LastTransitionTime = time.Time{}
	}
	s.Data, _ = jsonvalue.Decode(r.Data)
	s.Metadata, _ = jsonvalue.Decode(r.Metadata)
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(text)
	return sum[:8]
}

// A digest is the same as that of earlier releases, whose digests are stored: otherwise a repeated report would be
// stored again after an upgrade.
func TestDigestsAreThoseOfEarlierReleases(t *testing.T) {
	texts := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "a<b>&c", "\u2028", "\"\\", "é", "\xff", "\x00"}))
	data := rapid.SampledFrom([]string{"", " ", "null", "{}", ` { "b" : 1.50 , "a" : [ 1e5, null, {"z":"<"} ], "b" : 2 } `,
		`{"n":12345678901234567890}`})
	given := rapid.Custom(func(t *rapid.T) Text {
		if rapid.Bool().Draw(t, "absent") {
			return Text{}
		}
		return Given(texts.Draw(t, "text"))
	})
	rapid.Check(t, func(t *rapid.T) {
		r := Report{Adapter: cluster.Adapter(texts.Draw(t, "adapter")), Generation: rapid.Int32().Draw(t, "generation"),
			ObservedAt: time.UnixMicro(rapid.Int64Range(-1e15, 1e16).Draw(t, "at")),
			Data:       json.RawMessage(data.Draw(t, "data")), Metadata: json.RawMessage(data.Draw(t, "metadata"))}
		for range rapid.IntRange(0, 4).Draw(t, "conditions") {
			r.Conditions = append(r.Conditions, Reported{Type: texts.Draw(t, "type"), Status: Value(texts.Draw(t, "status")),
				Reason: given.Draw(t, "reason"), Message: given.Draw(t, "message"), LastTransitionTime: time.Now()})
		}
		if got, want := r.digest(), digestOfEarlierReleases(r); !bytes.Equal(got, want) {
			t.Fatalf("%+v: digest %x, want %x", r, got, want)
		}
	})
}
