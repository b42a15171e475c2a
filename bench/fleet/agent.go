package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unique"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
	"atoll.dev/bus"
	"atoll.dev/internal/digest"
)

// Intervals of Atoll's agent.
const (
	digestEvery  = 5 * time.Minute  // between two comparisons when nothing differs
	verifyAfter  = 5 * time.Second  // before a comparison with a difference is repeated; doubles
	repeatDigest = 2 * time.Second  // before an unanswered digest is repeated; doubles
	seenEvery    = 10 * time.Second // between two heartbeats
	listTries    = 3                // unanswered digests after which the agent sends a list
)

// agent simulates the agent of a management cluster. It stores generations and status hashes instead of
// applying works, and sends the events of Atoll's agent or of Open Cluster Management's.
type agent struct {
	name    string
	topic   string
	client  *bus.Client
	fleet   *fleet
	number  int          // of the management cluster
	digests *atomic.Bool // the agent compares by digests, as Atoll's; else by lists, as Open Cluster Management's

	mu          sync.Mutex
	works       []heldWork // by the work's number among the works of this cluster
	sequence    int64
	unanswered  int       // digests in a row without an answer
	differences int       // comparisons in a row with a difference
	due         time.Time // of the next digest
	heartbeat   time.Time // the last one
	agreedAt    time.Time // when the server last answered that nothing differs
}

// heldWork is a work that an agent holds, in little memory. At generation 0 the agent does not hold it.
type heldWork struct {
	generation int64
	life       unique.Handle[string] // the life of the database in which the generation counts
	hash       [sha256.Size]byte     // of the status
}

func newAgent(f *fleet, number int) (*agent, error) {
	name := bed.Consumer(number)
	a := &agent{
		name: name, topic: bed.AgentTopic(name), fleet: f, number: number, digests: &f.digests,
		works: make([]heldWork, f.worksOfEach), sequence: time.Now().UnixMilli() << 22,
		heartbeat: time.Now().Add(-rand.N(seenEvery)), // heartbeats of many agents are spread over the interval
	}
	var err error
	a.client, err = f.bed.Agent(name, a.handle, a.connected)
	return a, err
}

// connected sends the event with which an agent begins a connection.
func (a *agent) connected(context.Context) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.digests.Load() {
		a.unanswered, a.differences = 0, 0
		a.sendDigest()
		return
	}
	a.sendList()
}

// send publishes an event. A lost event is not repeated: the next comparison finds the difference.
func (a *agent) send(e bus.Event) {
	_ = a.client.PublishAsync(context.Background(), a.topic, e, func(error) {})
}

func (a *agent) sendJSON(kind string, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible: the types have no member that fails
	}
	e := bed.AgentEvent(a.name, kind, data)
	if kind == work.SpecResync {
		e.Extensions[work.ExtOriginalSource] = ""
		if a.digests.Load() {
			e.Extensions[work.ExtDigests] = "1"
		}
	}
	a.send(e)
}

// states lists the held works for a comparison.
func (a *agent) states() []work.WorkState {
	states := make([]work.WorkState, 0, len(a.works))
	for k, w := range a.works {
		if w.generation > 0 {
			states = append(states, work.WorkState{ID: work.ID(a.fleet.id(a.number, k)), Version: w.generation,
				Life: w.life.Value(), Status: digest.ShortStatus(hex.EncodeToString(w.hash[:]))})
		}
	}
	return states
}

// sendDigest sends the digest of all works. The third one without an answer goes with a list.
func (a *agent) sendDigest() {
	states := a.states()
	a.sendJSON(work.AgentDigest, work.Digest{Works: len(states), Root: digest.Root(digest.ItemsOf(states))})
	if a.unanswered++; a.unanswered == listTries {
		a.sendList()
	}
	a.due = time.Now().Add(min(repeatDigest<<min(a.unanswered-1, 10), time.Minute))
}

func (a *agent) sendList() {
	list := work.SpecVersions{Versions: make([]work.SpecVersion, 0, len(a.works))}
	for k, w := range a.works {
		if w.generation > 0 {
			list.Versions = append(list.Versions, work.SpecVersion{ID: work.ID(a.fleet.id(a.number, k)), Version: w.generation})
		}
	}
	a.sendJSON(work.SpecResync, list)
}

// sendDue sends the digest and the heartbeat that are due.
func (a *agent) sendDue(now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.digests.Load() || !a.client.Connected() {
		return
	}
	if !a.due.IsZero() && !a.due.After(now) {
		a.sendDigest()
	}
	if now.Sub(a.heartbeat) >= seenEvery {
		a.heartbeat = now
		a.send(bed.AgentEvent(a.name, work.Seen, nil))
	}
}

// handle handles an event of the server.
func (a *agent) handle(e bus.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch e.Type {
	case work.SpecCreate, work.SpecUpdate, work.SpecDelete, work.SpecResyncResponse:
		a.handleSpec(e)
	case work.StatusResync:
		var list work.StatusHashes
		if json.Unmarshal(e.Data, &list) != nil {
			return
		}
		for _, h := range list.Hashes {
			k, ours := a.fleet.indexOf(a.number, string(h.ID))
			if ours && a.works[k].generation > 0 && hex.EncodeToString(a.works[k].hash[:]) != h.Hash {
				a.sendStatus(k, work.StatusResyncResponse)
			}
		}
	case work.ServerDigest:
		if a.digests.Load() {
			a.handleAnswer(e)
		}
	}
}

// handleSpec holds a work at a later generation and reports its status. An agent ignores a generation
// that it holds.
func (a *agent) handleSpec(e bus.Event) {
	id := e.Extensions[work.ExtResourceID]
	k, ours := a.fleet.indexOf(a.number, id)
	generation, err := strconv.ParseInt(e.Extensions[work.ExtResourceVersion], 10, 64)
	if err != nil || !ours || generation <= a.works[k].generation {
		return
	}
	a.works[k] = heldWork{generation, unique.Make(e.Extensions[work.ExtLife]), appliedHash(id, generation)}
	a.sendStatus(k, work.StatusUpdate)
}

// handleAnswer handles the server's answer to a digest, or its request for one.
func (a *agent) handleAnswer(e bus.Event) {
	var answer work.DigestAnswer
	if json.Unmarshal(e.Data, &answer) != nil {
		return
	}
	a.unanswered = 0
	switch {
	case answer.Ask:
		a.sendDigest()
	case answer.Same:
		a.differences = 0
		a.agreedAt = time.Now()
		a.due = a.agreedAt.Add(digestEvery)
	default:
		a.due = time.Now().Add(min(verifyAfter<<min(a.differences, 10), digestEvery))
		a.differences++
		if len(answer.Buckets) == 0 {
			return // the server needs no lists
		}
		states := a.states()
		buckets, err := digest.Differing(digest.Buckets(digest.ItemsOf(states), answer.Bits), answer.Buckets, answer.Bits)
		if err != nil {
			return
		}
		for _, piece := range digest.SplitWorks(states, answer.Bits, buckets) {
			a.sendJSON(work.AgentWorks, piece)
		}
	}
}

func (a *agent) sendStatus(k int, kind string) {
	a.sequence++
	w := a.works[k]
	e := bed.Status(a.name, a.fleet.id(a.number, k), strconv.FormatInt(w.generation, 10), hex.EncodeToString(w.hash[:]),
		a.sequence)
	e.Type = kind
	a.send(e)
}

// changeStatuses gives some works another status, and reports it.
func (a *agent) changeStatuses(indexes []int, reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range indexes {
		a.works[k].hash = statusHash(a.fleet.id(a.number, k), a.works[k].generation, reason)
		a.sendStatus(k, work.StatusUpdate)
	}
}

// hold makes the agent hold all its works at generation 1, as if it had received and applied them.
func (a *agent) hold(life string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for k := range a.works {
		a.works[k] = heldWork{1, unique.Make(life), appliedHash(a.fleet.id(a.number, k), 1)}
	}
}

// held returns the generation and the status hash of a work that the agent holds.
func (a *agent) held(k int) (generation int64, hash string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.works[k].generation, hex.EncodeToString(a.works[k].hash[:])
}

// agreedSince reports whether the server has answered after t that nothing differs.
func (a *agent) agreedSince(t time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.agreedAt.After(t)
}

// appliedHash returns the hash of the status that an agent reports when it has applied a work.
func appliedHash(id string, generation int64) [sha256.Size]byte {
	return statusHash(id, generation, "applied")
}

func statusHash(id string, generation int64, reason string) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%s %d %s", id, generation, reason))
}
