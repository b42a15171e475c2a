package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// interruptedWorld has two chains of one plane: the follower was away between them. It returns them, and a moment of
// the pause. The mark of the second chain shows its end.
func interruptedWorld(t *testing.T) (w *world, chains []Chain, pause time.Time) {
	w = newWorld(t)
	w.write(100, 300*time.Millisecond)
	w.stop()
	pause = time.Now().Add(30 * time.Second)
	sleep(time.Minute + 200*time.Millisecond)
	w.run()
	w.write(100, 300*time.Millisecond)
	sleep(10 * time.Second)
	chains, err := Chains(t.Context(), w.store, testPlane)
	if err != nil || len(chains) != 2 {
		t.Fatalf("%d chains, %v", len(chains), err)
	}
	return w, chains, pause
}

// damage replaces an object of a chain by one that cannot be opened, or removes it when isGone. It returns a function
// that brings the object back.
func (w *world) damage(c Chain, object string, change func([]byte) []byte) (mend func()) {
	w.t.Helper()
	name := testPlane.prefix() + c.Name + "/" + object
	good := w.store.content(name)
	if good == nil {
		w.t.Fatalf("%s is not in the store", name)
	}
	w.store.replace(name, change(slices.Clone(good)))
	return func() { w.store.replace(name, good) }
}

func flipMiddle(b []byte) []byte { return flip(b, len(b)/2) }
func remove([]byte) []byte       { return nil }

// The first second of a chain restores from that chain when the chain before it is damaged anywhere, and what is
// damaged is named. When both are damaged, the error names both.
func TestI1ADamagedChainDoesNotKeepTheNextOneFromItsFirstSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, chains, pause := interruptedWorld(t)
		first, second := chains[0], chains[1]
		at := second.Taken.Truncate(time.Second)
		for _, object := range []string{manifestObject, partName(0), segmentName(1), segmentName(first.Segments)} {
			for what, change := range map[string]func([]byte) []byte{"changed": flipMiddle, "gone": remove} {
				if what == "gone" && object != partName(0) {
					continue // a chain without a manifest is none, and one without a segment seems to end earlier
				}
				mend := w.damage(first, object, change)
				r, err := fetch(t, w.store, at)
				if err != nil {
					t.Errorf("%s of the chain before is %s: %v", object, what, err)
				} else if least := w.lastBefore(at); r.Chain != second.Name || r.revision() < least ||
					r.Sample.Time.Sub(at) > 3*time.Second {
					t.Errorf("%s of the chain before is %s: restored from %s to %s, revision %d, want %d at least", object,
						what, r.Chain, r.Sample.Time, r.revision(), least)
				} else if r.Damage == nil || !strings.Contains(r.Damage.Error(), first.Name) ||
					!errors.Is(r.Damage, ErrCorrupt) {
					t.Errorf("%s of the chain before is %s, and the restore names as damaged: %v", object, what, r.Damage)
				}

				mendSecond := w.damage(second, partName(0), flipMiddle)
				_, err = fetch(t, w.store, at)
				if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrOutside) ||
					!strings.Contains(err.Error(), first.Name) || !strings.Contains(err.Error(), second.Name) {
					t.Errorf("both chains are damaged: %v", err)
				}
				mendSecond()
				mend()
			}
		}
		if r, err := fetch(t, w.store, at); err != nil || r.Damage != nil {
			t.Errorf("without damage: %v, %v", err, r.Damage)
		}
		mend := w.damage(first, segmentName(first.Segments), flipMiddle)
		if _, err := fetch(t, w.store, pause); !errors.Is(err, ErrCorrupt) {
			t.Errorf("a moment after a chain with a damaged end: %v", err)
		}
		mend()
		if _, err := fetch(t, w.store, pause); !errors.Is(err, ErrOutside) {
			t.Errorf("a moment of the pause: %v", err)
		}
	})
}

// While a chain begins, the one before it goes on: those moments restore from the older chain when the newer one is
// damaged. Moments that only the newer one has do not restore. The latest moment takes the older chain only when the
// manifest of the newer one does not open, and then names the newer one.
func TestAMomentOfTwoChainsRestoresFromTheUndamagedOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(100, 300*time.Millisecond)
		w.store.setFault(func(op, name string) error {
			if op == "put" && strings.HasSuffix(name, "/"+segmentName(1)) {
				sleep(20 * time.Second) // the next chain is complete so much later
			}
			return nil
		})
		w.f.Renew()
		w.write(200, 300*time.Millisecond)
		w.store.setFault(nil)
		sleep(10 * time.Second)
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 2 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		first, second := chains[0], chains[1]
		both := second.Taken.Add(10 * time.Second)
		if r, err := fetch(t, w.store, both); err != nil || r.Chain != second.Name {
			t.Fatalf("without damage: from %s, %v", r.Chain, err)
		}
		for _, object := range []string{manifestObject, partName(0), segmentName(1)} {
			mend := w.damage(second, object, flipMiddle)
			r, err := fetch(t, w.store, both)
			least, most := w.lastBefore(both), w.lastBefore(both.Add(2*time.Second))
			if err != nil || r.Chain != first.Name || r.revision() < least || r.revision() > most || r.Damage == nil {
				t.Errorf("%s is damaged: from %s, revision %d, want %d to %d, %v", object, r.Chain, r.revision(), least,
					most, err)
			}
			for _, at := range []time.Time{second.Taken.Add(50 * time.Second), {}} {
				r, err := fetch(t, w.store, at)
				if at.IsZero() && object == manifestObject {
					if err != nil || r.Chain != first.Name || !strings.Contains(fmt.Sprint(r.Damage), second.Name) {
						t.Errorf("%s is damaged: the latest is of %s, named as damaged: %v, %v", object, r.Chain, r.Damage, err)
					}
				} else if !errors.Is(err, ErrCorrupt) {
					t.Errorf("%s is damaged: at %s: %v", object, at, err)
				}
			}
			mend()
		}
	})
}

// A chain that was interrupted before its first segment, while the one before it went on, hides nothing of that one.
func TestInterruptedChainsHideNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(60, time.Second)
		chains, err := Chains(t.Context(), w.store, testPlane)
		if err != nil || len(chains) != 1 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		manifest := testPlane.prefix() + chains[0].Name + "/"
		for range 2 { // as a chain leaves them that ends after its manifest
			other := New(Options{Plane: testPlane, Dial: w.f.o.Dial, Store: w.store, KMS: testKeys(t), Spool: t.TempDir()})
			w.f.mu.Lock()
			other.clock = w.f.clock // the same period
			w.f.mu.Unlock()
			w.store.setFault(func(op, name string) error {
				isNew := !strings.HasPrefix(name, manifest)
				if op == "put" && isNew && (strings.Contains(name, segmentPrefix) || strings.HasSuffix(name, markObject)) {
					return errors.New("the line is cut")
				}
				return nil
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			if err := other.keepChains(ctx); err == nil {
				t.Fatal("the chain has not ended")
			}
			cancel()
			w.store.setFault(nil)
			w.write(30, time.Second)
		}
		if chains, err = Chains(t.Context(), w.store, testPlane); err != nil || len(chains) != 3 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		sleep(10 * time.Second)
		at := time.Now().Add(-15 * time.Second)
		for _, at := range []time.Time{at, {}} {
			want := w.lastBefore(at)
			if at.IsZero() {
				want = w.etcd.revision()
			}
			if r, err := fetch(t, w.store, at); err != nil || r.revision() < want {
				t.Errorf("at %s: revision %d, want %d, %v", at, r.revision(), want, err)
			}
		}
		mend := w.damage(chains[0], manifestObject, flipMiddle) // of the chain that goes on: the interrupted ones have less
		if r, err := fetch(t, w.store, time.Time{}); !errors.Is(err, ErrCorrupt) {
			t.Errorf("the latest, with a damaged chain that has more: revision %d, %v", r.revision(), err)
		}
		mend()
	})
}
