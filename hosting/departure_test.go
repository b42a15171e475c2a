package hosting

import (
	"cmp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// A plane stops for a move when no step is open that only this management cluster can end.
func TestAMoveWaitsForOpenSteps(t *testing.T) {
	ended := metav1.NewTime(time.Now())
	upgrade := func(p hypershift.UpgradePhase, at *metav1.Time) hypershift.HostedClusterStatus {
		return hypershift.HostedClusterStatus{Upgrade: &hypershift.UpgradeStatus{From: "1.36.3", To: "1.37.0", Phase: p,
			CompletedAt: at}}
	}
	restored := func(id string, p hypershift.RestorePhase) hypershift.HostedClusterStatus {
		return hypershift.HostedClusterStatus{Restore: &hypershift.RestoreStatus{ID: id, Phase: p}}
	}
	const replacing, completed = hypershift.RestoreReplacing, hypershift.RestoreCompleted
	for name, c := range map[string]struct {
		order  string // the annotation of a restore
		status hypershift.HostedClusterStatus
		data   string               // with which the plane runs
		last   controlplane.Version // release of the last start; that of record is 1.36.3
		state  controlplane.State
		stays  bool
	}{
		"nothing is ordered":       {},
		"an upgrade has not begun": {status: upgrade(hypershift.UpgradeRuns, nil)},
		"an upgrade runs": {
			status: upgrade(hypershift.UpgradeRuns, nil), last: "1.37.0", stays: true,
		},
		"a rollback has not begun": {status: upgrade(hypershift.UpgradeRollsBack, nil)},
		"a rollback runs":          {status: upgrade(hypershift.UpgradeRollsBack, nil), last: "1.35.1", stays: true},
		"a failed upgrade goes back": {
			status: upgrade(hypershift.UpgradeFailed, nil), state: controlplane.Failing, stays: true,
		},
		"a plane sleeps after a failed upgrade": {
			status: upgrade(hypershift.UpgradeFailed, nil), state: controlplane.Down,
		},
		"a failed upgrade has gone back": {status: upgrade(hypershift.UpgradeFailed, &ended)},
		"an upgrade soaks":               {status: upgrade(hypershift.UpgradeSoaks, nil)},
		"an upgrade is over":             {status: upgrade(hypershift.UpgradeCompleted, &ended)},
		"a restore is prepared":          {order: "r1", status: restored("r1", hypershift.RestorePreparing)},
		"the plane starts with restored data": {
			order: "r1", status: restored("r1", replacing), data: "r1", stays: true,
		},
		"the status is still of another order": {
			order: "r1", status: restored("r0", completed), data: "r1", stays: true,
		},
		"the status is empty":    {order: "r1", data: "r1", stays: true},
		"a restore is completed": {order: "r1", status: restored("r1", completed), data: "r1"},
		"a restore is completed, and is past": {
			order: "r2", status: restored("r2", hypershift.RestoreFailed), data: "r1",
		},
		"an order that cannot be read is there": {order: "NO", data: "NO"},
	} {
		hc := &hypershift.HostedCluster{}
		if c.order != "" {
			hc.Annotations = map[string]string{hypershift.RestoreAnnotation: `{"id":"` + c.order +
				`","at":"2026-11-23T05:00:00Z"}`}
		}
		p := controlplane.Observation{State: cmp.Or(c.state, controlplane.Ready), LastStart: controlplane.LastStart{
			Data: c.data, Served: "1.36.3", Release: cmp.Or(c.last, "1.36.3")}}
		if why := reasonToStay(hc, c.status, p); (why != "") != c.stays {
			t.Errorf("%s: the plane stays: %q, want %t", name, why, c.stays)
		}
	}
}

// A status that a plane brings and this version cannot read fails the arrival: it does not count as none.
func TestAnUnreadableDepartureFailsTheArrival(t *testing.T) {
	for name, c := range map[string]struct {
		shown   controlplane.Shown
		message string // "": none
	}{
		"nothing":                {},
		"an upgrade":             {shown: controlplane.Shown{Upgrade: []byte(`{"phase":"Soaking"}`)}},
		"an unreadable upgrade":  {shown: controlplane.Shown{Upgrade: []byte(`{"phase":7}`)}, message: "last upgrade"},
		"an unreadable restore":  {shown: controlplane.Shown{Restore: []byte(`["r1"]`)}, message: "last restore"},
		"a restore that was cut": {shown: controlplane.Shown{Restore: []byte(`{"id":`)}, message: "last restore"},
	} {
		p := withReadableDeparture(controlplane.Preparation{State: controlplane.PreparationDone,
			Departure: &controlplane.Departure{Shown: c.shown}})
		if isFailed := p.State == controlplane.PreparationFailed; isFailed != (c.message != "") ||
			!strings.Contains(p.Message, c.message) {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if p := withReadableDeparture(controlplane.Preparation{State: controlplane.PreparationWaits}); p.State !=
		controlplane.PreparationWaits {
		t.Errorf("a plane that has not arrived: %+v", p)
	}
}

// A recovered plane that was ready last with another release than that of the spec starts within an upgrade from that
// release, and goes back to it. Without such a release it starts with that of the spec.
func TestARecoveredPlaneStartsWithinTheUpgrade(t *testing.T) {
	now := powerZero
	recovered := func(wanted string, served controlplane.Version) situation {
		s := newSituation()
		s.Cluster.Spec.Release.Image = cluster.ReleaseImage(wanted)
		s.Restore = &restore{Order: hypershift.RestoreOrder{ID: controlplane.Recovery}, IsRecovery: true,
			Prepared: controlplane.Preparation{State: controlplane.PreparationDone,
				Departure: &controlplane.Departure{LastStart: controlplane.LastStart{Served: served}}}}
		return s
	}
	for _, c := range []struct{ wanted, served, emulated string }{{"1.36.4", "1.36.3", ""}, {"1.37.0", "1.36.3", "1.36"},
		{"1.36.4", "1.37.0", ""}} {
		s := recovered(c.wanted, controlplane.Version(c.served))
		d := decide(s, now)
		u := d.Report.Upgrade
		if u == nil || u.From != c.served || u.To != c.wanted || u.Phase != hypershift.UpgradeRuns ||
			u.EmulatedVersion != c.emulated || d.Run {
			t.Fatalf("%+v: before the status has the upgrade %+v, the plane runs: %t", c, u, d.Run)
		}
		s.Upgrade = u
		if d = decide(s, now); !d.Run || string(d.Spec.Release) != c.wanted || d.Spec.Data != controlplane.Recovery {
			t.Fatalf("%+v: the plane gets %+v, runs: %t", c, d.Spec, d.Run)
		}
		s.Restore.IsExecuted, s.Restore.IsUnfinished = true, true
		s.Restore.Prepared = controlplane.Preparation{}
		s.Plane = controlplane.Observation{State: controlplane.Failing, HasData: true,
			LastStart: controlplane.LastStart{Release: controlplane.Version(c.wanted), Data: controlplane.Recovery},
			Failure: &controlplane.Failure{Reason: controlplane.PlaneFailed, Release: controlplane.Version(c.wanted),
				Count: upgradeTries, Message: "it has ended"}}
		if s.Upgrade = decide(s, now).Report.Upgrade; s.Upgrade.Phase != hypershift.UpgradeFailed {
			t.Fatalf("%+v: after %d failures the upgrade is %+v", c, upgradeTries, s.Upgrade)
		}
		if d = decide(s, now); !d.Run || string(d.Spec.Release) != c.served {
			t.Fatalf("%+v: after the failure the plane gets %+v, runs: %t", c, d.Spec, d.Run)
		}
	}
	for _, served := range []controlplane.Version{"", "1.36.4", "1.35.1"} { // unknown, the same, and one without a program
		d := decide(recovered("1.36.4", served), now)
		if d.Report.Upgrade != nil || !d.Run || d.Spec.Release != "1.36.4" {
			t.Errorf("a plane with %q: upgrade %+v, the plane gets %+v, runs: %t", served, d.Report.Upgrade, d.Spec, d.Run)
		}
	}
}
