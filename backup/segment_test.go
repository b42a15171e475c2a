package backup

import (
	"errors"
	"testing"
	"time"
)

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
