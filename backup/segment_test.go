package backup

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestADamagedLogIsAnError(t *testing.T) {
	for what, log := range map[string][]byte{
		"a size that is cut short": {0x80},
		"a change of 1 GiB":        binary.AppendUvarint(nil, 1<<30),
		"a change cut short":       {5, 1},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, log, 0o600); err != nil {
			t.Fatal(err)
		}
		err := Contents{}.addLog(path, 0)
		if !errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), "%!") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestASegmentFollowsOnlyTheOneBeforeIt(t *testing.T) {
	from := Sample{Time: time.Unix(10, 0), Revision: 5}
	good := segment{Number: 2, Previous: []byte("sum"), From: from, To: Sample{Time: time.Unix(11, 0), Revision: 6}}
	if err := good.checkFollows(2, from, []byte("sum")); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*segment){
		"number":   func(s *segment) { s.Number = 3 },
		"previous": func(s *segment) { s.Previous = []byte("other") },
		"revision": func(s *segment) { s.From.Revision = 6 },
		"time":     func(s *segment) { s.To.Time = time.Unix(9, 0) },
	} {
		s := good
		change(&s)
		if err := s.checkFollows(2, from, []byte("sum")); !errors.Is(err, ErrCorrupt) {
			t.Errorf("another %s: %v", what, err)
		}
	}
}
