package backup

import (
	"errors"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/envelope"
)

// strangerManifest returns a manifest that somebody with keys of his own has made, who calls the first one keyID.
func strangerManifest(t *testing.T, name, keyID string) []byte {
	t.Helper()
	keys, err := envelope.ParseKeys(envelope.NewKeyLine(keyID))
	if err != nil {
		t.Fatal(err)
	}
	key, err := envelope.NewDataKey(t.Context(), keys)
	if err != nil {
		t.Fatal(err)
	}
	object, err := sealManifest(name, key, Manifest{Order: Order{Generation: 9}})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// plant stores a chain of somebody without keys, with a generation, and returns the prefix of its objects.
func plant(store *memoryStore, generation int, period time.Time, manifest []byte) string {
	prefix := testPlane.prefix() + "20000101T000005.000Z-0123abcd/"
	store.replace(prefix+Order{generation, period}.objectName(), []byte("x"))
	store.replace(prefix+manifestObject, manifest)
	store.replace(prefix+partName(0), []byte("x"))
	store.replace(prefix+segmentName(1), []byte("x"))
	return prefix
}

// twoChains makes two chains of a plane, each with three segments at least.
func twoChains(t *testing.T) (*clocks, []Chain) {
	t.Helper()
	c := newClocks(t)
	for range 2 {
		c.runOn(0)
		c.write(20 * time.Second)
		sleep(10 * time.Second)
		c.stop()
	}
	chains, err := Chains(t.Context(), c.store, testPlane)
	if err != nil || len(chains) != 2 || chains[1].Segments < 3 {
		t.Fatalf("%+v, %v", chains, err)
	}
	return c, chains
}

// Somebody who can store objects and has no keys plants a chain with the greatest generation. The latest restore is
// that of the last chain that opens, and names the planted one and the next step.
func TestI1APlantedChainIsNotTheLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, chains := twoChains(t)
		last := testPlane.prefix() + chains[1].Name + "/"
		good := c.store.content(last + manifestObject)
		prefix := plant(c.store, 9, c.now(), nil)
		for what, manifest := range map[string][]byte{
			"no manifest":                      []byte("x"),
			"that of another chain":            good,
			"one of a stranger's key":          strangerManifest(t, prefix+manifestObject, "k1"),
			"a damaged one of another chain":   flipMiddle(good),
			"the beginning of another chain's": good[:len(good)/2],
		} {
			plant(c.store, 9, c.now(), manifest)
			c.checkLatest()
			r, err := fetch(t, c.store, time.Time{})
			if err != nil || r.Chain != chains[1].Name || r.Damage == nil || !errors.Is(r.Damage, ErrCorrupt) ||
				!strings.Contains(r.Damage.Error(), "delete the objects below "+prefix) {
				t.Errorf("%s: restored from %s, named as damaged: %v, %v", what, r.Chain, r.Damage, err)
			}
		}

		// Two of them, and the manifests of the good chains are damaged one after the other.
		c.store.replace(last+manifestObject, flipMiddle(good))
		r, err := fetch(t, c.store, time.Time{})
		if err != nil || r.Chain != chains[0].Name || !strings.Contains(r.Damage.Error(), prefix) ||
			!strings.Contains(r.Damage.Error(), last) {
			t.Errorf("the last chain is damaged, too: restored from %s, named as damaged: %v, %v", r.Chain, r.Damage, err)
		}
		c.store.replace(testPlane.prefix()+chains[0].Name+"/"+manifestObject, []byte("x"))
		if r, err := fetch(t, c.store, time.Time{}); !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrOutside) ||
			!strings.Contains(err.Error(), chains[0].Name) || !strings.Contains(err.Error(), prefix) {
			t.Errorf("no chain opens: restored from %s, %v", r.Chain, err)
		}
	})
}

// A chain that may be good is never left out: one whose key is missing here, one of a newer version of Atoll, and one
// that opens and whose data is damaged or incomplete, or whose order was changed.
func TestI1TheLatestRestoreLeavesOutNoChainThatMayBeGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, chains := twoChains(t)
		last := chains[1]
		name := testPlane.prefix() + last.Name + "/" + manifestObject
		for what, change := range map[string]struct {
			object string
			change func([]byte) []byte
			want   string
		}{
			"its key is missing": {manifestObject, func([]byte) []byte { return strangerManifest(t, name, "k2") },
				`"k2"`},
			"a newer version": {manifestObject, func([]byte) []byte { return []byte(`{"format":99}` + "\nx") },
				"newer"},
			"a damaged part":            {partName(0), flipMiddle, partName(0)},
			"a missing part":            {partName(0), remove, partName(0)},
			"a damaged segment":         {segmentName(last.Segments), flipMiddle, segmentName(last.Segments)},
			"a missing segment":         {segmentName(2), remove, ""},
			"another chain's order":     {last.objectName(), remove, "order-00000099"},
			"a snapshot of other bytes": {partName(0), func([]byte) []byte { return []byte("x") }, partName(0)},
		} {
			mend := c.damage(last, change.object, change.change)
			planted := testPlane.prefix() + last.Name + "/order-00000099-20000101T000000.000Z"
			if change.want == "order-00000099" {
				c.store.replace(planted, []byte("x"))
			}
			if r, err := fetch(t, c.store, time.Time{}); err == nil || !strings.Contains(err.Error(), change.want) ||
				!strings.Contains(err.Error(), last.Name) {
				t.Errorf("%s: restored from %s, revision %d of %d: %v", what, r.Chain, r.revision(), c.etcd.revision(), err)
			}
			c.store.replace(planted, nil)
			mend()
		}
		c.checkLatest()
	})
}

// A planted chain that has no place in the order, or that of a good chain, ends no restore: neither of the latest
// moment nor of another one. It is named, with the next step.
func TestI1APlantedChainWithoutAPlaceEndsNoRestore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, chains := twoChains(t)
		good := c.store.content(testPlane.prefix() + chains[1].Name + "/" + manifestObject)
		moments := []time.Time{{}, chains[0].Taken.Add(10 * time.Second), chains[1].Taken.Add(10 * time.Second)}
		for what, orders := range map[string][]string{
			"no order":                    nil,
			"two orders":                  {chains[1].objectName(), "order-00000009-20000101T000000.000Z"},
			"an order that shows nothing": {orderPrefix},
			"the newest generation":       {chains[1].objectName()},
			"the generation of the first": {chains[0].objectName()},
		} {
			for content, manifest := range map[string][]byte{"no manifest": []byte("x"), "another chain's": good,
				"a damaged one": flipMiddle(good)} {
				prefix := plant(c.store, 9, c.now(), manifest)
				c.store.replace(prefix+Order{9, c.now()}.objectName(), nil)
				for _, order := range orders {
					c.store.replace(prefix+order, []byte("x"))
				}
				for _, at := range moments {
					r, err := fetch(t, c.store, at)
					least := c.lastBefore(at)
					if at.IsZero() {
						least = c.etcd.revision()
					}
					if err != nil || r.revision() < least {
						t.Errorf("%s, %s: at %s: revision %d of %d, %v", what, content, at, r.revision(), c.etcd.revision(), err)
					}
					isNamed := r.Damage != nil && strings.Contains(r.Damage.Error(), "0123abcd") &&
						strings.Contains(r.Damage.Error(), "delete") && slices.Contains(DamagedChains(r.Damage), path.Base(prefix))
					if !isNamed && what != "the generation of the first" { // that one is not looked at
						t.Errorf("%s, %s: at %s: named as damaged: %v", what, content, at, r.Damage)
					}
				}
				for _, order := range orders {
					c.store.replace(prefix+order, nil)
				}
			}
		}

		// Nothing is left but planted chains without a place: the error says what to do.
		for _, chain := range chains {
			c.store.hide(t, chain)
		}
		for what, at := range map[string]time.Time{"the latest": {}, "a moment": moments[1]} {
			if _, err := fetch(t, c.store, at); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "delete") ||
				!strings.Contains(err.Error(), "0123abcd") {
				t.Errorf("%s, and nothing can be restored: %v", what, err)
			}
		}
	})
}

// A chain without a place whose key is missing here may be good: it ends the restore, and the error names the key.
func TestI1AChainWithoutAPlaceWhoseKeyIsMissingIsNotLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, chains := twoChains(t)
		prefix := plant(c.store, chains[1].Generation, c.now(), nil)
		c.store.replace(prefix+manifestObject, strangerManifest(t, prefix+manifestObject, "k2"))
		if r, err := fetch(t, c.store, time.Time{}); err == nil || !strings.Contains(err.Error(), `"k2"`) {
			t.Errorf("restored from %s, %v", r.Chain, err)
		}
	})
}

// A planted chain decides nothing about the chains of a version without generations.
func TestI1APlantedChainHidesNoEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, old := newClocks(t), earlier(t)
		for c.etcd.revision() < 60 {
			c.etcd.write()
		}
		c.store.add(old[0])
		c.store.add(old[1])
		c.runOn(0)
		c.write(10 * time.Second)
		sleep(10 * time.Second)
		c.stop()
		plant(c.store, 9, c.now(), []byte("x"))
		c.checkLatest()
		for c.etcd.revision() < 230 {
			c.etcd.write()
		}
		c.store.add(old[2]) // the earlier version has run again
		c.checkLatest()
		if r, err := fetch(t, c.store, time.Time{}); err != nil || r.Damage == nil || !slices.Contains(r.log, 230) {
			t.Errorf("from %s, named as damaged: %v, %v", r.Chain, r.Damage, err)
		}
	})
}
