package adapter

import (
	"slices"
	"testing"
	"time"
)

// A slot in which work may begin is not let go: the answer that closes it may be
// late, or lost, and another replica would begin meanwhile.
func TestASlotIsClosedBeforeItIsLetGo(t *testing.T) {
	now := time.Now()
	s := &share{lease: time.Minute}
	keeps := func(what string, want ...int) {
		t.Helper()
		if got := s.keep(); !slices.Equal(got, want) {
			t.Errorf("%s it keeps %v, want %v", what, got, want)
		}
	}
	keeps("at first")
	s.renewed(4, []int{0, 1, 3}, now)
	keeps("with nothing under way", 0, 1, 3)
	id := "a"
	for slotOf(id, 4) != 3 {
		id += "a"
	}
	_, end, ok := s.begin(t.Context(), id, now)
	if !ok {
		t.Fatal("it may not begin")
	}
	s.renewed(4, []int{0}, now) // the others are to be another's
	keeps("while a run is under way", 0, 3)
	if _, _, ok := s.begin(t.Context(), id, now); ok {
		t.Error("more is begun")
	}
	end()
	keeps("when it has ended", 0)
	if s.lapse(now); s.lapse(now.Add(time.Hour)) {
		keeps("after the lease")
	} else {
		t.Error("it does not lapse")
	}
}
