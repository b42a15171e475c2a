package storetest

import "testing"

func TestMemoryIsAStore(t *testing.T) {
	store := NewMemory()
	Run(t, store, store.MakeOlder)
}
