package work

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestSecretSpansAreWhatASecretHolds(t *testing.T) {
	for doc, want := range map[string][]string{
		`{"apiVersion":"v1","kind":"Secret","data":{"a":"x"},"stringData":{"b":"y"},"type":"Opaque"}`: {`{"a":"x"}`,
			`{"b":"y"}`},
		`{"data": {"a":"x"} , "kind":"secret","apiVersion":"v1"}`:                                    {`{"a":"x"}`},
		`{"data":{"a":"x"},"kind":"\u0053ecret","apiVersion":"v1"}`:                                  {`{"a":"x"}`},
		`{"data":"x","kind":"Secret","apiVersion":"v1"}`:                                             {`"x"`},
		`{"data":null,"kind":"Secret","apiVersion":"v1"}`:                                            nil,
		`{"data":{"a":"x"},"kind":"ConfigMap","apiVersion":"v1","note":"Secret"}`:                    nil,
		`{"data":{"a":"x"},"kind":"Secret","apiVersion":"example.com/v1"}`:                           nil,
		`{"kind":"Secret","apiVersion":"v1","metadata":{"annotations":{"` + LastApplied + `":"z"}}}`: {`"z"`},
		`{"kind":"Secret","apiVersion":"v1","metadata":{"annotations":{"other":"z"}}}`:               nil,
		`[{"x":[{"kind":"Secret","apiVersion":"v1","data":{"a":"x"}}]},1,"secret",true,null]`:        {`{"a":"x"}`},
		`{"kind":"Secret","apiVersion":"v1","data":{"kind":"Secret","apiVersion":"v1","data":"in"}}`: {
			`{"kind":"Secret","apiVersion":"v1","data":"in"}`},
		`{"metadata":{"x":{"kind":"Secret","apiVersion":"v1","data":"in"}}}`: {`"in"`},
		`{"items":[{"data":{"a":"x"}},{"kind":"Secret","stringData":{"b":"y"}},7],` +
			`"kind":"SecretList","apiVersion":"v1"}`: {
			`{"a":"x"}`, `{"b":"y"}`},
		`{"kind":"secretlist","apiVersion":"v1",` +
			`"items":[{"metadata":{"annotations":{"` + LastApplied + `":"z"}},"data":"x"}]}`: {
			`"z"`, `"x"`},
		`{"kind":"SecretList","apiVersion":"example.com/v1","items":[{"data":"x"}]}`: nil,
		`{"kind":"ConfigMapList","apiVersion":"v1","items":[{"data":"secret"}]}`:     nil,
		`{"kind":"SecretList","apiVersion":"v1","data":"x","items":{"data":"x"}}`:    nil,
		`{"kind":"List","apiVersion":"v1",` +
			`"items":[{"kind":"Secret","data":"x"},{"kind":"SecretList","items":[{"data":"y"}]}]}`: {
			`"x"`, `"y"`},
	} {
		var got []string
		for _, s := range SecretSpans([]byte(doc)) {
			got = append(got, doc[s[0]:s[1]])
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", doc, got, want)
		}
		if masked := maskedValues(t, doc); masked < len(want) || masked > 0 && len(want) == 0 {
			t.Errorf("%s: MaskSecrets masks %d values, want %d", doc, masked, len(want))
		}
	}
}

// maskedValues returns how many values MaskSecrets masks in the document.
func maskedValues(t *testing.T, doc string) int {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(doc), &v); err != nil {
		t.Fatal(err)
	}
	MaskSecrets(v)
	shown, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(shown), `"`+Mask+`"`)
}

func BenchmarkSecretSpansWithoutSecrets(b *testing.B) {
	doc := []byte(`{"manifests":[` + strings.Repeat(`{"kind":"ConfigMap","data":{"key":"value of a key"}},`, 100) + `{}]}`)
	b.SetBytes(int64(len(doc)))
	for b.Loop() {
		SecretSpans(doc)
	}
}
