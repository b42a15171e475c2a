package delivery

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestEverythingWantedArrives holds I6 for the deciding half of delivery:
// whatever is dropped, duplicated, reordered or answered late, and however
// often the broker, the server or the agent restarts, each agent ends with
// what is wanted of it, deletions included. The window is never exceeded, and
// no order overtakes an earlier one for the same work.
func TestEverythingWantedArrives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"change":     w.change,
			"delete":     w.delete,
			"publish":    w.publish,
			"finish":     w.finish,
			"deliver":    w.deliver,
			"drop":       w.drop,
			"answer":     w.answer,
			"disconnect": func(*rapid.T) { w.m.Disconnect() },
			"connect":    func(*rapid.T) { w.m.Connect() },
			"restart":    func(*rapid.T) { w.restart() },
			"wipe":       w.wipe,
			"resync":     w.resync,
			"rejoin":     w.rejoin,
			"wait": func(rt *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.IntRange(1, 5000).Draw(rt, "ms")) * time.Millisecond)
			},
			"": w.check,
		})
		w.heal()
	})
}

const (
	propConsumers = 3
	propIDs       = 4
	propWindow    = 2
)

type key struct{ consumer, id string }

// world is a server's store and ledger, a network, and agents.
type world struct {
	rt       *rapid.T
	m        *Machine
	now      time.Time
	wanted   map[key]Work  // the store
	acked    map[key]int64 // the ledger
	attempts map[key]int   // also
	inflight []Work        // Next returned it, Sent is to come
	network  []Work        // published, not delivered
	agents   map[key]Work
	status   []Work // agents' acknowledgements on their way; Deleting: it is gone
}

func newWorld(rt *rapid.T) *world {
	w := &world{rt: rt, now: time.Unix(0, 0), wanted: map[key]Work{}, acked: map[key]int64{}, attempts: map[key]int{}, agents: map[key]Work{}}
	w.restart()
	return w
}

func (w *world) drawKey(rt *rapid.T) key {
	return key{fmt.Sprintf("mc%d", rapid.IntRange(1, propConsumers).Draw(rt, "consumer")), fmt.Sprintf("w%d", rapid.IntRange(1, propIDs).Draw(rt, "id"))}
}

func (w *world) change(rt *rapid.T) {
	k := w.drawKey(rt)
	old, exists := w.wanted[k]
	if old.Deleting {
		return // refused: under deletion
	}
	next := Work{Consumer: k.consumer, ID: k.id, Generation: old.Generation + 1}
	if !exists {
		next.Generation = 1
		delete(w.acked, k)
	}
	w.wanted[k] = next
	w.m.Want(next)
}

func (w *world) delete(rt *rapid.T) {
	k := w.drawKey(rt)
	if old, exists := w.wanted[k]; exists {
		old.Deleting = true
		w.wanted[k] = old
		w.m.Want(old)
	}
}

func (w *world) publish(*rapid.T) {
	for _, s := range w.m.Next(w.now, 3) {
		w.attempts[key{s.Consumer, s.ID}] = s.Attempt
		for _, other := range w.inflight {
			if other.ID == s.ID && other.Consumer == s.Consumer && other.supersedes(s.Work) {
				w.rt.Fatalf("%v is sent while the later %v is in flight", s, other)
			}
		}
		w.inflight = append(w.inflight, s.Work)
	}
}

func (w *world) finish(rt *rapid.T) {
	if len(w.inflight) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.inflight)-1).Draw(rt, "which")
	work := w.inflight[i]
	w.inflight = append(w.inflight[:i:i], w.inflight[i+1:]...)
	if rapid.Bool().Draw(rt, "published") {
		w.network = append(w.network, work)
		w.m.Sent(w.now, work, nil)
		return
	}
	if rapid.Bool().Draw(rt, "answer lost") {
		w.network = append(w.network, work)
	}
	w.m.Sent(w.now, work, errors.New("publish failed"))
}

// deliver takes any message, so the network reorders; it may leave a copy.
func (w *world) deliver(rt *rapid.T) {
	if len(w.network) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.network)-1).Draw(rt, "which")
	work := w.network[i]
	if !rapid.Bool().Draw(rt, "duplicated") {
		w.network = append(w.network[:i:i], w.network[i+1:]...)
	}
	w.apply(work)
}

func (w *world) apply(work Work) {
	k := key{work.Consumer, work.ID}
	have, has := w.agents[k]
	if work.Deleting {
		delete(w.agents, k)
		w.status = append(w.status, work)
		return
	}
	if has && work.Generation < have.Generation {
		return
	}
	// An agent that has deleted a work is told about it no more: the store
	// refuses a new one of that id until the deletion is acknowledged, and a
	// new one starts at generation 1. A stale copy of the old one may come
	// late; resync mends that.
	w.agents[k] = work
	w.status = append(w.status, work)
}

func (w *world) drop(rt *rapid.T) {
	if len(w.network) > 0 {
		i := rapid.IntRange(0, len(w.network)-1).Draw(rt, "which")
		w.network = append(w.network[:i:i], w.network[i+1:]...)
	}
}

func (w *world) answer(rt *rapid.T) {
	if len(w.status) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.status)-1).Draw(rt, "which")
	s := w.status[i]
	w.status = append(w.status[:i:i], w.status[i+1:]...)
	if rapid.Bool().Draw(rt, "lost") {
		return
	}
	w.ingest(s)
}

func (w *world) ingest(s Work) {
	k := key{s.Consumer, s.ID}
	w.m.Heard(s.Consumer)
	want, exists := w.wanted[k]
	switch {
	case !exists:
	case s.Deleting && want.Deleting:
		delete(w.wanted, k)
		delete(w.acked, k)
		delete(w.attempts, k)
		w.m.Forget(s.Consumer, s.ID)
		// The model gives ids a second life; what is left of the first must
		// not be taken for it. On the wire, the sequence of a status and the
		// agent's resync see to that.
		w.network = without(w.network, k)
		w.status = without(w.status, k)
		w.inflight = without(w.inflight, k)
	case !s.Deleting:
		w.acked[k] = max(w.acked[k], s.Generation)
		w.m.Acknowledge(s.Consumer, s.ID, s.Generation)
	}
}

func without(works []Work, k key) []Work {
	var rest []Work
	for _, o := range works {
		if o.ID != k.id || o.Consumer != k.consumer {
			rest = append(rest, o)
		}
	}
	return rest
}

// restart is a server that comes back: it knows the store and the ledger.
func (w *world) restart() {
	w.m = New(Config{Window: propWindow, Burst: 2, Retries: 2, Probes: 1, DeleteRate: 2})
	w.m.Connect()
	w.inflight = nil
	for k, want := range w.wanted {
		if want.Deleting || w.acked[k] < want.Generation {
			w.m.Recover(w.now, want, w.attempts[k])
		}
	}
}

// wipe is an agent that lost its store; it says so when it is back.
func (w *world) wipe(rt *rapid.T) {
	consumer := w.drawKey(rt).consumer
	for k := range w.agents {
		if k.consumer == consumer {
			delete(w.agents, k)
		}
	}
	w.network = nil
	w.status = nil
	w.resyncConsumer(consumer)
}

// rejoin is an agent whose stream ended and comes again to the same server:
// its lane begins anew from the ledger, while answers to what was sent before
// may still come. What was on its way is lost.
func (w *world) rejoin(rt *rapid.T) {
	consumer := w.drawKey(rt).consumer
	w.m.Drop(consumer)
	if works, ahead := w.m.Lane(consumer); works != 0 || ahead != 0 {
		rt.Fatalf("%d works, %d ahead after a drop", works, ahead)
	}
	of := func(o Work) bool { return o.Consumer == consumer }
	w.network = slices.DeleteFunc(w.network, of)
	w.status = slices.DeleteFunc(w.status, of)
	for k, want := range w.wanted {
		if k.consumer == consumer && (want.Deleting || w.acked[k] < want.Generation) {
			w.m.Want(want)
		}
	}
}

func (w *world) resync(rt *rapid.T) { w.resyncConsumer(w.drawKey(rt).consumer) }

func (w *world) resyncConsumer(consumer string) {
	for k, want := range w.wanted {
		if k.consumer != consumer {
			continue
		}
		have, has := w.agents[k]
		if want.Deleting || !has || have.Generation < want.Generation {
			w.acked[k] = min(w.acked[k], have.Generation)
			w.m.Resend(want)
		} else {
			w.m.Received(w.now, consumer, k.id, have.Generation)
		}
	}
}

func (w *world) check(*rapid.T) {
	for n := 1; n <= propConsumers; n++ {
		consumer := fmt.Sprintf("mc%d", n)
		works, ahead := w.m.Lane(consumer)
		if ahead > 2*propWindow+propIDs || ahead > works { // changes and deletions have a window each
			w.rt.Fatalf("%s: %d works ahead of %d", consumer, ahead, works)
		}
	}
}

// heal lets everything arrive, and time pass, until nothing is pending.
func (w *world) heal() {
	w.m.Connect()
	for range 2000 {
		for _, work := range w.inflight {
			w.network = append(w.network, work)
			w.m.Sent(w.now, work, nil)
		}
		w.inflight = nil
		for len(w.network) > 0 {
			work := w.network[0]
			w.network = w.network[1:]
			w.apply(work)
		}
		for len(w.status) > 0 {
			s := w.status[0]
			w.status = w.status[1:]
			w.ingest(s)
		}
		w.publish(nil)
		if len(w.inflight) > 0 {
			continue
		}
		at, waits := w.m.Wake()
		if !waits {
			break
		}
		w.now = at
	}
	if works, _ := w.m.Pending(); works > 0 {
		w.rt.Fatalf("%d works are pending for ever", works)
	}
	for k, want := range w.wanted {
		if have := w.agents[k]; have.Generation != want.Generation {
			w.rt.Fatalf("%v has generation %d instead of %d", k, have.Generation, want.Generation)
		}
		if want.Deleting {
			w.rt.Fatalf("%v is still to be deleted", k)
		}
	}
	for k := range w.agents {
		if _, exists := w.wanted[k]; !exists {
			w.rt.Fatalf("%v is left on the agent", k)
		}
	}
}
