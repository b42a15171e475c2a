package agent

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"atoll.dev/api/work"
)

// An Atoll server may miss the first digest and the list after it. The agent then treats it as a
// server without digests and still sends digests: otherwise the server would not notice a loss of
// its database.
func TestI6AnUnansweredRequestIsRepeated(t *testing.T) {
	c := newCore(coreConfig{consumer: "mc1", sendWindow: 1, resync: resync{listAfter: 2 * time.Second,
		every: time.Minute}})
	var sent []string
	now := noon
	step := func(ev event) {
		for _, e := range c.step(ev, now) {
			switch e := e.(type) {
			case effPublish:
				sent = append(sent, fmt.Sprint(now.Sub(noon), " ", e.kind))
			case effResync:
				sent = append(sent, fmt.Sprint(now.Sub(noon), " list"))
			}
		}
	}
	pass := func(d time.Duration) {
		for end := now.Add(d); !c.nextWake().IsZero() && !c.nextWake().After(end); {
			now = c.nextWake()
			step(evTick{})
		}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if !slices.Equal(sent, want) {
			t.Errorf("%s: the agent sent %q, want %q", what, sent, want)
		}
		sent = nil
	}
	digest := " " + work.AgentDigest
	step(evConnected{})
	pass(150 * time.Second)
	expect("without an answer", "0s"+digest, "2s list", "1m0s"+digest, "2m0s"+digest)
	step(evDigest{work.DigestAnswer{Same: true}})
	pass(150 * time.Second)
	expect("after an answer, and without more", "3m0s"+digest, "3m2s"+digest, "3m6s"+digest, "3m6s list",
		"3m14s"+digest, "3m30s"+digest, "4m2s"+digest)
	step(evDisconnected{})
	pass(time.Hour)
	expect("without a connection")
}
