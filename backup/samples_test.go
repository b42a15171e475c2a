package backup

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"atoll.dev/plane"
)

// Samples of a plane are used when all that it returned at once can be true, and when they are later than the log.
func TestOnlyTrueSamplesAreUsed(t *testing.T) {
	begun := time.Date(2026, 11, 30, 20, 0, 0, 0, time.UTC)
	at := func(seconds, revision int64) plane.Sample {
		return plane.Sample{Time: begun.Add(time.Duration(seconds) * time.Second), Revision: revision}
	}
	const stored, now = 10, 20 // seconds; the stored log ends with revision 5
	for name, c := range map[string]struct {
		list      []plane.Sample
		isSetBack bool
		want      []int64 // seconds of the samples that are used
		err       error
	}{
		"none":                 {},
		"all":                  {list: []plane.Sample{at(11, 5), at(12, 6), at(13, 7)}, want: []int64{11, 12, 13}},
		"one of this moment":   {list: []plane.Sample{at(now, 6)}, want: []int64{now}},
		"older than the log":   {list: []plane.Sample{at(9, 4), at(10, 5), at(11, 6)}, want: []int64{11}},
		"one of the future":    {list: []plane.Sample{at(11, 6), at(21, 7)}, err: errUntrue},
		"a lower revision":     {list: []plane.Sample{at(11, 6), at(12, 5)}, err: errUntrue},
		"lower than the log's": {list: []plane.Sample{at(11, 4), at(12, 5)}, want: []int64{12}},
		"two in one second": {list: []plane.Sample{at(11, 6), {Time: at(11, 7).Time.Add(1), Revision: 7}},
			err: errUntrue},
		"a revision below 0":       {list: []plane.Sample{at(9, -1), at(11, 6)}, err: errUntrue},
		"an earlier time":          {list: []plane.Sample{at(13, 6), at(12, 7)}, err: errUntrue},
		"the clock was set back":   {list: []plane.Sample{at(25, 6), at(18, 7)}, isSetBack: true, want: []int64{25}},
		"it was, and revisions so": {list: []plane.Sample{at(25, 6), at(26, 5)}, isSetBack: true, err: errUntrue},
	} {
		p, r := &pendingLog{received: 5}, reading{now: begun.Add(now * time.Second), period: begun}
		if c.isSetBack {
			r.period = begun.Add(time.Second)
		}
		err := p.addPlaneSamples(c.list, Sample{Time: begun.Add(stored * time.Second), Revision: 5}, r, begun)
		var got []int64
		for _, s := range p.samples {
			got = append(got, int64(s.Time.Sub(begun)/time.Second))
		}
		if !errors.Is(err, c.err) || err != nil && c.err == nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: the samples of seconds %d are used, want %d, %v", name, got, c.want, err)
		}
	}
}

// A plane that lies about its samples hurts itself alone: what it has written is stored within 10 s, from then on by
// asking it each second. When it names a revision that it never has, nothing is stored, and that shows.
func TestAPlaneThatLiesHurtsItselfAlone(t *testing.T) {
	many := make([]fakeSample, 10_000)
	revisions := func(of func(i int) int64) func(uint64, []fakeSample) (uint64, []fakeSample) {
		return func(first uint64, list []fakeSample) (uint64, []fakeSample) {
			for i := range list {
				list[i].Revision = of(i)
			}
			return first, list
		}
	}
	for name, c := range map[string]struct {
		lie       func(first uint64, list []fakeSample) (uint64, []fakeSample)
		isFailing bool
	}{
		"earlier times": {lie: func(first uint64, _ []fakeSample) (uint64, []fakeSample) {
			return first, []fakeSample{{1, 1}, {0, 1}}
		}},
		"lower revisions":  {lie: revisions(func(i int) int64 { return 1<<62 - int64(i) })},
		"a great revision": {lie: revisions(func(int) int64 { return 1 << 62 }), isFailing: true},
		"the same numbers": {lie: func(_ uint64, list []fakeSample) (uint64, []fakeSample) { return 1, list }},
		"too many":         {lie: func(uint64, []fakeSample) (uint64, []fakeSample) { return 1, many }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				w.write(5, time.Second)
				w.etcd.sampler.setLie(c.lie)
				w.write(60, time.Second)
				age := time.Since(w.f.State().Stored)
				if s := w.f.State(); (s.Failing != "") != c.isFailing || age < 0 || age > 10*time.Second && !c.isFailing {
					t.Errorf("the state is %+v, %s old", s, age)
				}
				if chains, err := Chains(t.Context(), w.store, testPlane); err != nil || len(chains) != 1 {
					t.Errorf("%d chains, %v", len(chains), err)
				}
				w.stop()
				w.etcd.sampler.setLie(nil)
				w.run()
				w.write(30, time.Second)
				sleep(10 * time.Second)
				if s := w.f.State(); s.Failing != "" || time.Since(s.Stored) > 10*time.Second {
					t.Errorf("the plane says the truth again, and the state is %+v", s)
				}
				if r, err := fetch(t, w.store, time.Time{}); err != nil || r.revision() != w.etcd.revision() {
					t.Errorf("restored to revision %d of %d, %v", r.revision(), w.etcd.revision(), err)
				}
			})
		})
	}
}

// When a store was away for minutes, the samples of that time are still those of each second: every second of it can be
// restored.
func TestEverySecondOfAnOutageOfTheStoreCanBeRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.write(40, 250*time.Millisecond)
		w.store.setFault(func(op, _ string) error {
			if op == "put" {
				return errors.New("the line is cut")
			}
			return nil
		})
		begun := time.Now().Truncate(time.Second)
		w.write(600, 200*time.Millisecond)
		end := time.Now()
		w.store.setFault(nil)
		w.write(120, 250*time.Millisecond)
		sleep(10 * time.Second)
		for at := begun; at.Before(end); at = at.Add(time.Second) {
			r, err := fetch(t, w.store, at)
			least, most := w.lastBefore(at), w.lastBefore(at.Add(time.Second+time.Millisecond))
			if err != nil || r.revision() < least || r.revision() > most {
				t.Errorf("%s: restored to revision %d, want %d to %d, %v", at, r.revision(), least, most, err)
			}
		}
	})
}
