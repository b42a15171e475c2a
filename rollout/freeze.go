package rollout

import (
	"cmp"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a container without time zones freezes at the same times
)

// window is a Freeze whose texts are read.
type window struct {
	zone   *time.Location
	period time.Duration // a day or a week; 0: the window comes once
	from   wallTime
	to     wallTime
}

// wallTime is a local time without a zone: a date of a window that comes once, or a weekday, hour and minute.
type wallTime struct {
	date    time.Time // of a once-window, as if in UTC
	weekday time.Weekday
	hour    int
	minute  int
}

// layouts of the times of a Freeze.
const (
	onceLayout = "2006-01-02 15:04"
	dayLayout  = "15:04"
)

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// window reads the texts of f.
func (f Freeze) window() (window, error) {
	zone, err := time.LoadLocation(cmp.Or(f.Zone, "UTC"))
	if err != nil || f.Zone == "Local" {
		return window{}, fmt.Errorf("there is no time zone %q; use a name such as Europe/Berlin", f.Zone)
	}
	w := window{zone: zone}
	var toPeriod time.Duration
	if w.from, w.period, err = parseWall(f.From); err != nil {
		return window{}, err
	}
	if w.to, toPeriod, err = parseWall(f.To); err != nil {
		return window{}, err
	}
	switch {
	case toPeriod != w.period:
		return window{}, fmt.Errorf("from is %q and to is %q; use one form for both", f.From, f.To)
	case w.from == w.to:
		return window{}, fmt.Errorf("from and to are both %q", f.From)
	case w.period == 0 && w.to.date.Before(w.from.date):
		return window{}, fmt.Errorf("it ends at %s, before it begins at %s", f.To, f.From)
	}
	return w, nil
}

func parseWall(text string) (w wallTime, period time.Duration, err error) {
	if t, err := time.Parse(onceLayout, text); err == nil {
		return wallTime{date: t, hour: t.Hour(), minute: t.Minute()}, 0, nil
	}
	period = day
	clock := text
	if name, rest, ok := strings.Cut(text, " "); ok {
		for d := time.Sunday; d <= time.Saturday; d++ {
			if strings.EqualFold(name, d.String()[:3]) {
				w.weekday, period, clock = d, week, rest
			}
		}
	}
	t, err := time.Parse(dayLayout, clock)
	if err != nil {
		return w, 0, fmt.Errorf("%q is no time; use \"Fri 16:00\", \"16:00\" or \"2026-12-20 16:00\"", text)
	}
	w.hour, w.minute = t.Hour(), t.Minute()
	return w, period, nil
}

// endAfter returns the end of the window that contains t. ok is false when t is not in the window.
func (w window) endAfter(t time.Time) (end time.Time, ok bool) {
	if w.period == 0 {
		begin, _ := w.instantsAt(w.from.date)
		_, end := w.instantsAt(w.to.date)
		return end, !t.Before(begin) && t.Before(end)
	}
	local := t.In(w.zone)
	// A window that t is in began at most one period and a change of the clocks ago.
	for back := 0; back <= int(w.period/day)+1; back++ {
		date := time.Date(local.Year(), local.Month(), local.Day()-back, w.from.hour, w.from.minute, 0, 0, time.UTC)
		if w.period == week && date.Weekday() != w.from.weekday {
			continue
		}
		begin, _ := w.instantsAt(date)
		_, until := w.instantsAt(date.Add(w.length()))
		if !t.Before(begin) && t.Before(until) {
			return until, true
		}
	}
	return time.Time{}, false
}

// length returns how long a recurring window lasts in local time.
func (w window) length() time.Duration {
	minutes := func(x wallTime) time.Duration {
		return time.Duration(x.weekday)*day + time.Duration(x.hour)*time.Hour + time.Duration(x.minute)*time.Minute
	}
	return (minutes(w.to) - minutes(w.from) + w.period) % w.period
}

// instantsAt returns the first and the last instant that have the local time t in the zone. When the clocks are set
// back, an hour of local time comes twice. When they are set forward, an hour does not exist: then the instants are
// those by the offset before and by the offset after the change, so that a window is never shorter than in its file.
func (w window) instantsAt(t time.Time) (first, last time.Time) {
	var shown, all []time.Time
	for _, near := range []time.Duration{-day, day} {
		_, offset := t.Add(near).In(w.zone).Zone()
		instant := t.Add(-time.Duration(offset) * time.Second)
		all = append(all, instant)
		if _, at := instant.In(w.zone).Zone(); at == offset {
			shown = append(shown, instant)
		}
	}
	if len(shown) == 0 {
		shown = all
	}
	first, last = shown[0], shown[len(shown)-1]
	if last.Before(first) {
		first, last = last, first
	}
	return first, last
}

// freezes are the windows of a rollout.
type freezes []window

// freezes returns the windows of the file of the rollout.
func (r Rollout) freezes() (all freezes) {
	for _, f := range r.Freeze {
		if w, err := f.window(); err == nil { // Parse refused the others
			all = append(all, w)
		}
	}
	return all
}

// maxFreezesInARow bounds how many windows, one after another, firstInstantOutside passes: windows may
// cover all time.
const maxFreezesInARow = 1000

// firstInstantOutside returns the first instant from t on that no window contains. ok is false when there
// is none.
func (f freezes) firstInstantOutside(t time.Time) (thawed time.Time, ok bool) {
	for range maxFreezesInARow {
		moved := false
		for _, w := range f {
			if end, in := w.endAfter(t); in {
				t, moved = end, true
			}
		}
		if !moved {
			return t, true
		}
	}
	return t, false
}
