package idle

import (
	"testing"
	"time"
)

func TestTimersOfASecondEndTogether(t *testing.T) {
	c := Clock{}
	for _, test := range []struct{ now, d, want time.Duration }{
		{0, time.Second, time.Second},
		{300 * time.Millisecond, time.Second, 700 * time.Millisecond},
		{999 * time.Millisecond, 1250 * time.Millisecond, 1001 * time.Millisecond},
		{5 * time.Second, 1250 * time.Millisecond, time.Second},
		{100 * time.Millisecond, 10 * time.Second, 9900 * time.Millisecond},
		{300 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond}, // a shorter one is exact
	} {
		if got := c.align(test.now, test.d); got != test.want {
			t.Errorf("a timer of %v that starts at %v ends after %v, want %v", test.d, test.now, got, test.want)
		}
	}
}
