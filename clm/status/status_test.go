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

	"atoll.dev/cluster"
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
				s.resource.Required = nil
				for _, name := range arg.Vals {
					s.resource.Required = append(s.resource.Required, cluster.Adapter(name))
				}
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
	r := Report{Adapter: cluster.Adapter(args[0].Key)}
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
