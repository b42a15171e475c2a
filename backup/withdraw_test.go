package backup

import (
	"errors"
	"testing"
)

// newMove returns the two machines of a move of the plane. The source has taken the plane.
func newMove(t *testing.T) (store *memoryStore, source, target machine) {
	store = newMemoryStore()
	source, target = newMachine(t, store, "source"), newMachine(t, store, "target")
	if err := source.Take(t.Context()); err != nil {
		t.Fatal(err)
	}
	return store, source, target
}

// Who can write the store but has no key withdraws no move, declines none for the target, and gives no plane back to a
// source whose target has it: not with a decision that is not sealed, nor with one of another move or of another side,
// nor with a list of owners that the store had before.
func TestI1WhoOnlyWritesTheStoreSpeaksForNoSideOfAMove(t *testing.T) {
	other := newMemoryStore()
	otherMove := NewRecords(other, testKeys(t))
	for _, w := range []moveDecision{claimed, withdrawn, declined} {
		if err := otherMove.storeDecision(t.Context(), testPlane, "m0", w); err != nil {
			t.Fatal(err)
		}
	}
	forged := func(w moveDecision) map[string][]byte {
		own := newMemoryStore()
		if err := NewRecords(own, testKeys(t)).storeDecision(t.Context(), testPlane, "m1", claimed); err != nil {
			t.Fatal(err)
		}
		return map[string][]byte{
			"not sealed":       []byte(w + "\n"),
			"empty":            {},
			"of another move":  other.content(handoverPrefix(testPlane, "m0") + string(w)),
			"another decision": own.content(handoverPrefix(testPlane, "m1") + "claimed"),
		}
	}
	name := func(w moveDecision) string { return handoverPrefix(testPlane, "m1") + string(w) }

	for what, content := range forged(withdrawn) {
		store, _, target := newMove(t)
		store.replace(name(withdrawn), content)
		err := target.records.ClaimHandover(t.Context(), testPlane, "m1", "target")
		if err == nil || errors.Is(err, ErrWithdrawn) {
			t.Errorf("a withdrawal that is %s: the claim returns %v", what, err)
		}
		if store.content(name(declined)) != nil {
			t.Errorf("a withdrawal that is %s: the target declines", what)
		}
		store.replace(name(withdrawn), nil)
		if err := target.records.ClaimHandover(t.Context(), testPlane, "m1", "target"); err != nil {
			t.Errorf("after the object was removed: %v", err)
		}
	}
	withdraw := func(m machine) error {
		return m.records.WithdrawHandover(t.Context(), testPlane, "m1", m.disk.id)
	}
	for what, content := range forged(declined) {
		store, source, target := newMove(t)
		if err := target.records.ClaimHandover(t.Context(), testPlane, "m1", "target"); err != nil {
			t.Fatal(err)
		}
		store.replace(name(declined), content)
		if err := withdraw(source); err == nil || errors.Is(err, ErrSuperseded) {
			t.Errorf("the target's decision is %s: the withdrawal returns %v", what, err)
		}
	}
	for what, content := range forged(claimed) {
		if what == "another decision" { // it is the decision itself
			continue
		}
		store, source, target := newMove(t)
		ofSource := store.content(ownersPrefix + testPlane.String())
		if err := target.records.ClaimHandover(t.Context(), testPlane, "m1", "target"); err != nil {
			t.Fatal(err)
		}
		if err := target.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := withdraw(source); !errors.Is(err, ErrSuperseded) {
			t.Errorf("after the target has taken the plane: %v", err)
		}
		for list, owners := range map[string][]byte{"of before": ofSource,
			"not sealed": []byte(`{"owners":["source"],"taken":"source"}`), "lost": nil} {
			store.replace(ownersPrefix+testPlane.String(), owners)
			if err := withdraw(source); err == nil {
				t.Errorf("with a list of owners that is %s the source takes the plane back", list)
			}
			before := store.content(name(claimed))
			store.replace(name(claimed), content)
			if err := withdraw(source); err == nil {
				t.Errorf("with a list that is %s and a claim that is %s the source takes the plane back", list, what)
			}
			store.replace(name(claimed), before)
		}
	}
}

// Each side's decision counts once it is sealed: the target that has claimed gives way, and the source has the plane.
func TestAWithdrawalIsAnsweredByTheTarget(t *testing.T) {
	_, source, target := newMove(t)
	if err := target.records.ClaimHandover(t.Context(), testPlane, "m1", "target"); err != nil {
		t.Fatal(err)
	}
	withdraw := func() error {
		return source.records.WithdrawHandover(t.Context(), testPlane, "m1", source.disk.id)
	}
	if err := withdraw(); !errors.Is(err, ErrClaimed) {
		t.Errorf("before the target's answer: %v", err)
	}
	for range 2 {
		if err := target.records.ClaimHandover(t.Context(), testPlane, "m1", "target"); !errors.Is(err, ErrWithdrawn) {
			t.Errorf("the target claims a withdrawn move: %v", err)
		}
		if err := withdraw(); err != nil {
			t.Errorf("after the target's answer: %v", err)
		}
	}
	if err := source.Claim(t.Context()); err != nil {
		t.Errorf("the source claims its backups: %v", err)
	}
}
