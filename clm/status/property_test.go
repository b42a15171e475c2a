package status

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"atoll.dev/cluster"
)

// world draws a resource and reports that clm could have stored.
func world(t *rapid.T) (Resource, []Report, []Condition) {
	adapters := []cluster.Adapter{"validation", "dns", "pull-secret", "extra"}
	generation := rapid.Int32Range(1, 4).Draw(t, "generation")
	r := Resource{
		Generation: generation, UpdatedAt: epoch.Add(
			time.Duration(rapid.IntRange(0, 50).Draw(t, "updated")) * time.Second),
		Deleting: rapid.Bool().Draw(t, "deleting"), Children: Children(rapid.IntRange(0, 1).Draw(t, "children")),
		Required: adapters[:rapid.IntRange(0, 3).Draw(t, "required")],
	}
	var reports []Report
	for _, name := range adapters {
		if !rapid.Bool().Draw(t, string(name)+" reports") {
			continue
		}
		reports = append(reports, drawReport(t, name, generation+1))
	}
	var previous []Condition
	if rapid.Bool().Draw(t, "before") {
		earlierReports := make([]Report, 0, len(reports))
		for _, name := range adapters {
			earlierReports = append(earlierReports, drawReport(t, name+" before", generation))
			earlierReports[len(earlierReports)-1].Adapter = name
		}
		before := r
		before.Generation = rapid.Int32Range(1, generation).Draw(t, "generation before")
		before.Deleting = false
		previous = Aggregate(before, earlierReports, nil)
	}
	return r, reports, previous
}

func drawReport(t *rapid.T, adapter cluster.Adapter, most int32) Report {
	name := string(adapter)
	values := []Value{True, False, Unknown}
	return Report{
		Adapter: adapter, Generation: rapid.Int32Range(1, most).Draw(t, name+" generation"),
		ObservedAt: epoch.Add(time.Duration(rapid.IntRange(0, 100).Draw(t, name+" at")) * time.Second),
		Conditions: []Reported{
			{Type: Available, Status: rapid.SampledFrom(values).Draw(t, name+" available")},
			{Type: Applied, Status: True}, {Type: Health, Status: True},
			{Type: Finalized, Status: rapid.SampledFrom(values).Draw(t, name+" finalized")},
		},
	}
}

// The order in which reports are stored, or adapters named, is no information.
func TestAggregateDoesNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, reports, previous := world(t)
		want := Aggregate(r, reports, previous)
		shuffled := r
		shuffled.Required = rapid.Permutation(r.Required).Draw(t, "required order")
		got := Aggregate(shuffled, rapid.Permutation(reports).Draw(t, "order"), previous)
		if !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// Aggregating the same reports again changes nothing (I3).
func TestI3AggregatingAgainChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, reports, previous := world(t)
		once := Aggregate(r, reports, previous)
		if twice := Aggregate(r, reports, once); !slices.Equal(once, twice) {
			t.Fatalf("once %v, twice %v", once, twice)
		}
	})
}

// The order of arrival does not change Reconciled: the latest report of each adapter
// counts, by the adapter's clock. (LastKnownReconciled and transition times do depend on
// the order.)
func TestReportsInAnyOrderComeToTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Resource{Generation: rapid.Int32Range(1, 3).Draw(t, "generation"), UpdatedAt: epoch, Required: []cluster.Adapter{
			"dns", "validation"}, Deleting: rapid.Bool().Draw(t, "deleting")}
		var reports []Report
		for i := range rapid.IntRange(1, 12).Draw(t, "reports") {
			report := drawReport(t, rapid.SampledFrom(r.Required).Draw(t, "adapter"), r.Generation)
			report.ObservedAt = epoch.Add(time.Duration(i+1) * time.Second) // no two at once
			if report.Conditions[0].Status == Unknown {
				report.Conditions[0].Status = False // an Unknown counts only as the first
			}
			reports = append(reports, report)
		}
		come := func(all []Report) (comes []string) {
			s := &subject{resource: r}
			for _, report := range all {
				if _, err := s.report(report, report.ObservedAt); err != nil {
					t.Fatal(err)
				}
			}
			for _, c := range s.conditions {
				if c.Type != LastKnownReconciled {
					comes = append(comes, fmt.Sprint(c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration,
						c.LastUpdatedTime))
				}
			}
			childless := r
			childless.Children = NoChildren
			return append(comes, fmt.Sprint(Removable(childless, s.reports)))
		}
		want := come(reports)
		if got := come(rapid.Permutation(reports).Draw(t, "order")); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// A repeated report gets its first answer and changes nothing, also after other reports with the
// same or a later time; and no earlier report replaces a later one.
func TestARepetitionIsAnsweredTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &subject{resource: Resource{Generation: 2, UpdatedAt: epoch, Required: []cluster.Adapter{"dns"}}, tie: TakeLater}
		type given struct {
			report  Report
			verdict Verdict
			answer  Report
		}
		var all []given    // the different reports
		var taken []string // digests
		take := func(r Report) (Verdict, Report) {
			verdict, err := s.report(r, r.ObservedAt)
			if err != nil {
				t.Fatal(err)
			}
			stored := s.reports
			var answer Report
			if len(stored) > 0 {
				answer, _, _ = Judge(s.resource.Generation, &stored[0], r, s.tie) // what a repetition is answered
			}
			return verdict, answer
		}
		kept := func() string {
			if len(s.reports) == 0 {
				return ""
			}
			return string(s.reports[0].digest())
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			before := kept()
			if len(all) > 0 && rapid.Bool().Draw(t, "repeat") {
				// Adapters repeat only their last few reports.
				g := all[len(all)-1-rapid.IntRange(0, min(len(all), maxRecent)-1).Draw(t, "which")]
				verdict, answer := take(g.report)
				if verdict != Repeated || kept() != before ||
					fmt.Sprint(answer.Conditions, answer.CreatedAt) != fmt.Sprint(g.answer.Conditions,
						g.answer.CreatedAt) {
					t.Fatalf("%+v was %s with %+v, and again %s with %+v", g.report, g.verdict, g.answer, verdict,
						answer)
				}
				continue
			}
			r := drawReport(t, "dns", 2)
			// often the same
			r.ObservedAt = epoch.Add(time.Duration(rapid.IntRange(0, 4).Draw(t, "moment")) * time.Microsecond)
			r.Conditions[1].Message = Given(rapid.StringMatching("[ab]{0,2}").Draw(t, "message"))
			verdict, answer := take(r)
			if verdict == Stored || verdict == Aggregated {
				if slices.Contains(taken[max(0, len(taken)-maxRecent):], kept()) {
					t.Fatalf("%+v came back", r)
				}
				taken = append(taken, kept())
			}
			if verdict == Aggregated {
				all = append(all, given{r, verdict, answer})
			}
		}
	})
}

// Of reports with the same time and different contents the latest arrival stays, also with other
// reports in between.
func TestReportsOfOneMomentKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Resource{Generation: 1, UpdatedAt: epoch, Required: []cluster.Adapter{"dns", "validation"}}
		queues := map[cluster.Adapter][]Report{}
		for _, adapter := range r.Required {
			for range rapid.IntRange(1, maxRecent-1).Draw(t, string(adapter)) {
				report := drawReport(t, adapter, 1)
				report.ObservedAt = epoch.Add(time.Second)
				if report.Conditions[0].Status == Unknown {
					report.Conditions[0].Status = False
				}
				queues[adapter] = append(queues[adapter], report)
			}
		}
		come := func(first func() bool) string {
			s, at := &subject{resource: r, tie: TakeLater}, map[cluster.Adapter]int{}
			for at["dns"] < len(queues["dns"]) || at["validation"] < len(queues["validation"]) {
				adapter := cluster.Adapter("validation")
				if at["validation"] == len(queues["validation"]) || at["dns"] < len(queues["dns"]) && first() {
					adapter = "dns"
				}
				if _, err := s.report(queues[adapter][at[adapter]], epoch.Add(time.Second)); err != nil {
					t.Fatal(err)
				}
				at[adapter]++
			}
			c := s.conditions[0]
			return fmt.Sprint(c.Type, c.Status, c.Reason, c.Message, c.ObservedGeneration)
		}
		want := come(func() bool { return true })
		if got := come(func() bool { return rapid.Bool().Draw(t, "dns first") }); got != want {
			t.Fatalf("got %s, want %s", got, want)
		}
	})
}

// For any reports in any order: of each adapter the latest report of the highest
// generation is stored in the end; Reconciled is always of the present generation, and
// true only if all stored reports are.
func TestReportsNeverGoBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &subject{resource: Resource{Generation: 1, UpdatedAt: epoch, Required: []cluster.Adapter{"dns", "validation"}}}
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			if rapid.IntRange(0, 4).Draw(t, "step") == 0 {
				s.resource.Generation++
				s.conditions = Aggregate(s.resource, s.reports, s.conditions)
				continue
			}
			before := slices.Clone(s.reports)
			r := drawReport(t, rapid.SampledFrom(s.resource.Required).Draw(t, "adapter"), s.resource.Generation+1)
			verdict, err := s.report(r, r.ObservedAt)
			if err != nil {
				t.Fatal(err)
			}
			again, err := s.report(r, r.ObservedAt)
			if want := map[Verdict]Verdict{Stored: Discarded, Aggregated: Repeated, Repeated: Repeated,
				Discarded: Discarded}[verdict]; err != nil || again != want {
				t.Fatalf("the first time %s, again %s, %v", verdict, again, err)
			}
			for _, was := range before {
				i := slices.IndexFunc(s.reports, func(r Report) bool { return r.Adapter == was.Adapter })
				is := s.reports[i]
				if is.Generation < was.Generation || is.Generation == was.Generation &&
					is.ObservedAt.Before(was.ObservedAt) {
					t.Fatalf("%+v took the place of %+v", is, was)
				}
			}
			if len(s.conditions) == 0 {
				continue
			}
			c := s.conditions[0]
			good := true
			for _, name := range s.resource.Required {
				i := slices.IndexFunc(s.reports, func(r Report) bool { return r.Adapter == name })
				good = good && i >= 0 && s.reports[i].Generation == s.resource.Generation &&
					s.reports[i].condition(Available) == True
			}
			if c.Type != Reconciled || c.ObservedGeneration != s.resource.Generation || (c.Status == True) != good {
				t.Fatalf("%+v, but good is %t", c, good)
			}
		}
	})
}
