package delivery

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"atoll.dev/api/work"

	"pgregory.net/rapid"
)

// TestI6I9EverythingWantedArrives holds I6 and I9 for the deciding half of
// delivery, with the intervals that production has: whatever is dropped,
// duplicated, reordered or answered late, and however often the broker, the
// server or the agent restarts, each agent ends with what is wanted of it, and
// with nothing that was deleted. The window is never exceeded, no Send overtakes
// an earlier one of its work, and a work never comes back to an agent that has
// confirmed its deletion.
func TestI6I9EverythingWantedArrives(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		rt.Repeat(map[string]func(*rapid.T){
			"change":      w.change,
			"delete":      w.delete,
			"hand out":    w.handOut,
			"publish":     w.publish,
			"finish":      w.finish,
			"deliver":     w.deliver,
			"drop":        w.drop,
			"answer":      w.answer,
			"acknowledge": w.acknowledgeElsewhere,
			"disconnect":  func(*rapid.T) { w.m.Disconnect() },
			"connect":     func(*rapid.T) { w.m.Connect() },
			"restart":     func(*rapid.T) { w.restart() },
			"wipe":        w.wipe,
			"resync":      w.resync,
			"rejoin":      w.rejoin,
			"wait": func(rt *rapid.T) {
				w.pass(time.Duration(rapid.IntRange(1, 5000).Draw(rt, "ms")) * time.Millisecond)
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

	// What production has (agent/deleted.go, agent/resync.go).
	deletedMemory = 10 * time.Minute
	compareEvery  = 5 * time.Minute
	// messageLife is longer than a message is under way: a server gives one up
	// after seconds, and brokers keep none for clients that are not connected.
	messageLife = 5 * time.Minute
)

type key struct {
	consumer work.Consumer
	id       work.ID
}

// flight is a Send between Next and Sent.
type flight struct {
	Send
	published bool // it has left
}

// message is a work on its way to its agent.
type message struct {
	Work
	at time.Time
}

// world is a server's store and ledger, a network, and agents.
type world struct {
	rt       *rapid.T
	m        *Machine
	now      time.Time
	wanted   map[key]Work  // the store
	last     map[key]int64 // the last generation of an id, which goes on after a deletion
	acked    map[key]int64 // the ledger
	attempts map[key]int   // also
	inflight []flight
	stale    []flight  // of machines that were replaced: their messages may leave yet
	network  []message // published, not delivered
	agents   map[key]Work
	deleted  map[key]message // works that agents deleted, and when
	status   []Work          // agents' acknowledgements on their way; Deleting: it is gone
}

func newWorld(rt *rapid.T) *world {
	w := &world{
		rt: rt, now: time.Unix(
			0, 0), wanted: map[key]Work{}, last: map[key]int64{}, acked: map[key]int64{}, attempts: map[key]int{},
		agents: map[key]Work{}, deleted: map[key]message{},
	}
	w.restart()
	return w
}

func (w *world) drawKey(rt *rapid.T) key {
	return key{work.Consumer(fmt.Sprintf("mc%d", rapid.IntRange(1, propConsumers).Draw(rt, "consumer"))),
		work.ID(fmt.Sprintf("w%d", rapid.IntRange(1, propIDs).Draw(rt, "id")))}
}

// pass lets time pass. What was sent long ago does not arrive any more, nor does
// what a replaced server was about to send.
func (w *world) pass(d time.Duration) {
	w.now = w.now.Add(d)
	w.network = slices.DeleteFunc(w.network, func(m message) bool { return w.now.Sub(m.at) > messageLife })
	if d > messageLife {
		w.stale = nil
	}
}

func (w *world) change(rt *rapid.T) {
	k := w.drawKey(rt)
	old, exists := w.wanted[k]
	if old.Deleting {
		return // refused: under deletion
	}
	w.last[k]++
	if !exists {
		delete(w.acked, k)
	}
	next := Work{Consumer: k.consumer, ID: k.id, Generation: w.last[k]}
	w.wanted[k] = next
	w.m.Add(next)
}

func (w *world) delete(rt *rapid.T) {
	k := w.drawKey(rt)
	if old, exists := w.wanted[k]; exists {
		old.Deleting = true
		w.wanted[k] = old
		w.m.Add(old)
	}
}

// handOut asks the machine for what to send now.
func (w *world) handOut(*rapid.T) {
	for _, s := range w.m.Next(w.now, 3) {
		w.attempts[key{s.Consumer, s.ID}] = s.Attempt
		for _, other := range w.inflight {
			if other.ID == s.ID && other.Consumer == s.Consumer {
				w.rt.Fatalf("%v is handed out while %v is in flight", s, other.Send)
			}
		}
		w.inflight = append(w.inflight, flight{Send: s})
	}
}

// publish looks once more and gives a message to the network, or does not.
func (w *world) publish(rt *rapid.T) {
	if len(w.inflight) == 0 {
		return
	}
	w.publishAt(rapid.IntRange(0, len(w.inflight)-1).Draw(rt, "which"))
}

func (w *world) publishAt(i int) {
	f := &w.inflight[i]
	if f.published {
		return
	}
	if !w.m.IsCurrent(f.Send, f.Work) {
		w.m.EndSend(w.now, f.Send, f.Work, NotSent)
		w.inflight = slices.Delete(w.inflight, i, i+1)
		return
	}
	f.published = true
	w.network = append(w.network, message{f.Work, w.now})
}

func (w *world) finish(rt *rapid.T) {
	if len(w.inflight) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.inflight)-1).Draw(rt, "which")
	f := w.inflight[i]
	w.inflight = slices.Delete(w.inflight, i, i+1)
	switch {
	case !f.published:
		w.m.EndSend(w.now, f.Send, f.Work, NotSent)
	case rapid.Bool().Draw(rt, "acknowledged"):
		w.m.EndSend(w.now, f.Send, f.Work, Published)
	default:
		w.m.EndSend(w.now, f.Send, f.Work, Lost)
	}
}

// deliver takes any message, so the network reorders; it may leave a copy. One
// of a server that was replaced may leave as late.
func (w *world) deliver(rt *rapid.T) {
	if len(w.stale) > 0 && rapid.Bool().Draw(rt, "of a replaced server") {
		w.network = append(w.network, message{w.stale[0].Work, w.now})
		w.stale = w.stale[1:]
	}
	if len(w.network) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.network)-1).Draw(rt, "which")
	m := w.network[i]
	if !rapid.Bool().Draw(rt, "duplicated") {
		w.network = slices.Delete(w.network, i, i+1)
	}
	w.apply(m.Work)
}

// apply is an agent that takes a message.
func (w *world) apply(work Work) {
	k := key{work.Consumer, work.ID}
	have, has := w.agents[k]
	gone, deleted := w.deleted[k]
	deleted = deleted && w.now.Sub(gone.at) <= deletedMemory
	switch {
	case has && work.Generation < have.Generation:
	case work.Deleting:
		delete(w.agents, k)
		if !deleted || gone.Generation < work.Generation {
			w.deleted[k] = message{work, w.now}
		}
		w.status = append(w.status, work)
	case deleted && work.Generation <= gone.Generation: // it is older than the deletion
	default:
		w.agents[k] = work
		w.status = append(w.status, work)
	}
}

func (w *world) drop(rt *rapid.T) {
	if len(w.network) > 0 {
		i := rapid.IntRange(0, len(w.network)-1).Draw(rt, "which")
		w.network = slices.Delete(w.network, i, i+1)
	}
}

func (w *world) answer(rt *rapid.T) {
	if len(w.status) == 0 {
		return
	}
	i := rapid.IntRange(0, len(w.status)-1).Draw(rt, "which")
	s := w.status[i]
	w.status = slices.Delete(w.status, i, i+1)
	if rapid.Bool().Draw(rt, "lost") {
		return
	}
	w.ingest(s)
}

// ingest takes a status as maestro.decideStatus does.
func (w *world) ingest(s Work) {
	k := key{s.Consumer, s.ID}
	w.m.RecordContact(s.Consumer)
	want, exists := w.wanted[k]
	switch {
	case !exists:
	case s.Deleting && !want.Deleting && s.Generation == want.Generation:
		w.acked[k] = 0
		w.m.Resend(want) // the agent deleted what is wanted
	case s.Deleting && (!want.Deleting || s.Generation < want.Generation):
	case s.Deleting:
		delete(w.wanted, k)
		delete(w.acked, k)
		delete(w.attempts, k)
		w.m.Forget(want)
	case s.Generation <= want.Generation:
		w.acked[k] = max(w.acked[k], s.Generation)
		w.m.Acknowledge(s.Consumer, s.ID, s.Generation)
	}
}

// acknowledgeElsewhere is a status that another server takes, and of which this
// one learns late, in an old form: it must not end what is newer.
func (w *world) acknowledgeElsewhere(rt *rapid.T) {
	k := w.drawKey(rt)
	if want, exists := w.wanted[k]; exists && want.Generation > 1 {
		w.m.Forget(Work{Consumer: k.consumer, ID: k.id, Generation: want.Generation - 1, Deleting: true})
	}
}

// restart is a server that comes back: it knows the store and the ledger. What
// the last one was about to send may still leave.
func (w *world) restart() {
	for _, f := range w.inflight {
		if !f.published {
			w.stale = append(w.stale, f)
		}
	}
	w.m = New(Config{Window: propWindow, Burst: 2})
	w.m.Connect()
	w.inflight = nil
	for k, want := range w.wanted {
		if want.Deleting || w.acked[k] < want.Generation {
			w.m.Recover(w.now, want, w.attempts[k])
		}
	}
}

// wipe is an agent that lost its store; it says so when it is back. Nothing that
// was sent to it before arrives.
func (w *world) wipe(rt *rapid.T) {
	consumer := w.drawKey(rt).consumer
	of := func(k key) bool { return k.consumer == consumer }
	maps.DeleteFunc(w.agents, func(k key, _ Work) bool { return of(k) })
	maps.DeleteFunc(w.deleted, func(k key, _ message) bool { return of(k) })
	w.network = slices.DeleteFunc(w.network, func(m message) bool { return m.Consumer == consumer })
	w.stale = slices.DeleteFunc(w.stale, func(f flight) bool { return f.Consumer == consumer })
	w.status = slices.DeleteFunc(w.status, func(s Work) bool { return s.Consumer == consumer })
	w.resyncConsumer(consumer)
}

// rejoin is an agent whose stream ended and comes again to the same server:
// its lane begins anew from the ledger, while answers to what was sent before
// may still come. What was on its way is lost.
func (w *world) rejoin(rt *rapid.T) {
	consumer := w.drawKey(rt).consumer
	w.m.Drop(consumer)
	if works, ahead := w.m.PendingOf(consumer); works != 0 || ahead != 0 {
		rt.Fatalf("%d works, %d ahead after a drop", works, ahead)
	}
	for i := len(w.inflight) - 1; i >= 0; i-- { // their publishers look once more, and end
		if f := w.inflight[i]; f.Consumer == consumer {
			if !f.published && w.m.IsCurrent(f.Send, f.Work) {
				rt.Fatalf("%v is current after its lane was dropped", f)
			}
			w.m.EndSend(w.now, f.Send, f.Work, NotSent)
			w.inflight = slices.Delete(w.inflight, i, i+1)
		}
	}
	w.network = slices.DeleteFunc(w.network, func(m message) bool { return m.Consumer == consumer })
	w.status = slices.DeleteFunc(w.status, func(s Work) bool { return s.Consumer == consumer })
	for k, want := range w.wanted {
		if k.consumer == consumer && (want.Deleting || w.acked[k] < want.Generation) {
			w.m.Add(want)
		}
	}
}

func (w *world) resync(rt *rapid.T) { w.resyncConsumer(w.drawKey(rt).consumer) }

func (w *world) resyncConsumer(consumer work.Consumer) {
	for k, want := range w.wanted {
		if k.consumer != consumer {
			continue
		}
		have, has := w.agents[k]
		if want.Deleting || !has || have.Generation < want.Generation {
			w.acked[k] = min(w.acked[k], have.Generation)
			w.m.Resend(want)
		} else {
			w.m.Postpone(w.now, consumer, k.id, have.Generation)
		}
	}
	for k, have := range w.agents { // what was deleted before, as far as the ledger knows
		if _, exists := w.wanted[k]; k.consumer == consumer && !exists {
			w.apply(Work{Consumer: k.consumer, ID: k.id, Generation: have.Generation, Deleting: true})
		}
	}
}
