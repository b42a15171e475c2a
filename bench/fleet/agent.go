package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
)

// agent is a management cluster: it remembers instead of applying, and speaks
// as an agent does.
type agent struct {
	name    string
	topic   string
	client  *bus.Client
	digests *atomic.Bool // it compares by digests, as Atoll's agent; else by lists, as Open Cluster Management's

	mu       sync.Mutex
	works    map[string]held
	sequence int64
	tries    int       // digests without an answer
	due      time.Time // of the next digest
	seen     time.Time // when it last said that it lives
}

// held is a work: its generation and the hash of its status.
type held struct {
	generation int64
	life       string // in which the generation counts
	hash       string
}

func newAgent(b *bed.Bed, name string, digests *atomic.Bool) (*agent, error) {
	a := &agent{name: name, topic: bed.AgentTopic(name), digests: digests, works: map[string]held{},
		sequence: time.Now().UnixMilli() << 22}
	var err error
	a.client, err = b.Agent(name, a.take, a.connected)
	return a, err
}

func (a *agent) connected(context.Context) {
	if a.digests.Load() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.tries = 0
		a.sayDigest()
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sayList()
}

// say sends an event. What is not sent is lost, and the next comparison finds it.
func (a *agent) say(e bus.Event) {
	_ = a.client.PublishAsync(context.Background(), a.topic, e, func(error) {})
}

func (a *agent) sayJSON(kind string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // none of them can fail
	}
	e := bed.AgentEvent(a.name, kind, data)
	if kind == work.SpecResync {
		e.Extensions[work.ExtOriginalSource] = ""
	}
	a.say(e)
}

func (a *agent) states() []work.WorkState {
	states := make([]work.WorkState, 0, len(a.works))
	for id, w := range a.works {
		states = append(states, work.WorkState{ID: id, Version: w.generation, Life: w.life, Status: digest.Status(
			w.hash)})
	}
	return states
}

// sayDigest repeats itself, later each time, and at the third time a list goes
// with it, as with Atoll's agent.
func (a *agent) sayDigest() {
	states := a.states()
	a.sayJSON(work.AgentDigest, work.Digest{Works: len(states), Root: digest.Root(digest.Works(states))})
	if a.tries++; a.tries == 3 {
		a.sayList()
	}
	a.due = time.Now().Add(min(2*time.Second<<min(a.tries-1, 10), time.Minute))
}

func (a *agent) sayList() {
	list := work.SpecVersions{Versions: make([]work.SpecVersion, 0, len(a.works))}
	for id, w := range a.works {
		list.Versions = append(list.Versions, work.SpecVersion{ID: id, Version: w.generation})
	}
	a.sayJSON(work.SpecResync, list)
}

// tick does what is due.
func (a *agent) tick(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.digests.Load() || !a.client.Connected() {
		return
	}
	if !a.due.IsZero() && !a.due.After(now) {
		a.sayDigest()
	}
	if now.Sub(a.seen) >= 10*time.Second {
		a.seen = now
		a.say(bed.AgentEvent(a.name, work.Seen, nil))
	}
}

// take handles an event of the server's.
func (a *agent) take(e bus.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e.Type {
	case work.SpecCreate, work.SpecUpdate, work.SpecDelete, work.SpecResyncResponse:
		a.takeSpec(e)
	case work.StatusResync:
		var list work.StatusHashes
		if json.Unmarshal(e.Data, &list) != nil {
			return
		}
		for _, h := range list.Hashes {
			if w, ok := a.works[h.ID]; ok && w.hash != h.Hash {
				a.sayStatus(h.ID, w, work.StatusResyncResponse)
			}
		}
	case work.ServerDigest:
		if a.digests.Load() {
			a.compare(e)
		}
	}
}

func (a *agent) takeSpec(e bus.Event) {
	id := e.Extensions[work.ExtResourceID]
	generation, err := strconv.ParseInt(e.Extensions[work.ExtResourceVersion], 10, 64)
	if err != nil || generation <= a.works[id].generation {
		return // an agent says nothing of what it has
	}
	w := held{generation, e.Extensions[work.ExtLife], newHash(id, generation, "applied")}
	a.works[id] = w
	a.sayStatus(id, w, work.StatusUpdate)
}

func (a *agent) compare(e bus.Event) {
	var answer work.DigestAnswer
	if json.Unmarshal(e.Data, &answer) != nil {
		return
	}
	a.tries = 0
	switch {
	case answer.Ask:
		a.sayDigest()
	case answer.Same:
		a.due = time.Now().Add(5 * time.Minute)
	default:
		a.due = time.Now().Add(5 * time.Second)
		states := a.states()
		buckets, err := digest.Differing(digest.Buckets(digest.Works(states), answer.Bits), answer.Buckets, answer.Bits)
		if err != nil {
			return
		}
		for _, piece := range digest.Pieces(states, answer.Bits, buckets) {
			a.sayJSON(work.AgentWorks, piece)
		}
	}
}

func (a *agent) sayStatus(id string, w held, kind string) {
	a.sequence++
	e := bed.Status(a.name, id, strconv.FormatInt(w.generation, 10), w.hash, a.sequence, false)
	e.Type = kind
	a.say(e)
}

// change gives some works another status, and reports it.
func (a *agent) change(ids []string, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, id := range ids {
		w := a.works[id]
		w.hash = newHash(id, w.generation, why)
		a.works[id] = w
		a.sayStatus(id, w, work.StatusUpdate)
	}
}

func (a *agent) holds(id string) held {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.works[id]
}

func newHash(id string, generation int64, why string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", id, generation, why))
	return hex.EncodeToString(sum[:])
}
