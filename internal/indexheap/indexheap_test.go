package indexheap

import (
	"container/heap"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

type number struct{ value, index int }

func (n *number) IsBefore(other *number) bool { return n.value < other.value }
func (n *number) SetHeapIndex(i int)          { n.index = i }

// After any pushes, pops, removals and changes each item has its index, and items leave in their order.
func TestItemsKnowTheirIndex(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var h Heap[*number]
		var outside []*number
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			value := rapid.IntRange(0, 20).Draw(t, "value")
			switch step := rapid.IntRange(0, 3).Draw(t, "step"); {
			case step == 0 || len(h) == 0:
				heap.Push(&h, &number{value: value})
			case step == 1:
				popped := heap.Pop(&h).(*number)
				for _, n := range h {
					if n.value < popped.value {
						t.Fatalf("%d left before %d", popped.value, n.value)
					}
				}
				outside = append(outside, popped)
			case step == 2:
				n := h[rapid.IntRange(0, len(h)-1).Draw(t, "index")]
				heap.Remove(&h, n.index)
				outside = append(outside, n)
			default:
				n := h[rapid.IntRange(0, len(h)-1).Draw(t, "index")]
				n.value = value
				heap.Fix(&h, n.index)
			}
			for i, n := range h {
				if n.index != i {
					t.Fatalf("the item at %d has the index %d", i, n.index)
				}
			}
			if slices.ContainsFunc(outside, func(n *number) bool { return n.index != -1 }) {
				t.Fatal("an item outside the heap has an index")
			}
		}
	})
}
