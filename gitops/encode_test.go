package gitops

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestTheEncoderWritesWhatTheLibraryWrites compares the bytes of documents of every form.
func TestTheEncoderWritesWhatTheLibraryWrites(t *testing.T) {
	text := rapid.OneOf(
		rapid.SampledFrom([]string{"", "a", "no", "Yes", "NULL", "~", "mc2", "mc10", "1.5", "0x1f", "1e3",
			"2026-11-20", "a: b", "a #b", "- a", "https://example.com/a?b", "{{ .path.basename }}", "$values/x", "it's",
			"a\nb", "\ttab", "é", " a ", "\u0085", "a\u2028b", "12:30", "=", "<<", "!x", "&a", "*a", "%a",
			"@a", "`a", "[a", "a,b", "|",
			">", "\"", "\\", "---",
			"atoll.dev/region", "aB_c-d.e/f", "true", "off", "y"}),
		rapid.StringMatching(`[a-zA-Z0-9._/-]{0,12}`), rapid.String(), rapid.StringMatching(`[a-z]{90,130}`))
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		scalars := []*rapid.Generator[any]{
			text.AsAny(), text.AsAny(), rapid.Bool().AsAny(), rapid.Int64().AsAny(), rapid.Float64().AsAny(),
			rapid.Uint64().AsAny(), rapid.Just[any](nil),
		}
		if depth == 0 {
			return rapid.OneOf(scalars...)
		}
		return rapid.OneOf(append(scalars, rapid.MapOfN(text, value(depth-1), 0, 5).AsAny(),
			rapid.SliceOfN(value(depth-1), 0, 4).AsAny())...)
	}
	var shared encoder // its caches stay between documents
	rapid.Check(t, func(t *rapid.T) {
		document, err := json.Marshal(rapid.MapOfN(text, value(3), 0, 6).Draw(t, "document"))
		if err != nil {
			t.Fatal(err)
		}
		fast, err := shared.yamlOf(document)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := decodeJSON(document)
		if err != nil {
			t.Fatal(err)
		}
		slow, err := slowYAML(fmt.Appendf(nil, "# %s\n", marker), plain)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(slow), string(fast)); diff != "" {
			t.Fatalf("%s is (-library +encoder):\n%s", document, diff)
		}
	})
}

// TestTheEncoderWritesRenderedDocumentsItself: the library, which is five times slower, writes none of the examples.
func TestTheEncoderWritesRenderedDocumentsItself(t *testing.T) {
	var e encoder
	for _, r := range example(t).Regions() {
		regional := target{region: r, typ: regionalCluster, id: r.regionalID(), dir: r.Dir(), settings: r.Settings}
		for _, document := range []any{regional.rootApplication(), regional.applicationSet(), Declare(r),
			dataForType(r.Settings.Values, regionalCluster)} {
			encoded, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			plain, err := decodeJSON(encoded)
			if err != nil {
				t.Fatal(err)
			}
			w := yamlWriter{encoder: &e}
			if w.writeDocument(plain); w.isUnknown {
				t.Errorf("the encoder cannot write %s", encoded)
			}
		}
	}
}
