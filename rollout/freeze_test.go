package rollout

import (
	"testing"
	"time"
)

func TestFreezesFollowTheClockOfTheirZone(t *testing.T) {
	weekend := Freeze{From: "Fri 16:00", To: "Mon 08:00", Zone: "Europe/Berlin"}
	nights := Freeze{From: "22:00", To: "06:00", Zone: "America/New_York"}
	hour := Freeze{From: "02:15", To: "02:45", Zone: "Europe/Berlin"}
	for _, c := range []struct {
		freeze   Freeze
		at, want string // want: when it ends; "": no freeze
	}{
		{weekend, "2026-11-27T14:59:59Z", ""},
		{weekend, "2026-11-27T15:00:00Z", "2026-11-30T07:00:00Z"},
		{weekend, "2026-11-29T12:00:00Z", "2026-11-30T07:00:00Z"},
		{weekend, "2026-11-30T06:59:59Z", "2026-11-30T07:00:00Z"},
		{weekend, "2026-11-30T07:00:00Z", ""},
		// The clocks are set back on 25 October: from summer time to winter time.
		{weekend, "2026-10-23T14:00:00Z", "2026-10-26T07:00:00Z"},
		{weekend, "2026-10-23T13:59:59Z", ""},
		// And forward on 28 March 2027.
		{weekend, "2027-03-26T15:00:00Z", "2027-03-29T06:00:00Z"},
		{nights, "2026-12-01T03:00:00Z", "2026-12-01T11:00:00Z"},
		{nights, "2026-12-01T12:00:00Z", ""},
		// The wall shows 02:15 to 02:45 twice: the freeze is from the first 02:15 to the last 02:45.
		{hour, "2026-10-25T00:15:00Z", "2026-10-25T01:45:00Z"},
		{hour, "2026-10-25T01:00:00Z", "2026-10-25T01:45:00Z"},
		{hour, "2026-10-25T01:45:00Z", ""},
		// The wall never shows 02:15 to 02:45: the freeze is not lost.
		{hour, "2027-03-28T01:30:00Z", "2027-03-28T01:45:00Z"},
		{Freeze{From: "2026-12-18 00:00", To: "2027-01-04 00:00", Zone: "Asia/Tokyo"}, "2026-12-17T15:00:00Z",
			"2027-01-03T15:00:00Z"},
		{Freeze{From: "2026-12-18 00:00", To: "2027-01-04 00:00"}, "2027-01-04T00:00:00Z", ""},
		{Freeze{From: "Mon 10:00", To: "Mon 09:00"}, "2026-11-23T09:30:00Z", ""},
		{Freeze{From: "Mon 10:00", To: "Mon 09:00"}, "2026-11-23T08:30:00Z", "2026-11-23T09:00:00Z"},
	} {
		w, err := c.freeze.window()
		if err != nil {
			t.Fatal(err)
		}
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if end, in := w.endAfter(at); in {
			got = end.UTC().Format(time.RFC3339)
		}
		if got != c.want {
			t.Errorf("%v at %s: ends %q, want %q", c.freeze, c.at, got, c.want)
		}
	}
}

func TestFreezesWithoutAnEndAreFound(t *testing.T) {
	r := Rollout{Freeze: []Freeze{{From: "08:00", To: "20:00"}, {From: "20:00", To: "08:00"}}}
	if at, ok := r.freezes().firstInstantOutside(time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)); ok {
		t.Errorf("thawed at %s", at)
	}
}
