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
	"atoll.dev/backup"
	"atoll.dev/hosting/controlplane"
)

// good is the report of a plane that serves.
func good() report {
	return report{
		Generation: 1, Release: "1.36.3", Image: "atoll.dev/release:1.36.3", Power: awake,
		Endpoint: hypershift.APIEndpoint{Host: "mc", Port: 6443}, Secret: "hc-admin-kubeconfig",
		Plane: controlplane.Observation{
			State: controlplane.Ready, Running: true, Backend: "127.0.0.1:30000",
			LastStart: controlplane.LastStart{Release: "1.36.3", WasReady: true},
		},
	}
}

func TestConditionsOfEachReport(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*report)
		want   string // type=status/reason of what is not as in good times
	}{
		{"well", func(*report) {}, ""},
		{"new", func(o *report) {
			o.Plane = controlplane.Observation{
				State: controlplane.Starting, Backend: "127.0.0.1:1", LastStart: controlplane.LastStart{Release: "1.36.3"},
			}
		},
			"EtcdAvailable=False/PlaneStarting KubeAPIServerAvailable=False/PlaneStarting " +
				"Available=False/PlaneStarting Progressing=True/PlaneStarting"},
		{"waits for its turn", func(o *report) { o.Plane = controlplane.Observation{State: controlplane.Down} },
			"InfrastructureReady=False/WaitingOnInfrastructureReady EtcdAvailable=False/PlaneStarting " +
				"KubeAPIServerAvailable=False/PlaneStarting Available=False/PlaneStarting " +
				"Progressing=True/PlaneStarting"},
		{"crashed", func(o *report) {
			o.Plane.State, o.Plane.Failure = controlplane.Failing, &controlplane.Failure{Reason: controlplane.PlaneFailed, Message: "it was killed"}
		},
			"ReconciliationSucceeded=False/PlaneFailed EtcdAvailable=False/PlaneFailed " +
				"KubeAPIServerAvailable=False/PlaneFailed Available=False/PlaneFailed Progressing=True/PlaneFailed " +
				"Degraded=True/PlaneFailed"},
		{"disk full", func(o *report) {
			o.Plane.State, o.Plane.Failure = controlplane.Failing, &controlplane.Failure{Reason: controlplane.DiskFull, Message: "full"}
		},
			"ReconciliationSucceeded=False/DiskFull InfrastructureReady=False/DiskFull EtcdAvailable=False/DiskFull " +
				"KubeAPIServerAvailable=False/DiskFull Available=False/DiskFull Progressing=True/DiskFull " +
				"Degraded=True/DiskFull"},
		{"etcd sick", func(o *report) { o.Plane.State, o.Plane.FailingParts = controlplane.Unready, []string{"etcd"} },
			"EtcdAvailable=False/NotReady KubeAPIServerAvailable=False/NotReady Available=False/NotReady " +
				"Degraded=True/NotReady"},
		{"a hook sick", func(o *report) {
			o.Plane.State, o.Plane.FailingParts = controlplane.Unready, []string{"poststarthook/x"}
		},
			"KubeAPIServerAvailable=False/NotReady Available=False/NotReady Degraded=True/NotReady"},
		{"etcd full", func(o *report) { o.Plane.Store = controlplane.StoreState{Full: true, Quota: 2 << 30} },
			"Degraded=True/EtcdFull"},
		{"backup failing", func(o *report) { o.Backup = &backup.State{Stored: time.Unix(1, 0), Failing: "AccessDenied"} },
			"Degraded=True/BackupFailing BackedUp=False/BackupFailing"},
		{"drill failed", func(o *report) { o.Backup, o.DrillFailed = &backup.State{Stored: time.Unix(1, 0)}, "damaged" },
			"Degraded=True/DrillFailed BackedUp=False/DrillFailed"},
		{"drill failed, asleep", func(o *report) {
			o.Power, o.Plane.State, o.Plane.Running, o.DrillFailed = asleep, controlplane.Down, false, "damaged"
		},
			"EtcdAvailable=False/Asleep KubeAPIServerAvailable=False/Asleep Available=True/Asleep " +
				"Degraded=True/DrillFailed BackedUp=False/DrillFailed"},
		{"backup failing after a failed drill", func(o *report) {
			o.Backup, o.DrillFailed = &backup.State{Stored: time.Unix(1, 0), Failing: "AccessDenied"}, "damaged"
		},
			"Degraded=True/BackupFailing BackedUp=False/BackupFailing"},
		{"backup well", func(o *report) { o.Backup = &backup.State{Stored: time.Unix(1, 0)} }, ""},
		{"etcd damaged", func(o *report) { o.Plane.Store = controlplane.StoreState{Full: true, Corrupt: true} },
			"Degraded=True/EtcdCorrupt"},
		{"asleep", func(o *report) { o.Power, o.Plane.State, o.Plane.Running = asleep, controlplane.Down, false },
			"EtcdAvailable=False/Asleep KubeAPIServerAvailable=False/Asleep Available=True/Asleep"},
		{"waking", func(o *report) { o.Power, o.Plane.State = waking, controlplane.Starting },
			"EtcdAvailable=False/Waking KubeAPIServerAvailable=False/Waking Available=True/Waking " +
				"Progressing=True/Waking"},
		{"upgrade begins", func(o *report) { o.Release, o.Plane.State = "1.36.4", controlplane.Stopping },
			"EtcdAvailable=False/Upgrading KubeAPIServerAvailable=False/Upgrading Available=False/Upgrading " +
				"Progressing=True/Upgrading"},
		{"upgrade ordered", func(o *report) { o.Release = "1.36.4" }, "Progressing=True/Upgrading"},
		{"unknown release", func(o *report) { o.Refused = &refusal{reasonVersionNotAvailable, "no"} },
			"ValidReleaseImage=False/VersionNotAvailable Progressing=False/VersionNotAvailable"},
		{"unknown release from the start", func(o *report) {
			o.Refused, o.Release, o.Plane = &refusal{reasonVersionNotAvailable, "no"}, "", controlplane.Observation{State: controlplane.Down}
		},
			"ValidReleaseImage=False/VersionNotAvailable InfrastructureReady=False/WaitingOnInfrastructureReady " +
				"EtcdAvailable=False/VersionNotAvailable " +
				"KubeAPIServerAvailable=False/VersionNotAvailable Available=False/VersionNotAvailable " +
				"Progressing=False/VersionNotAvailable"},
		{"wrong networks", func(o *report) { o.Problems = []string{"a", "b"} },
			"ValidConfiguration=False/InvalidConfiguration Progressing=False/InvalidConfiguration"},
		{"paused", func(o *report) { o.Paused = true }, "ReconciliationActive=False/ReconciliationPaused"},
		{"no time", func(o *report) { o.PauseError = fmt.Errorf("x") },
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

func TestVersionHistoryRecordsAnUpgrade(t *testing.T) {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	var s hypershift.HostedClusterStatus
	step := func(change func(*report)) string {
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
	fresh := func(o *report) { o.Plane.State, o.Plane.LastStart.WasReady = controlplane.Starting, false }
	next := func(o *report) { o.Release, o.Image = "1.36.4", "atoll.dev/release:1.36.4" }
	done := func(o *report) { next(o); o.Plane.LastStart.Release = "1.36.4" }
	for i, c := range []struct {
		change func(*report)
		want   string
	}{
		{fresh, "1.36.3 Partial 01"},
		{func(*report) {}, "1.36.3 Completed 01-03"},
		{func(*report) {}, "1.36.3 Completed 01-03"},
		{next, "1.36.4 Partial 04, 1.36.3 Completed 01-03"},
		{func(o *report) { done(o); o.Plane.State = controlplane.Starting }, "1.36.4 Partial 04, 1.36.3 Completed 01-03"},
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

// Whatever is observed, in whatever order: a repeated report changes nothing, and
// the history only grows at its head.
func TestI3TheSameReportGivesTheSameStatus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s hypershift.HostedClusterStatus
		at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			o := good()
			o.Plane.State = rapid.SampledFrom(controlplane.States).Draw(
				t, "state")
			o.Power = rapid.SampledFrom([]powerState{awake, asleep, waking, goingToSleep}).Draw(t, "power")
			o.Release = rapid.SampledFrom([]controlplane.Version{"", "1.36.3", "1.36.4"}).Draw(t, "release")
			o.Plane.LastStart.Release = rapid.SampledFrom([]controlplane.Version{"1.36.3", "1.36.4"}).Draw(t, "runs")
			o.Plane.LastStart.WasReady = rapid.Bool().Draw(t, "born")
			if rapid.Bool().Draw(t, "failed") {
				o.Plane.Failure = &controlplane.Failure{Reason: controlplane.PlaneFailed, Message: "x"}
			}
			before := s
			s = decideStatus(before, o, at)
			again := decideStatus(s, o, at.Add(time.Hour))
			was, err := json.Marshal(s)
			is, errAgain := json.Marshal(again)
			if errors.Join(err, errAgain) != nil || string(was) != string(is) {
				t.Fatalf("the repeated report changed the status:\n%s\n%s", was, is)
			}
			if b, a := before.Version, s.Version; b != nil {
				if grown := len(a.History) - len(b.History); grown < 0 || grown > 1 {
					t.Fatalf("the history went from %d to %d", len(b.History), len(a.History))
				}
			}
			if meta.IsStatusConditionPresentAndEqual(s.Conditions, hypershift.Degraded, metav1.ConditionTrue) &&
				o.Plane.Failure == nil && o.Plane.State != controlplane.Unready &&
				!(o.Power == asleep && o.Plane.State != controlplane.Down && o.Plane.State != controlplane.Failing) {
				t.Fatal("degraded without a failure")
			}
			at = at.Add(time.Minute)
		}
	})
}
