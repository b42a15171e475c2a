package fleet

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	api "atoll.dev/api/fleet"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
)

// Each step in each phase: the next phase, the management cluster of the placement and the one whose room is free then;
// "=" for no change and "409" for a refusal.
func TestTheStepsOfAMove(t *testing.T) {
	phases := []api.MovePhase{api.Moving, api.Canceling, api.Removing, api.Forwarding, api.Ending, api.Moved,
		api.Canceled, api.Recovering}
	for step, want := range map[api.MoveStep][]string{
		api.Arrived: {"Forwarding at two frees 1", "Forwarding at two frees 1", "=", "=", "=", "=", "=",
			"Ending at two frees 1"},
		api.Stayed:  {"Removing at one frees ", "Removing at one frees ", "=", "=", "=", "=", "=", "="},
		api.Removed: {"=", "=", "Canceled at one frees 2", "=", "Moved at one frees ", "=", "=", "="},
		api.Cancel:  {"Canceling at one frees ", "=", "=", "409", "409", "409", "=", "409"},
		api.Finish:  {"409", "409", "409", "Ending at one frees ", "=", "=", "409", "409"},
	} {
		for i, phase := range phases {
			p := placement{placementDecision: placementDecision{State: api.Placed, ManagementCluster: "one",
				ManagementClusterID: "1"}}
			now := time.Unix(1_800_000_000, 0)
			if to := (ManagementCluster{Name: "two", ID: "2"}); phase == api.Recovering {
				p = p.beginRecovery("m", to, now)
			} else {
				p = p.begin("m", to, now)
			}
			p.Move.Phase = phase
			next, frees, err := p.advance(api.MoveOrder{Step: step, ID: "m"}, now.Add(time.Second))
			got := "="
			if err != nil {
				refusal, _ := errors.AsType[*rest.Error](err)
				got = fmt.Sprint(refusal.Status)
			} else if next.Move != p.Move {
				got = fmt.Sprintf("%s at %s frees %s", next.Move.Phase, next.ManagementCluster, frees)
				checkEqual(t, "the time of the change", next.Move.ChangedTime.Sub(now).String(), "1s")
			}
			checkEqual(t, fmt.Sprintf("%s while %s", step, phase), got, want[i])
			checkEqual(t, "the phase before", string(p.Move.Phase), string(phase))
			other, frees, err := p.advance(api.MoveOrder{Step: step, ID: "another"}, now)
			isReport := step == api.Arrived || step == api.Stayed || step == api.Removed
			if other.Move != p.Move || frees != "" || (err == nil) != isReport {
				t.Errorf("%s of another move while %s: %+v, %s, %v", step, phase, other.Move, frees, err)
			}
		}
	}
}

// move makes a step of a move and returns its phase and the placement's management cluster.
func (b *testRegion) move(id string, o api.MoveOrder) string {
	b.t.Helper()
	p, err := b.Move(b.t.Context(), cluster.ID(id), o)
	if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprint(p.Move.Phase, " to ", p.Move.To, ", placed on ", p.ManagementCluster)
}

func TestAMoveReservesRoomOnBothSides(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	one := b.mc("one", `{"capacity":{"planes":4}}`, nil)
	id := b.cluster("first", `{}`)
	_, err := b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start})
	checkError(t, "without a placement", err, 409, codeState)
	b.place(id)
	_, err = b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start})
	checkError(t, "without another management cluster", err, 409, codeState)
	two := b.mc("two", `{"capacity":{"planes":1}}`, nil)
	three := b.mc("three", `{"capacity":{"planes":9},"state":"Cordoned"}`, nil)
	_, err = b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start, To: "three"})
	checkError(t, "to a cordoned one", err, 409, codeState)
	_, err = b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start, To: "one"})
	checkError(t, "to where it is", err, 409, codeState)

	start := api.MoveOrder{Step: api.Start, ID: "m1"}
	checkEqual(t, "started", b.move(id, start), "Moving to two, placed on one")
	checkEqual(t, "again", b.move(id, start), "Moving to two, placed on one")
	checkEqual(t, "the source", b.usage(one, "planes"), "3 free, 1 reserved by 1")
	checkEqual(t, "the target", b.usage(two, "planes"), "0 free, 1 reserved by 1")
	_, err = b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start, ID: "m2"})
	checkError(t, "a second move", err, 409, codeState)
	_, err = b.Delete(ctx, mcsPath, two, "")
	checkError(t, "deletion of the target", err, 409, codeState)
	p, err := b.Resize(ctx, cluster.ID(id), cluster.Medium)
	if err != nil {
		t.Fatal(err)
	}
	checkEqual(t, "a larger size waits", fmt.Sprint(p.Size, " ", p.WantedSize), "small medium")
	b.eventually("work is requested", func() bool { return slices.Contains(b.requestedClusters(), id) })

	checkEqual(t, "canceled", b.move(id, api.MoveOrder{Step: api.Cancel}), "Canceling to two, placed on one")
	checkEqual(t, "stayed", b.move(id, api.MoveOrder{Step: api.Stayed, ID: "m1"}), "Removing to two, placed on one")
	checkEqual(t, "until nothing is there", b.usage(two, "planes"), "0 free, 1 reserved by 1")
	checkEqual(t, "removed", b.move(id, api.MoveOrder{Step: api.Removed, ID: "m1"}), "Canceled to two, placed on one")
	checkEqual(t, "the target is free", b.usage(two, "planes"), "1 free, 0 reserved by 0")
	checkEqual(t, "the order that ended", b.move(id, start), "Canceled to two, placed on one")

	b.move(id, api.MoveOrder{Step: api.Start, ID: "m3", To: "two"})
	checkEqual(t, "arrived", b.move(id, api.MoveOrder{Step: api.Arrived, ID: "m3"}), "Forwarding to two, placed on two")
	checkEqual(t, "an old report", b.move(id, api.MoveOrder{Step: api.Removed, ID: "m1"}),
		"Forwarding to two, placed on two")
	checkEqual(t, "a forwarder needs no room", b.usage(one, "planes"), "4 free, 0 reserved by 0")
	checkEqual(t, "the plane is on two", b.usage(two, "planes"), "0 free, 1 reserved by 1")
	b.fleet.finishForwarding(ctx, time.Now().Add(forwardFor-time.Minute))
	checkEqual(t, "before its time", b.move(id, api.MoveOrder{Step: api.Removed}), "Forwarding to two, placed on two")
	b.fleet.finishForwarding(ctx, time.Now().Add(forwardFor+time.Minute))
	checkEqual(t, "after the forwarding", b.move(id, api.MoveOrder{Step: api.Finish}), "Ending to two, placed on two")
	checkEqual(t, "the end", b.move(id, api.MoveOrder{Step: api.Removed, ID: "m3"}), "Moved to two, placed on two")

	_, err = b.as("tenant").Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start})
	checkError(t, "a tenant", err, 403, codeForbidden)
	_, err = b.as("tenant").PlacedOn(ctx, "one")
	checkError(t, "a tenant that lists the clusters of a management cluster", err, 403, codeForbidden)
	b.reportLost(two)
	_, err = b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Start})
	checkError(t, "from a lost one", err, 409, codeState)
	checkEqual(t, "nothing was reserved", b.usage(three, "planes"), "9 free, 0 reserved by 0")
}

// A cluster of a lost management cluster is recovered elsewhere: its placement changes at once, and the room on the
// lost one is free when the target has the plane.
func TestI9AClusterOfALostManagementClusterIsRecoveredElsewhere(t *testing.T) {
	b := start(t)
	ctx := t.Context()
	one, id := b.mc("one", `{"capacity":{"planes":4}}`, nil), b.cluster("first", `{}`)
	b.place(id)
	two := b.mc("two", `{"capacity":{"planes":1}}`, nil)
	recovery := api.MoveOrder{Step: api.Recover, ID: "m1"}
	_, err := b.Move(ctx, cluster.ID(id), recovery)
	checkError(t, "from one that is connected", err, 409, codeState)
	b.reportLost(one)
	_, err = b.as("tenant").Move(ctx, cluster.ID(id), recovery)
	checkError(t, "a tenant", err, 403, codeForbidden)
	checkEqual(t, "recovers", b.move(id, recovery), "Recovering to two, placed on two")
	checkEqual(t, "again", b.move(id, recovery), "Recovering to two, placed on two")
	checkEqual(t, "the lost one", b.usage(one, "planes"), "3 free, 1 reserved by 1")
	checkEqual(t, "the target", b.usage(two, "planes"), "0 free, 1 reserved by 1")
	_, err = b.Move(ctx, cluster.ID(id), api.MoveOrder{Step: api.Cancel})
	checkError(t, "a cancellation", err, 409, codeState)
	checkEqual(t, "removed too early", b.move(id, api.MoveOrder{Step: api.Removed, ID: "m1"}),
		"Recovering to two, placed on two")
	p, err := b.Placement(ctx, cluster.ID(id))
	if err != nil || p.Move.At != "two" || p.Move.Other != "one" || p.Move.Role != roleRecovers || p.Move.OtherRole != "" {
		t.Errorf("the orders of the two sides: %+v, %v", p.Move, err)
	}
	checkEqual(t, "arrived", b.move(id, api.MoveOrder{Step: api.Arrived, ID: "m1"}), "Ending to two, placed on two")
	checkEqual(t, "the lost one runs it never again", b.usage(one, "planes"), "4 free, 0 reserved by 0")
	checkEqual(t, "the end", b.move(id, api.MoveOrder{Step: api.Removed, ID: "m1"}), "Moved to two, placed on two")
	checkEqual(t, "the target keeps it", b.usage(two, "planes"), "0 free, 1 reserved by 1")
}

// A cluster that is released during a move gives back both reservations.
func TestI9AReleasedClusterKeepsNoRoomOfItsMove(t *testing.T) {
	b := start(t)
	one, two := b.mc("one", `{"capacity":{"planes":4}}`, nil), b.mc("two", `{"capacity":{"planes":4}}`, nil)
	id := b.cluster("first", `{}`)
	b.place(id)
	b.move(id, api.MoveOrder{Step: api.Start})
	if _, err := b.Delete(t.Context(), clustersPlural, id, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.Release(t.Context(), cluster.ID(id)); err != nil {
		t.Fatal(err)
	}
	checkEqual(t, "one", b.usage(one, "planes"), "4 free, 0 reserved by 0")
	checkEqual(t, "two", b.usage(two, "planes"), "4 free, 0 reserved by 0")
}

// Several processes place, move and delete clusters at once. No management cluster reserves more than it has, and the
// sums are those of the placements, in the database and in each process's memory.
func TestI2MovesAtOnceOverfillNothing(t *testing.T) {
	const clusters = 24
	dsn := pgtest.DSN(t)
	regions := []*testRegion{startOn(t, dsn, Options{}), startOn(t, dsn, Options{})}
	b := regions[0]
	ids := make([]string, clusters)
	for i := range ids {
		ids[i] = b.cluster(fmt.Sprintf("c-%d", i), `{}`)
	}
	mcs := []string{}
	for _, name := range []string{"one", "two", "three"} {
		mcs = append(mcs, b.mc(name, `{"capacity":{"planes":11}}`, nil))
	}
	regions[1].eventually("the second process knows the management clusters", func() (all bool) {
		regions[1].fleet.shared.use(func(inv *inventory) { all = len(inv.mcs) == len(mcs) })
		return all
	})
	var wait sync.WaitGroup
	var mu sync.Mutex
	moved := 0
	for i, id := range ids {
		wait.Go(func() {
			b := regions[i%2]
			if _, err := b.Place(t.Context(), cluster.ID(id)); err != nil {
				t.Errorf("placing %d: %v", i, err)
				return
			}
			for n := range 3 {
				move := fmt.Sprintf("m-%d", n)
				_, err := b.Move(t.Context(), cluster.ID(id), api.MoveOrder{Step: api.Start, ID: move})
				if s := remote.StatusOf(err); s == 409 || s == 503 {
					continue // there is no room for all at once
				} else if err != nil {
					t.Errorf("moving %d: %v", i, err)
					return
				}
				mu.Lock()
				moved++
				mu.Unlock()
				steps := []api.MoveStep{api.Arrived, api.Finish, api.Removed}
				if n == 1 {
					steps = []api.MoveStep{api.Cancel, api.Stayed, api.Removed}
				}
				for _, step := range steps {
					// Each report comes twice, to both processes.
					var both sync.WaitGroup
					for _, b := range regions {
						both.Go(func() {
							if _, err := b.Move(t.Context(), cluster.ID(id), api.MoveOrder{Step: step, ID: move}); err != nil {
								t.Errorf("%s of %d: %v", step, i, err)
							}
						})
					}
					both.Wait()
				}
			}
			if i%3 == 0 {
				if _, err := b.Delete(t.Context(), clustersPlural, id, ""); err != nil {
					t.Error(err)
				} else if err := b.Release(t.Context(), cluster.ID(id)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(done) }()
	for isDone := false; !isDone; {
		select {
		case <-done:
			isDone = true
		case <-time.After(10 * time.Millisecond):
		}
		usage, err := b.Usage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range usage {
			if u.Reserved["planes"] > 11 || u.Reserved["planes"] != int64(u.Placements) {
				t.Fatalf("%s reserves %d planes of 11 for %d placements", u.Name, u.Reserved["planes"], u.Placements)
			}
		}
	}
	if moved == 0 {
		t.Error("no cluster moved")
	}
	if mended, err := b.fleet.compareSums(t.Context()); err != nil || mended != 0 {
		t.Errorf("%d sums were not those of the placements: %v", mended, err)
	}
	total := int64(0)
	for _, mc := range mcs {
		u, err := b.UsageOf(t.Context(), cluster.ManagementClusterID(mc))
		if err != nil {
			t.Fatal(err)
		}
		total += u.Reserved["planes"]
		for _, r := range regions {
			r.eventually("memory has the sums of the database", func() (same bool) {
				r.fleet.shared.use(func(inv *inventory) {
					s := inv.sums[cluster.ManagementClusterID(mc)]
					same = s.reserved["planes"] == u.Reserved["planes"] && s.placements == u.Placements
				})
				return same
			})
		}
	}
	checkEqual(t, "reserved at the end", total, int64(clusters-clusters/3))
}

// A cluster that was removed by force during a move keeps the room on both sides, as long as one of them has a work.
func TestI9AForcedDeletionDuringAMoveKeepsBothReservations(t *testing.T) {
	b := start(t)
	one, two := b.mc("one", `{"capacity":{"planes":4}}`, nil), b.mc("two", `{"capacity":{"planes":4}}`, nil)
	id := b.cluster("first", `{}`)
	b.place(id)
	b.move(id, api.MoveOrder{Step: api.Start})
	if _, err := b.Delete(t.Context(), clustersPlural, id, ""); err != nil {
		t.Fatal(err)
	}
	if err := b.ForceDelete(t.Context(), clustersPlural, id, "test"); err != nil {
		t.Fatal(err)
	}
	b.eventually("the placement is Orphaned", func() bool { return len(b.fleet.orphanedPlacements()) == 1 })
	o := b.fleet.orphanedPlacements()[0]
	checkEqual(t, "both sides", fmt.Sprint(len(o.mc), len(o.reservedOn), o.connected), "3 3 true")
	checkEqual(t, "one", b.usage(one, "planes"), "3 free, 1 reserved by 1")
	checkEqual(t, "two", b.usage(two, "planes"), "3 free, 1 reserved by 1")
	b.reportLost(two)
	checkEqual(t, "one side is lost", b.fleet.orphanedPlacements()[0].connected, false)
	if err := b.ReleaseByForce(t.Context(), cluster.ID(id), "test"); err != nil {
		t.Fatal(err)
	}
	checkEqual(t, "one, released", b.usage(one, "planes"), "4 free, 0 reserved by 0")
}
