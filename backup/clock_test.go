package backup

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// clocks is a world whose followers run on machines with wrong clocks. Its journal has times of these clocks.
type clocks struct {
	*world
	ahead atomic.Int64 // by how many nanoseconds the clock of the present machine is ahead of the bubble's
}

// newClocks returns a world in which nothing runs yet.
func newClocks(t *testing.T) *clocks {
	etcd, dial, stopEtcd := startEtcd()
	t.Cleanup(stopEtcd)
	c := &clocks{world: &world{t: t, etcd: etcd, store: newMemoryStore(), stopEtcd: stopEtcd, stop: func() {}}}
	c.f = New(Options{Plane: testPlane, Dial: dial, Store: c.store, KMS: testKeys(t), Spool: t.TempDir()})
	return c
}

func (c *clocks) now() time.Time { return time.Now().UTC().Round(0).Add(time.Duration(c.ahead.Load())) }

// runOn starts a follower on a machine whose clock is ahead.
func (c *clocks) runOn(ahead time.Duration) {
	c.ahead.Store(int64(ahead))
	c.f = New(c.f.o)
	c.f.clock.now = func() (wall, mono time.Time) { return c.now(), time.Now() }
	if c.etcd.sampler != nil {
		c.etcd.sampler.setClock(c.now)
	}
	c.run()
}

// write writes for a time, and records what the clock shows after each write.
func (c *clocks) write(during time.Duration) {
	for end := time.Now().Add(during); time.Now().Before(end); sleep(137 * time.Millisecond) {
		revision := c.etcd.write()
		c.journal = append(c.journal, acknowledged{c.now(), revision})
	}
}

// checkMoments restores to every moment from the first to the last of the journal, in steps. A restore has each write
// that was acknowledged while the clock showed an earlier time, in whatever period, and none that was acknowledged two
// seconds later than the last of these, or it is outside. It returns how many moments it has restored.
func (c *clocks) checkMoments(step time.Duration) (restored int) {
	c.t.Helper()
	byTime := func(a, b acknowledged) int { return a.at.Compare(b.at) }
	from, to := slices.MinFunc(c.journal, byTime).at, slices.MaxFunc(c.journal, byTime).at
	for at := from.Truncate(time.Second).Add(time.Second); at.Before(to); at = at.Add(step) {
		if !slices.ContainsFunc(c.journal, func(a acknowledged) bool { return a.at.Sub(at).Abs() < 5*time.Second }) {
			continue // between periods that are hours apart
		}
		r, err := fetch(c.t, c.store, at)
		if errors.Is(err, ErrOutside) {
			continue
		}
		least := c.lastBefore(at)
		most := least
		for _, a := range c.journal {
			if a.revision > least && a.at.Sub(at) > 2*time.Second {
				break
			}
			most = max(most, a.revision)
		}
		if err != nil || r.revision() < least || r.revision() > most {
			c.t.Errorf("%s: restored to revision %d, want %d to %d, %v", at, r.revision(), least, most, err)
		}
		restored++
	}
	return restored
}

func (c *clocks) checkLatest() {
	c.t.Helper()
	if r, err := fetch(c.t, c.store, time.Time{}); err != nil || r.revision() != c.etcd.revision() {
		c.t.Errorf("the latest restore has revision %d of %d, %v", r.revision(), c.etcd.revision(), err)
	}
	if got, err := HighestRevision(c.t.Context(), c.store, testKeys(c.t), testPlane); err != nil ||
		got != c.etcd.revision() {
		c.t.Errorf("the highest revision is %d of %d, %v", got, c.etcd.revision(), err)
	}
}

// A plane moves to a machine whose clock is hours behind, and back, and again. After each move the latest restore has
// all, and no moment restores to a state without a write that was acknowledged before it by the clock of that time.
func TestI1MovesBetweenWrongClocksLoseNothing(t *testing.T) {
	for name, second := range map[string]time.Duration{"hours behind": -5 * time.Hour, "hours ahead": 5 * time.Hour,
		"30 s behind": -30 * time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClocks(t)
				for i, ahead := range []time.Duration{0, second, 0, 2 * second, -30 * time.Second} {
					c.runOn(ahead)
					c.write(40 * time.Second)
					sleep(10 * time.Second)
					c.stop()
					c.checkLatest()
					if chains, err := Chains(t.Context(), c.store, testPlane); err != nil || len(chains) != i+1 ||
						chains[i].Generation != i+1 {
						t.Errorf("after move %d the chains are %+v, %v", i, chains, err)
					}
				}
				if n := c.checkMoments(time.Second); n < 70 {
					t.Errorf("%d moments can be restored", n)
				}
			})
		})
	}
}

// The clock is set back while a chain is written. The next chain begins, and the moments that the clock shows twice
// restore to the second time.
func TestI1AClockThatIsSetBackDuringAChainLosesNothing(t *testing.T) {
	for _, back := range []time.Duration{20 * time.Millisecond, 1500 * time.Millisecond, 20 * time.Second, 3 * time.Hour} {
		t.Run(back.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newClocks(t)
				c.runOn(0)
				c.write(45*time.Second + 300*time.Millisecond)
				c.ahead.Add(-int64(back))
				c.write(2 * time.Second)
				if s := c.f.State().Stored; s.After(c.now()) {
					t.Errorf("after the clock was set back everything until %s is stored, and it is %s", s, c.now())
				}
				c.write(45 * time.Second)
				sleep(10 * time.Second)
				if age := c.now().Sub(c.f.State().Stored); age < 0 || age > 10*time.Second {
					t.Errorf("everything was written 10 s ago, and the state is %s old", age)
				}
				c.stop()
				c.checkLatest()
				chains, err := Chains(t.Context(), c.store, testPlane)
				if err != nil || len(chains) != 2 {
					t.Errorf("%d chains, %v", len(chains), err)
				}
				if n := c.checkMoments(300 * time.Millisecond); n < 150 {
					t.Errorf("%d moments can be restored", n)
				}
			})
		})
	}
}

// A store that fails after the clock was set back shows as failing, although the clock shows a time before the last
// success.
func TestABackupFailsAlsoWhenTheClockWasSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClocks(t)
		c.runOn(0)
		c.write(10 * time.Second)
		c.store.setFault(func(string, string) error { return errors.New("the store is away") })
		c.ahead.Store(-int64(time.Hour))
		sleep(failingAfter + 10*time.Second)
		if s := c.f.State(); s.Failing == "" || !s.Stored.IsZero() {
			t.Errorf("the state is %+v", s)
		}
		c.store.setFault(nil)
		sleep(30 * time.Second)
		if s := c.f.State(); s.Failing != "" || c.now().Sub(s.Stored) > 10*time.Second {
			t.Errorf("after the outage the state is %+v at %s", s, c.now())
		}
		c.stop()
	})
}
