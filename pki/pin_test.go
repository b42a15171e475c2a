package pki

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A pin decides which roots a CA file has, also after a rotation of the root: a file without any of them is fetched
// again, and roots that were not named leave it.
func TestAPinOfOtherRootsReplacesTheCAFile(t *testing.T) {
	ca, first, next := rotated(t, RootPrepared)
	url := serveCA(t, ca)
	one, other, both := encodeCert(first.Raw), encodeCert(next.Raw), ca.CertPEM()
	const nowhere = "https://127.0.0.1:0"
	unknown := Fingerprint(makeRoot(t).cert)
	for name, c := range map[string]struct {
		file     []byte // nil: there is none
		pin, url string
		want     []byte // nil: that of before
		wantErr  []string
	}{
		"the file of the pin":                {one, Fingerprint(first), nowhere, one, nil},
		"the file of one of two pins":        {one, ca.Pin(), nowhere, one, nil},
		"no file, and both pins":             {nil, ca.Pin(), url, both, nil},
		"no file, and the pin of one":        {nil, Fingerprint(next), url, other, nil},
		"the file of another root":           {one, Fingerprint(next), url, other, nil},
		"the file of both, and an old pin":   {both, Fingerprint(first), nowhere, one, nil},
		"the file of both, and a new pin":    {both, Fingerprint(next), nowhere, other, nil},
		"the file and the pin of others":     {one, unknown, url, one, []string{"CA_FILE", "is not the one", unknown}},
		"the file of another root, no https": {one, unknown, "http://localhost", one, []string{"CA_FILE", "not https"}},
		"a damaged one":                      {[]byte("x"), unknown, url, []byte("x"), []string{"CA_FILE", "remove the"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "ca.pem")
			if c.file != nil {
				writeFile(t, file, c.file)
			}
			err := PinCA(t.Context(), c.url, c.pin, file)
			if (err == nil) != (c.wantErr == nil) {
				t.Fatal(err)
			}
			isMissing := func(text string) bool {
				return !strings.Contains(err.Error(), strings.ReplaceAll(text, "CA_FILE", file))
			}
			if i := slices.IndexFunc(c.wantErr, isMissing); i >= 0 {
				t.Errorf("the error does not say %q: %v", c.wantErr[i], err)
			}
			if have := readFile(t, file); !bytes.Equal(have, c.want) {
				t.Errorf("the file has\n%s", have)
			}
		})
	}
}
