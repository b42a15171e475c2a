package resync

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/maestro/ledger"
)

// agentsFunc is Agents whose Publish is the function.
type agentsFunc func(ctx context.Context, consumer work.Consumer) error

func (f agentsFunc) Publish(ctx context.Context, consumer work.Consumer, _ bus.Event) error {
	return f(ctx, consumer)
}

func (f agentsFunc) ApplyComparison(context.Context, work.Consumer, ledger.Comparison) error {
	return nil
}

// TestI6AnAgentThatCannotBeAskedDelaysNoOther: one consumer's message is refused
// each time, and another's is never acknowledged; all others are asked at once.
func TestI6AnAgentThatCannotBeAskedDelaysNoOther(t *testing.T) {
	synctest.Test(t, testUnaskableAgent)
}

func testUnaskableAgent(t *testing.T) {
	var mu sync.Mutex
	counts := map[string]int{}
	limited, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	agents := agentsFunc(func(ctx context.Context, consumer work.Consumer) error {
		mu.Lock()
		counts[string(consumer)]++
		mu.Unlock()
		switch consumer {
		case "mc0":
			return errors.New("refused")
		case "mc1":
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	})
	c := New(Options{Agents: agents, Logger: slog.New(slog.DiscardHandler)})
	open := map[work.Consumer]asked{}
	for n := range 100 {
		open[work.Consumer(fmt.Sprint("mc", n))] = asked{due: time.Now()}
	}
	c.askDue(limited, open)
	if len(counts) != 100 {
		t.Errorf("%d of 100 were asked", len(counts))
	}
	now := time.Now()
	if a := open["mc0"]; a.failures != 1 || a.tries != 0 || a.due.After(now.Add(time.Second)) {
		t.Errorf("the server does not soon ask again the agent that the carrier refused: %+v", a)
	}
	if a := open["mc2"]; a.tries != 1 || a.failures != 0 {
		t.Errorf("%+v", a)
	}
}

func TestHashesAreAskedForInBoundedBatchesAndNeverForAll(t *testing.T) {
	if batches := batchHashes(nil, 96<<10); len(batches) != 0 {
		t.Errorf("no bundle makes %d requests: an empty one asks for everything", len(batches))
	}
	var hashes []work.StatusHash
	for n := range 2500 {
		hashes = append(hashes, work.StatusHash{ID: work.ID(fmt.Sprintf("%0253d", n)), Hash: strings.Repeat("f", 64)})
	}
	total := 0
	for _, b := range batchHashes(hashes, 96<<10) {
		data, err := json.Marshal(work.StatusHashes{Hashes: b})
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 || len(b) > 1000 || len(data) > 96<<10 {
			t.Errorf("a batch of %d hashes, %d bytes", len(b), len(data))
		}
		total += len(b)
	}
	if total != len(hashes) {
		t.Errorf("%d of %d", total, len(hashes))
	}
}
