package delivery

import (
	"fmt"
	"time"

	"atoll.dev/api/work"

	"pgregory.net/rapid"
)

func (w *world) check(*rapid.T) {
	for n := 1; n <= propConsumers; n++ {
		consumer := fmt.Sprintf("mc%d", n)
		works, ahead := w.m.PendingOf(work.Consumer(consumer))
		if ahead > 2*propWindow+propIDs || ahead > works { // changes and deletions have a window each
			w.rt.Fatalf("%s: %d works ahead of %d", consumer, ahead, works)
		}
	}
	for k, have := range w.agents {
		if gone, deleted := w.deleted[k]; deleted && have.Generation <= gone.Generation {
			w.rt.Fatalf("%v is on its agent again after the deletion of generation %d", have, gone.Generation)
		}
	}
}

// heal lets everything arrive, and time pass, until nothing is pending and each
// agent has compared once more.
func (w *world) heal() {
	w.m.Connect()
	compared := w.now
	for range 4000 {
		for i := len(w.inflight) - 1; i >= 0; i-- {
			w.publishAt(i)
		}
		for _, f := range w.inflight {
			w.m.EndSend(w.now, f.Send, f.Work, map[bool]Outcome{true: Published, false: NotSent}[f.published])
		}
		w.inflight = nil
		for _, f := range w.stale {
			w.network = append(w.network, message{f.Work, w.now})
		}
		w.stale = nil
		for len(w.network) > 0 {
			m := w.network[0]
			w.network = w.network[1:]
			w.apply(m.Work)
		}
		for len(w.status) > 0 {
			s := w.status[0]
			w.status = w.status[1:]
			w.ingest(s)
		}
		w.check(nil)
		w.handOut(nil)
		if len(w.inflight) > 0 {
			continue
		}
		at, waits := w.m.NextWake()
		if next := compared.Add(compareEvery); !waits || next.Before(at) {
			if !waits && compared.After(time.Unix(0, 0)) && w.agrees() == "" {
				break
			}
			w.pass(next.Sub(w.now))
			compared = w.now
			for n := 1; n <= propConsumers; n++ {
				w.resyncConsumer(work.Consumer(fmt.Sprintf("mc%d", n)))
			}
			continue
		}
		w.pass(max(0, at.Sub(w.now)))
	}
	if works, _ := w.m.Pending(); works > 0 {
		w.rt.Fatalf("%d works are pending for ever", works)
	}
	if why := w.agrees(); why != "" {
		w.rt.Fatal(why)
	}
}

// agrees says what an agent does not have as it should.
func (w *world) agrees() string {
	for k, want := range w.wanted {
		if have := w.agents[k]; have.Generation != want.Generation {
			return fmt.Sprintf("%v has generation %d instead of %d", k, have.Generation, want.Generation)
		}
		if want.Deleting {
			return fmt.Sprintf("%v is still to be deleted", k)
		}
	}
	for k := range w.agents {
		if _, exists := w.wanted[k]; !exists {
			return fmt.Sprintf("%v is left on the agent", k)
		}
	}
	return ""
}
