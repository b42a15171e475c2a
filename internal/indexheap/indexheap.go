// Package indexheap is a heap of items that record their index in it, so that a caller can move or remove any of them
// with package container/heap.
//
// The package is a tool: it imports nothing of the module.
package indexheap

// Item is an element of a Heap.
type Item[T any] interface {
	// IsBefore reports whether the item leaves the heap before another one.
	IsBefore(other T) bool
	// SetHeapIndex records the item's index in its heap; -1: it is in none.
	SetHeapIndex(i int)
}

// Heap is a heap.Interface. Its first element is the one that is before all others.
type Heap[T Item[T]] []T

func (h Heap[T]) Len() int           { return len(h) }
func (h Heap[T]) Less(i, j int) bool { return h[i].IsBefore(h[j]) }

// Swap exchanges two items and records their indexes.
func (h Heap[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].SetHeapIndex(i)
	h[j].SetHeapIndex(j)
}

// Push implements heap.Interface: it appends an item.
func (h *Heap[T]) Push(x any) {
	item := x.(T)
	item.SetHeapIndex(len(*h))
	*h = append(*h, item)
}

// Pop implements heap.Interface: it removes the last item, and keeps no reference to it.
func (h *Heap[T]) Pop() any {
	var none T
	last := len(*h) - 1
	item := (*h)[last]
	(*h)[last] = none
	*h = (*h)[:last]
	item.SetHeapIndex(-1)
	return item
}
