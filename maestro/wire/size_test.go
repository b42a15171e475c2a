package wire

import (
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"atoll.dev/maestro/bundle"
	"atoll.dev/store"
)

// TestTheSizeOfABundleIsThatOfItsEvent: a bundle is refused exactly when its event, encoded as it is sent, exceeds the
// limit less the headroom, however its data and its metadata are written.
func TestTheSizeOfABundleIsThatOfItsEvent(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value, err := json.Marshal(
			rapid.SliceOfN(rapid.SampledFrom([]string{"a", "<", ">", "&", "\u2028", "é", "€", "\n"}), 0, 200).
				Draw(rt, "value"),
		)
		if err != nil {
			rt.Fatal(err)
		}
		text := string(value)
		if rapid.Bool().Draw(rt, "unescaped") { // as other encoders write it
			text = strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `\u2028`, "\u2028").Replace(text)
		}
		metadata := rapid.SampledFrom([]string{"", "{}", `{"labels":{"a":"b"}}`, `{"name":"a much longer name than the id"}`,
			`{ "a\u2028<b": 1, "c d>":"< >" }`, `{"z":1,"name":"w"}`}).Draw(rt, "metadata")
		space := strings.Repeat(" ", rapid.IntRange(0, 50).Draw(rt, "space"))
		r := bundle.Spec{
			EventID:  "e",
			Source:   "s",
			ID:       "w1",
			Consumer: "mc1",
			Metadata: json.RawMessage(metadata),
			Data:     json.RawMessage(`{` + space + `"manifests": ` + text + `}`),
		}
		spec, err := bundle.Marshal(r)
		if err != nil {
			rt.Fatal(err)
		}
		m, err := EncodeSpec(store.Document{ID: "w1", Scope: "mc1", Generation: 1, Spec: spec}, "maestro")
		if err != nil {
			rt.Fatal(err)
		}
		size, err := m.Size("topic")
		if err != nil {
			rt.Fatal(err)
		}
		if err := CheckSize(r, "maestro", "topic", size+sizeHeadroom); err != nil {
			rt.Errorf("an event of %d bytes with headroom does not fit its own size: %v", size, err)
		}
		if CheckSize(r, "maestro", "topic", size+sizeHeadroom-1) == nil {
			rt.Errorf("an event of %d bytes with headroom fits one byte less", size)
		}
	})
}
