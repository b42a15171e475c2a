package agent

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
)

// Deletions do not wait behind a flood of new works, nor does a small work
// behind the thousand manifests of another; and nothing is forgotten.
func TestCallsWaitInLanes(t *testing.T) {
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
			p.add(effCreateAMW{id: workID(fmt.Sprint("new", i))})
			p.add(effRecordAMW{id: workID(fmt.Sprint("old", i))})
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
			t.Errorf("the deletion was call %d, the small work %d, and of the first 100 calls %d recorded", place["gone"], place["small"], records)
		}
		p.close()
	})
}
