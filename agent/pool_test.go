package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/api/work"

	"k8s.io/apimachinery/pkg/types"
)

// Deletions do not wait behind a flood of new works, nor does a small work
// behind the thousand manifests of another; and nothing is forgotten.
func TestCallsAreServedByLane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := make(chan bool)
		var order []effect
		p := newPool(t.Context(), 1, func(_ context.Context, e effect) {
			<-begin
			order = append(order, e)
		})
		const flood = 1000
		p.add(effDiscover{}) // holds the one worker up
		synctest.Wait()
		for i := range flood {
			p.add(effApply{id: "big", ordinal: i})
			p.add(effCreateAMW{id: work.ID(fmt.Sprint("new", i))})
			p.add(effRecordAMW{id: work.ID(fmt.Sprint("old", i))})
		}
		p.add(effApply{id: "small"})
		p.add(effDeleteAMW{id: "gone"})
		close(begin)
		synctest.Wait()
		if len(order) != 3*flood+3 {
			t.Fatalf("%d calls of %d", len(order), 3*flood+3)
		}
		place := map[string]int{}
		last := -1
		records := 0
		for i, e := range order {
			switch e := e.(type) {
			case effApply:
				if e.id == "big" {
					if e.ordinal != last+1 {
						t.Fatalf("manifest %d after %d of the same work", e.ordinal, last)
					}
					last = e.ordinal
					continue
				}
				place["small"] = i
			case effDeleteAMW:
				place["gone"] = i
			case effRecordAMW:
				if i < 100 {
					records++
				}
			}
		}
		if place["gone"] > 3 || place["small"] > 8 || records == 0 {
			t.Errorf("the deletion was call %d, the small work %d, and of the first 100 calls %d recorded",
				place["gone"], place["small"], records)
		}
		p.close()
	})
}

// A killed agent may have a call in flight that takes effect after its successor's first
// observation: the successor does not treat the absent object as deleted (I9).
func TestI9AnAgentPrunesNothingJustAfterItsStart(t *testing.T) {
	key := objectKey{configMaps, "ns", "late"}
	data, err := json.Marshal(manifests())
	if err != nil {
		t.Fatal(err)
	}
	s, err := decodeSpec(spec{ID: "one", Generation: 2, Source: "maestro", Metadata: "{}", Received: noon}, data)
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(coreConfig{consumer: "c", hubHash: "h", agentID: "h", fieldManager: "work-agent", sendWindow: 4})
	removes := func(effects []effect) (n int) {
		for _, e := range effects {
			if _, ok := e.(effRemove); ok {
				n++
			}
		}
		return n
	}
	c.load(map[work.ID]savedWork{"one": {Spec: s, Progress: &progress{Generation: 1, Possible: []resourceRef{refOf(key,
		"")}}}},
		0, noon)
	effects := c.step(evAMW{&amwState{name: "one", uid: "amw", finalizers: []string{amwFinalizer}}}, noon)
	effects = append(effects, c.step(evAMWsSynced{}, noon)...)
	effects = append(effects, c.step(evObject{key, &observed{rv: 5}}, noon.Add(time.Second))...)
	if n := removes(effects); n != 0 || !c.works["one"].removalsPending() {
		t.Fatalf("%d removals begun, pending %v", n, c.works["one"].removalsPending())
	}
	c.step(evObject{key, &observed{exists: true, uid: "u", rv: 6, owners: []types.UID{"amw"}}}, noon.Add(time.Second))
	if at := c.nextWake(); at.After(noon.Add(lateCallWindow)) {
		t.Errorf("the next step is at %s", at)
	}
	if n := removes(c.step(evTick{}, noon.Add(lateCallWindow))); n != 1 {
		t.Errorf("%d removals after %s, want 1", n, lateCallWindow)
	}
}
