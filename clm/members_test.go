package clm

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
)

// For random joins, leaves and delays no slot ever has two holders with a valid lease; when the
// events end, each slot has one holder.
func TestNoSlotHasTwoHolders(t *testing.T) {
	type replica struct {
		open, busy []int // as it knows
		keep       []int // of what it asked
		asked      bool  // and was not answered yet
		until      int64
	}
	rapid.Check(t, func(t *rapid.T) {
		const lease = 100
		now, state, replicas := int64(1000), sharing{}, map[memberName]*replica{}
		names := []memberName{"a", "b", "c", "d"}
		lapse := func(r *replica) {
			if r.until <= now {
				r.open, r.busy = nil, nil // its work has ended with its lease
			}
		}
		ask := func(name memberName) {
			r := replicas[name]
			if r == nil {
				r = &replica{}
				replicas[name] = r
			}
			lapse(r)
			r.keep, r.asked = append(slices.Clone(r.open), r.busy...), true // work may begin until the answer
		}
		answer := func(name memberName) {
			r := replicas[name]
			lapse(r)
			state, r.open = state.renewed(name, r.keep, now+lease, now)
			r.until, r.asked = now+lease, false
		}
		t.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) { ask(rapid.SampledFrom(names).Draw(t, "who")) },
			"answer": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "who")
				if r := replicas[name]; r == nil || !r.asked {
					t.Skip("it has not asked")
				}
				answer(name)
			},
			"time": func(t *rapid.T) { now += rapid.Int64Range(1, 2*lease).Draw(t, "passes") },
			"begin": func(t *rapid.T) {
				r := replicas[rapid.SampledFrom(names).Draw(t, "who")]
				if r == nil || r.until <= now || len(r.open) == 0 {
					t.Skip("it may not")
				}
				r.busy = append(r.busy, rapid.SampledFrom(r.open).Draw(t, "slot"))
			},
			"end": func(t *rapid.T) {
				if r := replicas[rapid.SampledFrom(names).Draw(t, "who")]; r != nil {
					r.busy = nil
				}
			},
			"leave": func(t *rapid.T) {
				name := rapid.SampledFrom(names).Draw(t, "who")
				state = state.without(name)
				delete(replicas, name)
			},
			"": func(t *rapid.T) {
				whose := map[int]memberName{}
				for _, name := range names {
					r := replicas[name]
					if r == nil || r.until <= now {
						continue
					}
					for _, slot := range append(slices.Clone(r.open), r.busy...) {
						if other, taken := whose[slot]; taken && other != name {
							t.Fatalf("slot %d is %s's and %s's", slot, other, name)
						}
						whose[slot] = name
					}
				}
			},
		})
		for range 3 { // replicas learn which slots they must release, release them, and others take them
			for _, name := range names {
				if r := replicas[name]; r != nil {
					r.busy = nil
				}
				ask(name)
				answer(name)
			}
		}
		open := 0
		for _, r := range replicas {
			open += len(r.open)
		}
		if open != memberSlots {
			t.Fatalf("%d slots of %d are open", open, memberSlots)
		}
	})
}

// A replica that was killed before the database's clock was put back holds its
// slots no longer than a lease can last.
func TestAClockSetBackReleasesSlots(t *testing.T) {
	const hour, second = int64(3600e6), int64(1e6)
	now := 10 * hour
	state, _ := sharing{}.renewed("killed", nil, now+second, now)
	now -= hour
	state, open := state.renewed("other", nil, now+second, now)
	is(t, "at once", fmt.Sprint(len(open)), "0")
	for end := now + maxLease.Microseconds(); now < end; now += second / 2 {
		state, open = state.renewed("other", nil, now+second, now)
	}
	_, open = state.renewed("other", nil, now+second, now)
	is(t, "after the longest lease", fmt.Sprint(len(open)), "32")
}

// After an outage in which no replica could renew, all replicas get their former slots. An absent
// replica keeps its slots for one more lease and no longer.
func TestReplicasKeepTheirSlotsAfterAnOutage(t *testing.T) {
	const second = int64(1e6)
	now, state := 10*second, sharing{}
	renew := func(member memberName) (open []int) {
		state, open = state.renewed(member, nil, now+4*second, now)
		return open
	}
	for range 3 { // replicas learn which slots they must release, release them, and others take them
		renew("one")
		renew("two")
	}
	one, two, since := renew("one"), renew("two"), state.Since
	now += 60 * second
	is(t, "one", fmt.Sprint(renew("one")), fmt.Sprint(one))
	now += 3 * second
	is(t, "one, still alone", fmt.Sprint(renew("one")), fmt.Sprint(one))
	is(t, "two, just in time", fmt.Sprint(renew("two")), fmt.Sprint(two))
	is(t, "the times", fmt.Sprint(state.Since), fmt.Sprint(since))

	now += 60 * second // and two dies
	renew("one")
	now += 5 * second // one is late, too
	is(t, "one, when two has had its time", fmt.Sprint(len(renew("one"))), "32")
	if state.Since == since {
		t.Error("slots changed hands, and their times stayed")
	}
}

func TestReplicasOfAnAdapterShareSlots(t *testing.T) {
	a := start(t)
	c := a.client()
	renew := func(member string, keep ...int) []int {
		t.Helper()
		got, err := c.RenewMember(t.Context(), "dns", member, api.AdapterMemberRenewal{LeaseMs: 60_000, Keep: keep})
		if err != nil || got.Slots != memberSlots {
			t.Fatalf("%+v, %v", got, err)
		}
		return got.Open
	}
	is(t, "alone", fmt.Sprint(len(renew("one"))), "32")
	held := func() string {
		return a.do("PUT", "/adapters/dns/members/one", `{"lease_ms":60000}`).want(200).at("since")
	}
	is(t, "since when it holds its slots, later", held(), held())
	is(t, "another adapter's", fmt.Sprint(len(a.do("PUT", "/adapters/other/members/one", `{"lease_ms":60000}`).want(
		200).at("open")) > 60), "true")
	is(t, "who comes, before the first lets go", fmt.Sprint(renew("two")), "[]")
	left := renew("one", 0, 1, 2, 3)
	got := renew("two")
	if len(left)+len(got) < memberSlots-4 || len(got) == 0 ||
		slices.ContainsFunc(got, func(slot int) bool { return slot < 4 || slices.Contains(left, slot) }) {
		t.Errorf("one has %v, two %v", left, got)
	}
	if err := c.RemoveMember(t.Context(), "dns", "one"); err != nil {
		t.Fatal(err)
	}
	is(t, "alone again", fmt.Sprint(len(renew("two"))), "32")
	for _, body := range []string{`{}`, `{"lease_ms":10}`, `{"lease_ms":6000000}`} {
		a.do("PUT", "/adapters/dns/members/x", body).want(400)
	}
	tenant := *a
	tenant.caller.Tenancy = map[string]string{"org": "1"}
	tenant.do("PUT", "/adapters/dns/members/x", `{"lease_ms":6000}`).want(403)
	tenant.do("DELETE", "/adapters/dns/members/x", "").want(403)
	if _, err := c.RenewMember(clmclient.WithTenant(t.Context(), ""), "dns", "x", api.AdapterMemberRenewal{
		LeaseMs: 6000}); err == nil {
		t.Error("an empty tenant renews a lease")
	}
}
