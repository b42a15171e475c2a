package hosting

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"atoll.dev/api/hypershift"
)

// good is the observation of a plane that serves.
func good() observation {
	return observation{
		Generation: 1, Release: "1.36.3", Image: "atoll.dev/release:1.36.3", Power: awake,
		Endpoint: hypershift.APIEndpoint{Host: "mc", Port: 6443}, Secret: "hc-admin-kubeconfig",
		Plane: view{State: ready, PID: 7, Record: record{Port: 30000, Release: "1.36.3", Born: true}},
	}
}

func TestConditionsTellWhatIsSo(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*observation)
		want   string // type=status/reason of what is not as in good times
	}{
		{"well", func(*observation) {}, ""},
		{"new", func(o *observation) { o.Plane = view{State: starting, Record: record{Port: 1, Release: "1.36.3"}} },
			"EtcdAvailable=False/PlaneStarting KubeAPIServerAvailable=False/PlaneStarting " +
				"Available=False/PlaneStarting Progressing=True/PlaneStarting"},
		{"waits for its turn", func(o *observation) { o.Plane = view{State: down} },
			"InfrastructureReady=False/WaitingOnInfrastructureReady EtcdAvailable=False/PlaneStarting " +
				"KubeAPIServerAvailable=False/PlaneStarting Available=False/PlaneStarting " +
				"Progressing=True/PlaneStarting"},
		{"crashed", func(o *observation) {
			o.Plane.State, o.Plane.Failure = failing, &failure{Reason: failedPlane, Message: "it was killed"}
		},
			"ReconciliationSucceeded=False/PlaneFailed EtcdAvailable=False/PlaneFailed " +
				"KubeAPIServerAvailable=False/PlaneFailed Available=False/PlaneFailed Progressing=True/PlaneFailed " +
				"Degraded=True/PlaneFailed"},
		{"disk full", func(o *observation) {
			o.Plane.State, o.Plane.Failure = failing, &failure{Reason: failedDisk, Message: "full"}
		},
			"ReconciliationSucceeded=False/DiskFull InfrastructureReady=False/DiskFull EtcdAvailable=False/DiskFull " +
				"KubeAPIServerAvailable=False/DiskFull Available=False/DiskFull Progressing=True/DiskFull " +
				"Degraded=True/DiskFull"},
		{"etcd sick", func(o *observation) { o.Plane.State, o.Plane.Unwell = unready, []string{"etcd"} },
			"EtcdAvailable=False/NotReady KubeAPIServerAvailable=False/NotReady Available=False/NotReady " +
				"Degraded=True/NotReady"},
		{"a hook sick", func(o *observation) { o.Plane.State, o.Plane.Unwell = unready, []string{"poststarthook/x"} },
			"KubeAPIServerAvailable=False/NotReady Available=False/NotReady Degraded=True/NotReady"},
		{"asleep", func(o *observation) { o.Power, o.Plane.State, o.Plane.PID = asleep, down, 0 },
			"EtcdAvailable=False/Asleep KubeAPIServerAvailable=False/Asleep Available=True/Asleep"},
		{"waking", func(o *observation) { o.Power, o.Plane.State = waking, starting },
			"EtcdAvailable=False/Waking KubeAPIServerAvailable=False/Waking Available=True/Waking " +
				"Progressing=True/Waking"},
		{"upgrade begins", func(o *observation) { o.Release, o.Plane.State = "1.36.4", stopping },
			"EtcdAvailable=False/Upgrading KubeAPIServerAvailable=False/Upgrading Available=False/Upgrading " +
				"Progressing=True/Upgrading"},
		{"upgrade ordered", func(o *observation) { o.Release = "1.36.4" }, "Progressing=True/Upgrading"},
		{"unknown release", func(o *observation) { o.Refused = &refusal{reasonVersionNotAvailable, "no"} },
			"ValidReleaseImage=False/version-not-available Progressing=False/version-not-available"},
		{"unknown release from the start", func(o *observation) {
			o.Refused, o.Release, o.Plane = &refusal{reasonVersionNotAvailable, "no"}, "", view{State: down}
		},
			"ValidReleaseImage=False/version-not-available InfrastructureReady=False/WaitingOnInfrastructureReady " +
				"EtcdAvailable=False/version-not-available " +
				"KubeAPIServerAvailable=False/version-not-available Available=False/version-not-available " +
				"Progressing=False/version-not-available"},
		{"wrong networks", func(o *observation) { o.Problems = []string{"a", "b"} },
			"ValidConfiguration=False/InvalidConfiguration Progressing=False/InvalidConfiguration"},
		{"paused", func(o *observation) { o.Paused = true }, "ReconciliationActive=False/ReconciliationPaused"},
		{"no time", func(o *observation) { o.PauseError = fmt.Errorf("x") },
			"ReconciliationActive=True/InvalidPausedUntilValue"},
	} {
		o := good()
		c.change(&o)
		usual := map[string]string{hypershift.Progressing: "False/AsExpected", hypershift.Degraded: "False/AsExpected"}
		var got []string
		for _, x := range decideConditions(o) {
			want := usual[x.Type]
			if want == "" {
				want = "True/AsExpected"
			}
			if is := string(x.Status) + "/" + x.Reason; is != want {
				got = append(got, x.Type+"="+is)
			}
			if x.Message == "" {
				t.Errorf("%s: %s has no message", c.name, x.Type)
			}
		}
		if is := strings.Join(got, " "); is != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, is, c.want)
		}
	}
}

func TestVersionHistoryTellsTheUpgrade(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var s hypershift.HostedClusterStatus
	step := func(change func(*observation)) string {
		o := good()
		change(&o)
		at = at.Add(time.Second)
		s = decideStatus(s, o, at)
		var parts []string
		for _, h := range s.Version.History {
			part := h.Version + " " + string(h.State) + " " + h.StartedTime.UTC().Format("05")
			if h.CompletionTime != nil {
				part += "-" + h.CompletionTime.UTC().Format("05")
			}
			parts = append(parts, part)
		}
		return strings.Join(parts, ", ")
	}
	fresh := func(o *observation) { o.Plane.State, o.Plane.Record.Born = starting, false }
	next := func(o *observation) { o.Release, o.Image = "1.36.4", "atoll.dev/release:1.36.4" }
	done := func(o *observation) { next(o); o.Plane.Record.Release = "1.36.4" }
	for i, c := range []struct {
		change func(*observation)
		want   string
	}{
		{fresh, "1.36.3 Partial 01"},
		{func(*observation) {}, "1.36.3 Completed 01-03"},
		{func(*observation) {}, "1.36.3 Completed 01-03"},
		{next, "1.36.4 Partial 04, 1.36.3 Completed 01-03"},
		{func(o *observation) { done(o); o.Plane.State = starting }, "1.36.4 Partial 04, 1.36.3 Completed 01-03"},
		{done, "1.36.4 Completed 04-06, 1.36.3 Completed 01-03"},
	} {
		if i == 1 {
			at = at.Add(time.Second)
		}
		if i == 2 {
			at = at.Add(-time.Second)
		}
		if got := step(c.change); got != c.want {
			t.Errorf("step %d: %s, want %s", i, got, c.want)
		}
	}
}

// Whatever is observed, in whatever order: what is said twice is not news, and
// the history only grows at its head.
func TestI3AStatusThatIsSoIsNoNews(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s hypershift.HostedClusterStatus
		at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			o := good()
			o.Plane.State = rapid.SampledFrom([]state{down, starting, ready, unready, stopping, failing}).Draw(
				t, "state")
			o.Power = rapid.SampledFrom([]powerState{awake, asleep, waking, goingToSleep}).Draw(t, "power")
			o.Release = rapid.SampledFrom([]string{"", "1.36.3", "1.36.4"}).Draw(t, "release")
			o.Plane.Record.Release = rapid.SampledFrom([]string{"1.36.3", "1.36.4"}).Draw(t, "runs")
			o.Plane.Record.Born = rapid.Bool().Draw(t, "born")
			if rapid.Bool().Draw(t, "failed") {
				o.Plane.Failure = &failure{Reason: failedPlane, Message: "x"}
			}
			before := s
			s = decideStatus(before, o, at)
			again := decideStatus(s, o, at.Add(time.Hour))
			was, err := json.Marshal(s)
			is, errAgain := json.Marshal(again)
			if errors.Join(err, errAgain) != nil || string(was) != string(is) {
				t.Fatalf("said twice it is news:\n%s\n%s", was, is)
			}
			if b, a := before.Version, s.Version; b != nil {
				if grown := len(a.History) - len(b.History); grown < 0 || grown > 1 {
					t.Fatalf("the history went from %d to %d", len(b.History), len(a.History))
				}
			}
			if meta.IsStatusConditionPresentAndEqual(s.Conditions, hypershift.Degraded, metav1.ConditionTrue) &&
				o.Plane.Failure == nil && o.Plane.State != unready &&
				!(o.Power == asleep && o.Plane.State != down && o.Plane.State != failing) {
				t.Fatal("degraded without a failure")
			}
			at = at.Add(time.Minute)
		}
	})
}
