package hosting

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/hypershift"
	"atoll.dev/api/rotation"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// TestDecide reads testdata/decide. Each case is one situation of the cluster
// hc-a at 12:00, by words of its first lines; its output is the decision:
//
//	decide
//	WORD...             as describe reads them; without any: a new cluster
//	----
//	run|sleep SPEC      the order to the runtime
//	route ...           the router's entry, or none
//	report ...          what status is computed from; "ok" without anything unusual
//	again=TIME          when time alone changes the decision
func TestDecide(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "decide" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			s := newSituation()
			for _, word := range strings.Fields(d.Input) {
				if err := s.describe(word); err != nil {
					d.Fatalf(t, "%s: %v", word, err)
				}
			}
			decided := decide(s, powerZero)
			decided.Report.Plane = s.Plane
			return show(decided)
		})
	})
}

// newSituation returns the situation of a new cluster.
func newSituation() situation {
	hc := &hypershift.HostedCluster{}
	hc.Name, hc.Namespace, hc.Generation = "hc-a", "clusters-a", 1
	hc.Spec.KubeAPIServerDNSName, hc.Spec.Release.Image = "a.example", cluster.ReleaseImage("1.36.3")
	return situation{
		Cluster: hc, Plane: controlplane.Observation{State: controlplane.Down}, Uses: map[string]use{},
		Releases: Releases{"1.36.3", "1.36.4", "1.37.0", "1.38.0"}, Idle: idleInTests,
		Upgrades: Upgrades{}.withDefaults(),
	}
}

// describe changes the situation as a word of a case describes.
func (s *situation) describe(word string) error {
	key, value, _ := strings.Cut(word, "=")
	switch key {
	// The HostedCluster.
	case "release":
		s.Cluster.Spec.Release.Image = cluster.ReleaseImage(value)
	case "image":
		s.Cluster.Spec.Release.Image = value
	case "name":
		s.Cluster.Spec.KubeAPIServerDNSName = value
	case "services":
		s.Cluster.Spec.Networking.ServiceNetwork = []hypershift.NetworkEntry{{CIDR: value}}
	case "paused-until":
		s.Cluster.Spec.PausedUntil = &value
	case "hibernated":
		s.Cluster.Annotations = map[string]string{hypershift.HibernatedAnnotation: "true"}
	case "unreadable":
		s.Invalid = errors.New("spec.networking is no object")
	case "status-completed":
		s.Cluster.Status.Version = &hypershift.ClusterVersionStatus{
			History: []hypershift.UpdateHistory{{State: hypershift.Completed}},
		}
	// The plane.
	case "started": // with this release once, and ready then
		s.Plane.LastStart = controlplane.LastStart{
			Release: controlplane.Version(value), ServerNames: []string{"a.example"}, ServiceCIDR: "10.96.0.0/16", WasReady: true,
			Served: controlplane.Version(value),
		}
		s.Plane.Backend, s.Plane.HasData = "127.0.0.1:30000", true
		s.Cluster.Status.KubeConfig = &hypershift.LocalObject{Name: "a-admin-kubeconfig"}
	case "no-kubeconfig": // hosting could not write it yet
		s.Cluster.Status.KubeConfig = nil
	case "never-ready":
		s.Plane.LastStart.WasReady, s.Plane.LastStart.Served = false, ""
	case "started-names":
		s.Plane.LastStart.ServerNames = strings.Split(value, ",")
	case "running":
		s.Plane.State, s.Plane.Running, s.Plane.HasData = controlplane.Starting, true, false
	case "ready":
		s.Plane.State, s.Plane.Running, s.Plane.HasData = controlplane.Ready, true, false
		s.Plane.ReadySince = powerZero.Add(-time.Hour)
	case "data-missing":
		s.Plane.HasData = false
	case "upgrade": // PHASE:FROM:TO, begun ten minutes ago
		parts := strings.Split(value, ":")
		soak := metav1.NewTime(powerZero.Add(time.Hour))
		s.Upgrade = &hypershift.UpgradeStatus{Phase: hypershift.UpgradePhase(parts[0]), From: parts[1], To: parts[2],
			StartedAt: metav1.NewTime(powerZero.Add(-10 * time.Minute)), Copy: "upgrade-1"}
		if p := s.Upgrade.Phase; p != hypershift.UpgradeRuns && p != hypershift.UpgradeFailed {
			s.Upgrade.SoakUntil = &soak
		}
		if from := controlplane.Version(parts[1]); minorOf(from) != minorOf(controlplane.Version(parts[2])) {
			s.Upgrade.EmulatedVersion = minorOf(from)
		}
	case "soaked":
		s.Upgrade.SoakUntil = &metav1.Time{Time: powerZero}
	case "launched":
		ago, err := time.ParseDuration(value)
		s.Upgrade.LaunchedAt = &metav1.Time{Time: powerZero.Add(-ago)}
		return err
	case "no-copy":
		s.Upgrade.Copy = ""
	case "data":
		s.Plane.LastStart.Data = value
	case "past-data":
		s.Plane.LastStart.PastData = []string{value}
	case "copy-used":
		s.Upgrade.CopyUsed = true
	case "served": // an earlier release; that of started was not ready yet
		s.Plane.LastStart.Served = controlplane.Version(value)
	case "has-copy":
		s.Plane.LastStart.Copy = "upgrade-1"
	case "failing": // RELEASE:COUNT
		release, text, _ := strings.Cut(value, ":")
		count, err := strconv.Atoi(text)
		s.Plane.State, s.Plane.Running = controlplane.Failing, false
		s.Plane.Failure = &controlplane.Failure{Reason: controlplane.PlaneFailed, Message: "it ended", Count: count,
			Release: controlplane.Version(release)}
		return err
	// Rotations of keys: KEY:ID:STEP.
	case "rotated": // by the last start
		kind, of, err := splitRotation(value)
		s.Plane.LastStart.Rotations = s.Plane.LastStart.Rotations.With(kind, of)
		return err
	case "rotate": // ordered
		kind, of, err := splitRotation(value)
		s.Rotations = append(s.Rotations, orderedRotation{Key: kind,
			Order: rotation.Order{ID: of.ID, Step: rotation.Step(of.Step)}})
		return err
	case "shown": // phase of the last ordered rotation in the status
		r := &s.Rotations[len(s.Rotations)-1]
		r.Shown = rotation.Phase(value)
		r.CanComplete = r.Shown == rotation.Prepared
	// Moves.
	case "leaves": // STATE
		s.Move = &move{Order: hypershift.MoveOrder{ID: "m1", Role: hypershift.MoveLeaves},
			Leaving: controlplane.Leaving{State: controlplane.LeavingState(value), Endpoint: "127.0.0.1:2"}}
	case "arrives": // the data is prepared; the plane has run with this release elsewhere
		d := &controlplane.Departure{}
		d.Served, d.Release = controlplane.Version(value), controlplane.Version(value)
		s.Restore = &restore{Order: hypershift.RestoreOrder{ID: controlplane.ArrivalOrder("m1")}, IsRecovery: true,
			IsArrival: true, Prepared: controlplane.Preparation{State: controlplane.PreparationDone, Departure: d}}
	case "recovers": // the data is prepared; the plane had executed this order
		d := &controlplane.Departure{}
		d.PastData = []string{value}
		s.Restore = &restore{Order: hypershift.RestoreOrder{ID: controlplane.Recovery}, IsRecovery: true,
			Prepared: controlplane.Preparation{State: controlplane.PreparationDone, Departure: d}}
	case "brings-upgrade": // PHASE:FROM:TO
		var other situation
		if err := other.describe("upgrade=" + value); err != nil {
			return err
		}
		s.Restore.Prepared.Departure.Shown = departingStatus(hypershift.HostedClusterStatus{Upgrade: other.Upgrade})
	case "brings-restore": // ID:PHASE
		id, phase, _ := strings.Cut(value, ":")
		s.Restore.Prepared.Departure.Shown = departingStatus(hypershift.HostedClusterStatus{
			Restore: &hypershift.RestoreStatus{ID: id, Phase: hypershift.RestorePhase(phase)}})
	case "ordered-restore":
		s.Cluster.Annotations = map[string]string{
			hypershift.RestoreAnnotation: fmt.Sprintf(`{"id":%q,"at":"2026-11-23T05:00:00Z"}`, value)}
	case "status-restore":
		s.Shown = &hypershift.RestoreStatus{ID: value, Phase: hypershift.RestoreFailed}
	// The rest.
	case "refused":
		s.Refused = &controlplane.Failure{Reason: controlplane.BinaryMissing, Message: "no program"}
	case "name-taken":
		s.NameTaken = true
	case "seen-awake":
		s.Hibernation = hibernation{Seen: true}
	case "seen-hibernated":
		s.Hibernation = hibernation{Seen: true, Wanted: true, Ordered: powerZero.Add(-30 * time.Minute)}
	case "waiting":
		n, err := strconv.Atoi(value)
		s.Demand = demand{Waiting: n, Asked: powerZero.Add(-time.Minute)}
		return err
	case "asked":
		ago, err := time.ParseDuration(value)
		s.Demand.Asked = powerZero.Add(-ago)
		return err
	case "open":
		n, err := strconv.Atoi(value)
		s.Uses["a.example"] = use{Open: n}
		return err
	case "closed":
		s.RouteClosed = true
	default:
		return errors.New("unknown word")
	}
	return nil
}

// splitRotation splits a text such as encryption:r1:prepare.
func splitRotation(text string) (rotation.Key, rotation.Order, error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return "", rotation.Order{}, fmt.Errorf("%q is no rotation", text)
	}
	return rotation.Key(parts[0]), rotation.Order{ID: parts[1],
		Step: rotation.Step(parts[2])}, nil
}

func show(d decision) string {
	var b strings.Builder
	order := "sleep"
	if d.Run {
		order = fmt.Sprintf(
			"run %s as %s, services %s",
			d.Spec.Release,
			strings.Join(d.Spec.ServerNames, ","),
			d.Spec.ServiceCIDR,
		)
		for _, k := range rotation.Keys {
			if r := d.Spec.Rotations.Of(k); r.ID != "" {
				order += fmt.Sprintf(", %s key of %s %s", k, r.ID, r.Step)
			}
		}
	}
	for _, part := range []struct{ name, value string }{
		{"emulating", d.Spec.EmulatedVersion}, {"copy", strings.TrimRight(d.Spec.Copy, "0123456789")}, {"data", d.Spec.Data},
	} {
		if part.value != "" {
			order += ", " + part.name + " " + part.value
		}
	}
	fmt.Fprintln(&b, order)
	if d.Route.ServerName == "" {
		fmt.Fprintln(&b, "route none")
	} else {
		fmt.Fprintf(&b, "route %s to %q", d.Route.ServerName, d.Route.Backend)
		if d.Route.Asleep {
			fmt.Fprint(&b, " asleep")
		}
		fmt.Fprintln(&b)
	}
	r := d.Report
	fmt.Fprintf(&b, "report %s", r.Power)
	if r.Release != "" {
		fmt.Fprintf(&b, " release=%s", r.Release)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, " problem=%q", p)
	}
	if r.Refused != nil {
		fmt.Fprintf(&b, " refused=%q", r.Refused.Message)
	}
	if r.Paused {
		fmt.Fprint(&b, " paused")
	}
	if r.PauseError != nil {
		fmt.Fprintf(&b, " pause-error=%q", r.PauseError)
	}
	if r.Delayed != "" {
		fmt.Fprintf(&b, " delayed=%q", r.Delayed)
	}
	if r.Failure != nil {
		fmt.Fprintf(&b, " failure=%s", r.Failure.Reason)
	}
	fmt.Fprintln(&b)
	if u := r.Upgrade; u != nil {
		fmt.Fprintf(&b, "upgrade %s from %s to %s", u.Phase, u.From, u.To)
		switch {
		case u.CopyUsed:
			fmt.Fprint(&b, " with the copy")
		case u.Copy == "":
			fmt.Fprint(&b, " without a copy")
		case u.Copy != "upgrade-1":
			fmt.Fprint(&b, " with a new copy")
		}
		if u.Message != "" {
			fmt.Fprintf(&b, ": %s", u.Message)
		}
		fmt.Fprintln(&b)
	}
	if r.Brought != nil {
		fmt.Fprintf(&b, "restore %s is %s", r.Brought.ID, r.Brought.Phase)
		if r.Brought.Message != "" {
			fmt.Fprintf(&b, ": %s", r.Brought.Message)
		}
		fmt.Fprintln(&b)
	}
	for _, order := range r.Rotations {
		before := hypershift.RotationStatus{ID: order.Order.ID, Phase: order.Shown}
		if s := order.status(before, r, powerZero); isOpen(r.Upgrade) {
			fmt.Fprintf(&b, "rotation of the %s key %s: %s\n", order.Key, s.Phase, s.Message)
		}
	}
	if d.Hibernation.Wanted && !d.Hibernation.Ordered.IsZero() {
		fmt.Fprintf(&b, "hibernation ordered %s ago\n", powerZero.Sub(d.Hibernation.Ordered))
	}
	if d.Again > 0 {
		fmt.Fprintf(&b, "again=%s\n", d.Again)
	}
	return b.String()
}
