package backup

import (
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// earlier returns the objects of three chains, which a version without orders has written: of 30 writes each, the first
// with revision 1, 31 and 201. Their clock began at midnight of 2000-01-01, as each bubble of synctest does.
func earlier(t *testing.T) (chains [3]map[string][]byte) {
	t.Helper()
	content, err := os.ReadFile("testdata/earlier.json")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{}
	if err := json.Unmarshal(content, &all); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"20000101T000000.000Z-76dff901", "20000101T000140.000Z-ced14a67",
		"20000101T000320.000Z-294d6bab"} {
		chains[i] = maps.Clone(all)
		maps.DeleteFunc(chains[i], func(object string, _ []byte) bool { return !strings.Contains(object, name) })
	}
	return chains
}

func (m *memoryStore) add(objects map[string][]byte) {
	for name, content := range objects {
		m.replace(name, content)
	}
}

// hide removes the objects of a chain, and returns them.
func (m *memoryStore) hide(t *testing.T, c Chain) map[string][]byte {
	t.Helper()
	names, err := m.List(t.Context(), testPlane.prefix()+c.Name+"/")
	if err != nil {
		t.Fatal(err)
	}
	hidden := map[string][]byte{}
	for _, name := range names {
		hidden[name] = m.content(name)
		m.replace(name, nil)
	}
	return hidden
}

// A store of a version without orders restores as before.
func TestAStoreOfAnEarlierVersionIsRead(t *testing.T) {
	store := newMemoryStore()
	for _, objects := range earlier(t) {
		store.add(objects)
	}
	midnight := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	for at, want := range map[time.Time]int64{{}: 230, midnight.Add(20 * time.Second): 20,
		midnight.Add(120 * time.Second): 50, midnight.Add(220 * time.Second): 220} {
		r, err := fetch(t, store, at)
		if err != nil || r.revision() < want || r.revision() > want+1 {
			t.Errorf("%s: revision %d, want %d, %v", at, r.revision(), want, err)
		}
	}
	if _, err := fetch(t, store, midnight.Add(time.Minute)); !errors.Is(err, ErrOutside) {
		t.Errorf("a moment of a pause: %v", err)
	}
	if got, err := HighestRevision(t.Context(), store, testKeys(t), testPlane); err != nil || got != 230 {
		t.Errorf("the highest revision is %d, %v", got, err)
	}
}

// The first chain with an order is later than those of the earlier version, whatever the clock shows. When the earlier
// version runs again, its chain is later than that. And a third version later is the newest again.
func TestI1VersionsWithoutOrdersAreBeforeAndBetween(t *testing.T) {
	for _, ahead := range []time.Duration{-12 * time.Hour, 0, 12 * time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, old := newClocks(t), earlier(t)
				for c.etcd.revision() < 60 {
					c.etcd.write()
				}
				c.store.add(old[0])
				c.store.add(old[1])
				c.runOn(ahead)
				c.write(10 * time.Second)
				sleep(10 * time.Second)
				c.stop()
				c.checkLatest()
				for c.etcd.revision() < 230 {
					c.etcd.write()
				}
				c.store.add(old[2])
				c.checkLatest()
				c.runOn(ahead)
				c.write(10 * time.Second)
				sleep(10 * time.Second)
				c.stop()
				c.checkLatest()
				if n := c.checkMoments(time.Second); n < 10 {
					t.Errorf("%d moments can be restored", n)
				}

				chains, err := Chains(t.Context(), c.store, testPlane)
				if err != nil || len(chains) != 5 || chains[4].Generation != 2 {
					t.Fatalf("%+v, %v", chains, err)
				}
				hidden := c.store.hide(t, chains[4])
				manifest := testPlane.prefix() + chains[2].Name + "/" + manifestObject
				good := c.store.content(manifest)
				c.store.replace(manifest, flipMiddle(good)) // of the chain that the earlier version has written last
				if r, err := fetch(t, c.store, time.Time{}); err != nil || r.Damage == nil ||
					!strings.Contains(r.Damage.Error(), "delete") ||
					!slices.Equal(DamagedChains(r.Damage), []string{chains[2].Name}) {
					t.Errorf("which chain is the newest cannot be known: revision %d, named as damaged: %v, %v", r.revision(),
						r.Damage, err)
				}
				c.store.replace(manifest, good)
				c.store.add(hidden)
				c.checkLatest()
			})
		})
	}
}

// A chain whose order object is lost, or cannot be read, or is not the only one, has the order of its manifest. An
// object that contradicts the manifest is an error that names it.
func TestI1ALostOrderIsFoundInTheManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		for _, ahead := range []time.Duration{5 * time.Hour, 0, -time.Hour} {
			c.runOn(ahead)
			c.write(10 * time.Second)
			sleep(10 * time.Second)
			c.stop()
		}
		chains, err := Chains(t.Context(), c.store, testPlane)
		if err != nil || len(chains) != 3 {
			t.Fatalf("%d chains, %v", len(chains), err)
		}
		order := func(i int) string { return testPlane.prefix() + chains[i].Name + "/" + chains[i].objectName() }
		for _, lost := range [][]int{{2}, {0}, {1, 2}, {0, 1, 2}} {
			for _, i := range lost {
				c.store.replace(order(i), nil)
			}
			c.checkLatest()
			if n := c.checkMoments(time.Second); n < 10 {
				t.Errorf("without the orders of %v: %d moments can be restored", lost, n)
			}
			for _, i := range lost {
				c.store.replace(order(i), []byte("x"))
			}
		}
		for i, chain := range chains {
			for _, planted := range []string{orderPrefix, "order-00000009-20000101T000000.000Z"} {
				c.store.replace(testPlane.prefix()+chain.Name+"/"+planted, []byte("x"))
				c.checkLatest()
				if n := c.checkMoments(time.Second); n < 10 {
					t.Errorf("with %s in chain %d: %d moments can be restored", planted, i, n)
				}
				c.store.replace(testPlane.prefix()+chain.Name+"/"+planted, nil)
			}
		}

		prefix := testPlane.prefix() + chains[0].Name + "/"
		wrong := prefix + "order-00000009-20000101T000000.000Z"
		c.store.replace(order(0), nil)
		c.store.replace(wrong, []byte("x"))
		if r, err := fetch(t, c.store, time.Time{}); !errors.Is(err, ErrCorrupt) ||
			!strings.Contains(err.Error(), wrong) || !strings.Contains(err.Error(), "delete") {
			t.Errorf("with %s: revision %d, %v", wrong, r.revision(), err)
		}
		c.store.replace(wrong, nil)
		c.checkLatest()
	})
}

// Somebody without keys stores a second order of a chain, or one that cannot be read, or removes the order. The next
// chain begins all the same and is later, also on a machine whose clock is behind, and so are the ones after it.
func TestI1APlantedOrderStopsNoBackup(t *testing.T) {
	for what, plant := range map[string]func(*memoryStore, Chain){
		"a second": func(m *memoryStore, c Chain) {
			m.replace(testPlane.prefix()+c.Name+"/order-00000005-20000101T000000.000Z", []byte("x"))
		},
		"one that cannot be read": func(m *memoryStore, c Chain) {
			m.replace(testPlane.prefix()+c.Name+"/"+orderPrefix, []byte("x"))
		},
		"none": func(m *memoryStore, c Chain) {
			m.replace(testPlane.prefix()+c.Name+"/"+c.objectName(), nil)
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClocks(t)
				follow := func(ahead time.Duration) {
					c.runOn(ahead)
					c.write(10 * time.Second)
					sleep(10 * time.Second)
					c.stop()
				}
				follow(5 * time.Hour)
				follow(time.Hour)
				chains, err := Chains(t.Context(), c.store, testPlane)
				if err != nil || len(chains) != 2 {
					t.Fatalf("%d chains, %v", len(chains), err)
				}
				plant(c.store, chains[1])
				c.checkLatest()
				for i := range 3 {
					follow(-time.Duration(i) * time.Hour)
					c.checkLatest()
				}
				if chains, err = Chains(t.Context(), c.store, testPlane); err != nil || len(chains) != 5 ||
					chains[4].Generation != 5 {
					t.Errorf("the chains are %+v, %v", chains, err)
				}
				if n := c.checkMoments(time.Second); n < 10 {
					t.Errorf("%d moments can be restored", n)
				}
			})
		})
	}
}

// The retention leaves a chain alone whose order it cannot know, says so, and deletes others.
func TestTheRetentionKeepsAChainWithABadOrder(t *testing.T) {
	store, now := newMemoryStore(), time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	add := func(days, generation int) string {
		prefix := testPlane.prefix() + now.AddDate(0, 0, -days).Format(chainTime) + "-0123abcd/"
		for _, object := range []string{Order{generation, now}.objectName(), manifestObject, segmentName(1)} {
			store.replace(prefix+object, []byte("x"))
		}
		return prefix
	}
	var chains []string
	for i := range 30 {
		chains = append(chains, add(100-i, i+1))
	}
	store.replace(chains[1]+"order-00000777-20261120T000000.000Z", []byte("x"))
	_, err := DeleteExpired(t.Context(), store, testPlane, DefaultRetention(), now)
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), chains[1]+"order-00000002") {
		t.Errorf("the error is %v", err)
	}
	for i, gone := range map[int]bool{0: true, 1: false, 2: true} {
		if isGone := store.content(chains[i]+manifestObject) == nil; isGone != gone {
			t.Errorf("chain %d is gone: %t", i, isGone)
		}
	}
}

// An owner that is superseded while it takes a snapshot has the generation of the next owner. Revisions decide.
func TestI1TheHigherRevisionDecidesBetweenEqualGenerations(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			c := newClocks(t)
			c.runOn(ahead)
			c.write(10 * time.Second)
			sleep(10 * time.Second)
			c.stop()
			chains, err := Chains(t.Context(), c.store, testPlane)
			if err != nil || len(chains) != 1 {
				t.Fatalf("%d chains, %v", len(chains), err)
			}
			hidden := c.store.hide(t, chains[0]) // the second owner does not see the chain of the first one yet
			c.runOn(0)
			c.write(10 * time.Second)
			sleep(10 * time.Second)
			c.stop()
			c.store.add(hidden)
			c.checkLatest()
			if chains, err = Chains(t.Context(), c.store, testPlane); err != nil || len(chains) != 2 ||
				chains[0].Generation != 1 || chains[1].Generation != 1 {
				t.Errorf("the chains are %+v, %v", chains, err)
			}
			manifest := func(c Chain) string { return testPlane.prefix() + c.Name + "/" + manifestObject }
			first := chains[slices.IndexFunc(chains, func(c Chain) bool { return hidden[manifest(c)] != nil })]
			c.store.replace(manifest(first), flipMiddle(hidden[manifest(first)]))
			c.checkLatest()
			if r, err := fetch(t, c.store, time.Time{}); err != nil || !slices.Equal(DamagedChains(r.Damage),
				[]string{first.Name}) {
				t.Errorf("the manifest of the first one is damaged: named as damaged: %v, %v", r.Damage, err)
			}
		})
	}
}
