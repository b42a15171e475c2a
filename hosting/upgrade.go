package hosting

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
)

// Upgrades are the limits of upgrades. The zero value means the defaults.
type Upgrades struct {
	// ReadyLimit is the time from the first start with a release until the plane must be ready; default 3 min.
	ReadyLimit time.Duration
	// Soak is the time after an upgrade in which the plane can go back; default 24 h, negative for none.
	Soak time.Duration
}

// upgradeTries is how often a release may fail to start before the plane goes back.
const upgradeTries = 3

func (u Upgrades) withDefaults() Upgrades {
	if u.ReadyLimit == 0 {
		u.ReadyLimit = 3 * time.Minute
	}
	if u.Soak == 0 {
		u.Soak = 24 * time.Hour
	}
	return u
}

// nextUpgrade returns the state of a plane's upgrade at now; nil: there was none. stored is the state that the status
// shows, and wanted the release of the spec; "" while the spec changes nothing. The function may return the
// pointer stored, and never changes what it points to.
//
// The caller acts on a phase only when it is stored: a kill of hosting at any moment continues the same upgrade.
func nextUpgrade(stored *hypershift.UpgradeStatus, wanted controlplane.Version, p controlplane.Observation, l Upgrades,
	now time.Time) *hypershift.UpgradeStatus {
	next := stored
	if wanted != "" && p.LastStart.Served != "" {
		next = followSpec(stored, wanted, p.LastStart, l, now)
	}
	if next == nil || next.Phase.IsFinal() {
		return next
	}
	after := *next
	advance(&after, p, l, now)
	return &after
}

// followSpec returns the upgrade after the spec's release was read.
func followSpec(u *hypershift.UpgradeStatus, wanted controlplane.Version, last controlplane.LastStart, l Upgrades,
	now time.Time) *hypershift.UpgradeStatus {
	served := last.Served // the version of record
	isOpen := u != nil && !u.Phase.IsFinal()
	goesBack := isOpen && (u.Phase == hypershift.UpgradeRollsBack || u.Phase == hypershift.RollbackFailed)
	// From, started again, may have accepted writes that the copy lacks: the next upgrade makes another copy.
	keepsCopy := isOpen && copyLacksNoWrites(u) && last.Release != served
	switch {
	case isOpen && string(wanted) == u.From && !goesBack:
		return withPhase(u, hypershift.UpgradeRollsBack)
	case isOpen && string(wanted) == u.From:
		return u
	case isOpen && string(wanted) == u.To && goesBack && served == wanted && u.SoakUntil != nil:
		return withPhase(u, hypershift.UpgradeSoaks)
	case isOpen && string(wanted) == u.To && goesBack && (served == wanted || keepsCopy):
		return withPhase(u, hypershift.UpgradeRuns)
	case isOpen && string(wanted) == u.To && !goesBack, wanted == served:
		return u
	}
	begun := newUpgrade(served, wanted, l, now)
	begun.Copy = fmt.Sprintf("upgrade-%d", now.UnixMilli())
	if keepsCopy && u.From == string(served) {
		begun.StartedAt, begun.Copy = u.StartedAt, u.Copy
	}
	return begun
}

// newUpgrade returns an upgrade that begins, without a copy of the data.
func newUpgrade(from, to controlplane.Version, l Upgrades, now time.Time) *hypershift.UpgradeStatus {
	u := &hypershift.UpgradeStatus{From: string(from), To: string(to), Phase: hypershift.UpgradeRuns,
		StartedAt: metav1.NewTime(now.Truncate(time.Second))}
	if minor := minorOf(from); l.Soak > 0 && minor != minorOf(to) && !isEarlier(to, from) {
		u.EmulatedVersion = minor
	}
	return u
}

// isEarlier reports whether a is a version before b.
func isEarlier(a, b controlplane.Version) bool {
	x, errA := version.ParseGeneric(string(a))
	y, errB := version.ParseGeneric(string(b))
	return errA == nil && errB == nil && x.LessThan(y)
}

func withPhase(u *hypershift.UpgradeStatus, phase hypershift.UpgradePhase) *hypershift.UpgradeStatus {
	next := *u
	next.Phase, next.Message, next.LaunchedAt, next.CompletedAt = phase, "", nil, nil
	return &next
}

// copyLacksNoWrites reports whether the status shows no ready plane since the copy was made: then the copy has every
// write that was acknowledged.
func copyLacksNoWrites(u *hypershift.UpgradeStatus) bool {
	return u.Copy != "" && !u.CopyUsed && u.SoakUntil == nil
}

// advance changes an upgrade that has not ended as the plane and the clock demand.
func advance(u *hypershift.UpgradeStatus, p controlplane.Observation, l Upgrades, now time.Time) {
	at := metav1.NewTime(now.Truncate(time.Second))
	runs := orderedRelease(u)
	u.Served = string(p.LastStart.Served)
	if p.State == controlplane.Down { // asleep, or after a restart of the machine: the next start gets the whole limit
		u.LaunchedAt = nil
	}
	hasFailed := p.Failure != nil && p.Failure.Release == runs
	if u.LaunchedAt == nil && (p.Running && p.LastStart.Release == runs || hasFailed) {
		u.LaunchedAt = &at
	}
	isReady := p.State == controlplane.Ready && p.LastStart.Release == runs && p.LastStart.Served == runs
	triesUsedUp := hasFailed && p.Failure.Count >= upgradeTries && p.Failure.Reason != controlplane.PortTaken
	isLate := u.LaunchedAt != nil && !now.Before(u.LaunchedAt.Add(l.ReadyLimit)) && p.State != controlplane.Down
	failure := ""
	switch {
	case isReady || p.State == controlplane.Unready:
	case triesUsedUp:
		failure = p.Failure.Message
	case isLate:
		failure = fmt.Sprintf("it was not ready within %s", l.ReadyLimit)
		if hasFailed {
			failure += ": " + p.Failure.Message
		}
	}
	giveUp := func(phase hypershift.UpgradePhase, message string) {
		u.Phase, u.Message, u.LaunchedAt = phase, message, nil
	}
	switch {
	case u.Phase == hypershift.UpgradeRuns && isReady:
		until := metav1.NewTime(at.Add(max(l.Soak, 0)))
		u.Phase, u.SoakUntil, u.LaunchedAt = hypershift.UpgradeSoaks, &until, nil
	case u.Phase == hypershift.UpgradeRuns && failure != "":
		giveUp(hypershift.UpgradeFailed, fmt.Sprintf("the upgrade to %s failed, and the control plane went back to %s: %s",
			u.To, u.From, failure))
	case u.Phase == hypershift.UpgradeSoaks && !now.Before(u.SoakUntil.Time):
		u.Phase, u.CompletedAt, u.EmulatedVersion = hypershift.UpgradeCompleted, &at, ""
	case u.Phase == hypershift.UpgradeFailed && isReady && (u.CompletedAt == nil || u.Copy != "" && !u.CopyUsed):
		u.CompletedAt = &at
		if !u.CopyUsed { // the plane accepts writes from now on, which the copy lacks
			u.Copy = ""
		}
	case runs == controlplane.Version(u.From) && p.LastStart.Served == runs && triesUsedUp && !isReady &&
		copyLacksNoWrites(u) && p.LastStart.Copy == u.Copy && p.Failure.Reason == controlplane.PlaneFailed:
		// The failed release has changed the data so that the release before cannot use it. A slow start is no such
		// sign.
		u.CopyUsed, u.LaunchedAt = true, nil
		u.Message = strings.TrimPrefix(fmt.Sprintf("%s; %s could not use the data any more and got a copy of before the "+
			"upgrade: writes after %s are lost", u.Message, u.From, u.StartedAt.UTC().Format(time.RFC3339)), "; ")
	case u.Phase == hypershift.UpgradeRollsBack && isReady:
		u.Phase, u.CompletedAt = hypershift.UpgradeRolledBack, &at
	case u.Phase == hypershift.UpgradeRollsBack && failure != "" && string(p.LastStart.Served) == u.To:
		giveUp(hypershift.RollbackFailed, fmt.Sprintf("%s did not become ready, and the control plane went on with %s: %s",
			u.From, u.To, failure))
	}
}

// orderedRelease returns the release that hosting orders the plane to run in the phase of an upgrade.
func orderedRelease(u *hypershift.UpgradeStatus) controlplane.Version {
	switch u.Phase {
	case hypershift.UpgradeFailed, hypershift.UpgradeRollsBack, hypershift.UpgradeRolledBack:
		return controlplane.Version(u.From)
	}
	return controlplane.Version(u.To)
}

// isOpen reports whether the upgrade has not ended: the spec may name the release before, and no key is rotated.
func isOpen(u *hypershift.UpgradeStatus) bool { return u != nil && !u.Phase.IsFinal() }

// minorOf returns 1.35 of 1.35.4, and "" of text that is no version.
func minorOf(v controlplane.Version) string {
	parsed, err := version.ParseGeneric(string(v))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d.%d", parsed.Major(), parsed.Minor())
}

// sameUpgrade reports whether two states order the same of the plane.
func sameUpgrade(a, b *hypershift.UpgradeStatus) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.From == b.From && a.To == b.To && a.Phase == b.Phase && a.CopyUsed == b.CopyUsed && a.Copy == b.Copy
}

// timeToNextUpgradeDecision returns the time to the next decision about an upgrade; 0: only a change leads to it.
func timeToNextUpgradeDecision(u *hypershift.UpgradeStatus, l Upgrades, now time.Time) time.Duration {
	switch {
	case u == nil || u.Phase.IsFinal():
		return 0
	case u.Phase == hypershift.UpgradeSoaks:
		return max(u.SoakUntil.Sub(now), time.Millisecond)
	case u.LaunchedAt != nil && now.Before(u.LaunchedAt.Add(l.ReadyLimit)):
		return u.LaunchedAt.Add(l.ReadyLimit).Sub(now)
	}
	return 0
}

// decideUpgrade changes the plane of a decision as the stored upgrade demands. next is the upgrade after this decision.
func (d *decision) decideUpgrade(s situation, next *hypershift.UpgradeStatus, now time.Time) {
	u, last := s.Upgrade, s.Plane.LastStart
	d.Report.Upgrade = next
	d.Again = earlier(d.Again, timeToNextUpgradeDecision(next, s.Upgrades, now))
	if !sameUpgrade(u, next) {
		d.Again = earlier(d.Again, confirmInterval) // after the status has it
	}
	switch {
	case s.Refused != nil: // the plane goes on as it was
		d.Spec.Copy = last.Copy
	case u != nil && !u.Phase.IsFinal():
		d.Spec.Release, d.Spec.EmulatedVersion, d.Spec.Copy = orderedRelease(u), "", u.Copy
		if d.Spec.Release == controlplane.Version(u.To) {
			d.Spec.EmulatedVersion = u.EmulatedVersion
		}
		if u.CopyUsed && !last.HasRestored(u.Copy) { // once: a later restore replaces the copy
			d.Spec.Data = u.Copy
		}
	}
	if next == nil || d.Report.Refused != nil {
		return
	}
	switch next.Phase {
	case hypershift.UpgradeFailed:
		d.Report.Refused = &refusal{string(cluster.ReasonUpgradeFailed), next.Message}
	case hypershift.RollbackFailed:
		d.Report.Refused = &refusal{string(cluster.ReasonRollbackFailed), next.Message}
	}
}
