package bus

import (
	"testing"
	"time"

	"atoll.dev/internal/quick"
	"atoll.dev/pki"
)

// No event is lost while the region's root is replaced under a broker, a service and an agent that run and
// connect again all the time. Their CA file is the one of the beginning, as long as they run.
func TestI7ARotationOfTheRootLosesNoEvent(t *testing.T) {
	quick.LeavesOut(t, "waits for certificates that expire")
	e := newTestRegion(t, 2*time.Second)
	x := newExchange(t, e)
	deliverFor := func(d time.Duration) {
		for begun := time.Now(); time.Since(begun) < d; {
			x.deliver(t)
		}
	}
	first := e.region.Certificate()
	for name, step := range []func(pki.RotationOptions) error{e.region.PrepareRoot, e.region.CompleteRoot,
		e.region.RetireRoot} {
		for begun := time.Now(); ; deliverFor(100 * time.Millisecond) { // refused while it would cut somebody off
			err := step(pki.RotationOptions{})
			if err == nil {
				break
			}
			if time.Since(begun) > hangLimit {
				t.Fatalf("step %d: %v", name, err)
			}
		}
		deliverFor(3 * time.Second)
	}
	if e.region.Certificate().Equal(first) {
		t.Error("the root is the same")
	}
	t.Logf("%d events", x.sent)
}
