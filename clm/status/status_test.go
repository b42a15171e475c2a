package status

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// TestStatus runs the files of testdata. Times are seconds of an epoch.
//
//	resource [gen=N] [required=a,b] [updated=T] [deleting] [children]   changes the resource, prints its conditions
//	equal-time keep|replace                                             which of two reports of one moment counts
//	report adapter gen=N at=T Available=True ... [, data below]          judges a report, stores it, prints what follows
//
// A report has Applied=True and Health=True unless the command gives them other values, or
// "without" removes them.
func TestStatus(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &subject{resource: Resource{Generation: 1, UpdatedAt: epoch}}
		datadriven.RunTest(t, path, s.run)
	})
}

// subject is a resource with its reports, as clm stores them.
type subject struct {
	resource   Resource
	reports    []Report
	conditions []Condition
	tie        Tie
}

func (s *subject) run(t *testing.T, d *datadriven.TestData) string {
	var b strings.Builder
	switch d.Cmd {
	case "resource":
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "gen":
				s.resource.Generation = int32(number(t, arg.Vals[0]))
			case "updated":
				s.resource.UpdatedAt = at(t, arg.Vals[0])
			case "required":
				s.resource.Required = arg.Vals
			case "deleting":
				s.resource.Deleting = true
			case "children":
				s.resource.Children = HasChildren
				if slices.Equal(arg.Vals, []string{"no"}) {
					s.resource.Children = NoChildren
				}
			default:
				t.Fatalf("unknown argument %s", arg.Key)
			}
		}
		s.conditions = Aggregate(s.resource, s.reports, s.conditions)
	case "equal-time":
		s.tie = map[string]Tie{"keep": KeepStored, "replace": TakeLater}[d.CmdArgs[0].Key]
		return ""
	case "report":
		r, now := parseReport(t, d.CmdArgs)
		r.Data = []byte(d.Input)
		verdict, err := s.report(r, now)
		if e, ok := errors.AsType[*InvalidError](err); ok {
			return "invalid " + e.Error() + "\n"
		} else if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&b, verdict)
		if verdict != Aggregated {
			return b.String()
		}
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	for _, c := range s.conditions {
		fmt.Fprintf(&b, "%s=%s gen=%d created=%s updated=%s transition=%s\n  %s: %s\n", c.Type, c.Status,
			c.ObservedGeneration,
			seconds(c.CreatedTime), seconds(c.LastUpdatedTime), seconds(c.LastTransitionTime), c.Reason, c.Message)
	}
	if Removable(s.resource, s.reports) {
		fmt.Fprintln(&b, "removable")
	}
	return b.String()
}

func (s *subject) report(r Report, now time.Time) (Verdict, error) {
	if err := r.Check(now); err != nil {
		return 0, err
	}
	i := slices.IndexFunc(s.reports, func(have Report) bool { return have.Adapter == r.Adapter })
	var stored *Report
	if i >= 0 {
		stored = &s.reports[i]
	}
	next, verdict, err := Judge(s.resource.Generation, stored, r, s.tie)
	if err != nil || verdict == Discarded || verdict == Repeated {
		return verdict, err
	}
	if i >= 0 {
		s.reports[i] = next
	} else {
		s.reports = append(s.reports, next)
	}
	if verdict == Aggregated {
		s.conditions = Aggregate(s.resource, s.reports, s.conditions)
	}
	return verdict, nil
}

func parseReport(t *testing.T, args []datadriven.CmdArg) (Report, time.Time) {
	r := Report{Adapter: args[0].Key}
	conditions := map[string]Reported{Applied: {Type: Applied, Status: True}, Health: {Type: Health, Status: True}}
	var order []string
	now := time.Time{}
	for _, arg := range args[1:] {
		switch arg.Key {
		case "gen":
			r.Generation = int32(number(t, arg.Vals[0]))
		case "at":
			r.ObservedAt = at(t, arg.Vals[0])
		case "now":
			now = at(t, arg.Vals[0])
		case "without":
			delete(conditions, arg.Vals[0])
		case "none":
			r.Adapter = ""
		default: // Type=Status or Type=(Status,Reason,Message)
			c := Reported{Type: arg.Key, Status: Value(arg.Vals[0])}
			if len(arg.Vals) > 2 {
				c.Reason, c.Message = Given(arg.Vals[1]), Given(arg.Vals[2])
			}
			if _, twice := conditions[arg.Key]; twice && slices.Contains(order, arg.Key) {
				order = append(order, arg.Key)
			} else if !twice {
				order = append(order, arg.Key)
			}
			conditions[arg.Key] = c
		}
	}
	for _, kind := range []string{Applied, Health} {
		if _, ok := conditions[kind]; ok && !slices.Contains(order, kind) {
			order = append(order, kind)
		}
	}
	for _, kind := range order {
		r.Conditions = append(r.Conditions, conditions[kind])
	}
	if now.IsZero() {
		now = r.ObservedAt
	}
	return r, now
}

func number(t *testing.T, text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func at(t *testing.T, text string) time.Time {
	if text == "never" {
		return time.Time{}
	}
	return epoch.Add(time.Duration(number(t, text) * float64(time.Second)))
}

func seconds(t time.Time) string { return strconv.FormatFloat(t.Sub(epoch).Seconds(), 'f', -1, 64) }

// world draws a resource and reports that clm could have stored.
func world(t *rapid.T) (Resource, []Report, []Condition) {
	adapters := []string{"validation", "dns", "pull-secret", "extra"}
	generation := rapid.Int32Range(1, 4).Draw(t, "generation")
	r := Resource{
		Generation: generation, UpdatedAt: epoch.Add(
			time.Duration(rapid.IntRange(0, 50).Draw(t, "updated")) * time.Second),
		Deleting: rapid.Bool().Draw(t, "deleting"), Children: Children(rapid.IntRange(0, 1).Draw(t, "children")),
		Required: adapters[:rapid.IntRange(0, 3).Draw(t, "required")],
	}
	var reports []Report
	for _, name := range adapters {
		if !rapid.Bool().Draw(t, name+" reports") {
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

func drawReport(t *rapid.T, name string, most int32) Report {
	values := []Value{True, False, Unknown}
	return Report{
		Adapter: name, Generation: rapid.Int32Range(1, most).Draw(t, name+" generation"),
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
		r := Resource{Generation: rapid.Int32Range(1, 3).Draw(t, "generation"), UpdatedAt: epoch, Required: []string{
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
		s := &subject{resource: Resource{Generation: 2, UpdatedAt: epoch, Required: []string{"dns"}}, tie: TakeLater}
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

// Of two different reports of one moment the stored one counts, as in the
// original; with TakeLater the later one does.
func TestReportsOfOneMoment(t *testing.T) {
	first := Report{Adapter: "dns", Generation: 1, ObservedAt: epoch, Conditions: []Reported{
		{Type: Available, Status: True}, {Type: Applied, Status: True}, {Type: Health, Status: True}}}
	stored, verdict, err := Judge(1, nil, first, KeepStored)
	if verdict != Aggregated || err != nil {
		t.Fatal(verdict, err)
	}
	second := first
	second.Conditions = slices.Clone(first.Conditions)
	second.Conditions[0].Status = False
	if got, verdict, _ := Judge(1, &stored, second, KeepStored); verdict != Repeated ||
		got.condition(Available) != True {
		t.Errorf("kept: %s %+v", verdict, got)
	}
	if got, verdict, _ := Judge(1, &stored, second, TakeLater); verdict != Aggregated ||
		got.condition(Available) != False {
		t.Errorf("replaced: %s %+v", verdict, got)
	}
}

// Numbers that differ, but are equal as float64, make two reports.
func TestReportsAreComparedExactly(t *testing.T) {
	first := Report{Adapter: "dns", Generation: 1, ObservedAt: epoch, Data: []byte(`{"n":9007199254740992,"a":1}`),
		Conditions: []Reported{
			{Type: Available, Status: True}, {Type: Applied, Status: True}, {Type: Health, Status: True}}}
	stored, _, err := Judge(1, nil, first, TakeLater)
	if err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]Verdict{
		`{"a":1.0,"n":9007199254740992}`: Repeated,
		`{"a":1,"n":9007199254740993}`:   Aggregated,
	} {
		r := first
		r.Data = []byte(data)
		if _, verdict, err := Judge(1, &stored, r, TakeLater); verdict != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", data, verdict, err, want)
		}
		later := r
		later.ObservedAt = epoch.Add(time.Second)
		if same := SameButTimes([]Report{stored}, []Report{later.withTransitions(&stored)}, nil, nil); same != (want == Repeated) {
			t.Errorf("%s later: the same is %t", data, same)
		}
	}
}

// Of reports with the same time and different contents the latest arrival stays, also with other
// reports in between.
func TestReportsOfOneMomentKeepTheirOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Resource{Generation: 1, UpdatedAt: epoch, Required: []string{"dns", "validation"}}
		queues := map[string][]Report{}
		for _, adapter := range r.Required {
			for range rapid.IntRange(1, maxRecent-1).Draw(t, adapter) {
				report := drawReport(t, adapter, 1)
				report.ObservedAt = epoch.Add(time.Second)
				if report.Conditions[0].Status == Unknown {
					report.Conditions[0].Status = False
				}
				queues[adapter] = append(queues[adapter], report)
			}
		}
		come := func(first func() bool) string {
			s, at := &subject{resource: r, tie: TakeLater}, map[string]int{}
			for at["dns"] < len(queues["dns"]) || at["validation"] < len(queues["validation"]) {
				adapter := "validation"
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
		s := &subject{resource: Resource{Generation: 1, UpdatedAt: epoch, Required: []string{"dns", "validation"}}}
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
