package hosting

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/router"
)

// blockedRetry is the time to the next decision about a cluster that waits for a file
// of this machine: a program, or the plane's data.
const blockedRetry = time.Second

// situation is the input of decide: one hosted cluster at one moment.
type situation struct {
	Cluster *hypershift.HostedCluster
	Invalid error // the spec cannot be decoded; only the metadata of Cluster is set
	Plane   controlplane.Observation
	// Refused is the runtime's last refusal to replace the running plane by the
	// plane of the spec; nil without one.
	Refused   *controlplane.Failure
	NameTaken bool // another cluster has the server name
	// Superseded: another management cluster has the plane; this one never runs it again.
	Superseded bool
	// Move is the order to move the plane; nil: there is none.
	Move *move
	// Restore is the last order of a restore; nil: there is none. Shown is the last one in the status; nil: none.
	Restore   *restore
	Shown     *hypershift.RestoreStatus
	Rotations []orderedRotation // the last orders of rotations
	// Upgrade is the last upgrade as the status shows it; nil: there was none.
	Upgrade     *hypershift.UpgradeStatus
	Upgrades    Upgrades
	Hibernation hibernation
	Demand      demand
	Nodes       int // ordered for all node pools
	// RouteClosed: the router sends no connection to the plane any more, and Uses was
	// read after the router had confirmed that.
	RouteClosed bool
	Uses        map[string]use // by server name: the spec's, and those of the last start

	Releases Releases
	Endpoint hypershift.APIEndpoint
	Idle     time.Duration // without use, before a hibernated plane stops
}

// hibernation is the part of a decision that later decisions use.
type hibernation struct {
	Seen    bool      // this process has decided about the cluster before
	Wanted  bool      // the cluster's annotation orders sleep until use
	Ordered time.Time // when Wanted became true; zero: before this process knew the cluster
}

// demand counts the calls of Wake for a plane.
type demand struct {
	Waiting int       // calls that wait for the plane
	Asked   time.Time // beginning or end of the last call
}

// use counts the connections to a server name through the router.
type use struct {
	Open int       // connections, held ones included
	Last time.Time // end of the last connection; earlier connections are unknown
}

// decision is the result of decide.
type decision struct {
	Hibernation hibernation
	Run         bool              // Ensure(Spec); else Sleep
	Spec        controlplane.Spec // of the running plane, or of the next one
	Route       router.Route      // zero: the cluster has none
	Forward     string            // the route's backend, when that is the router of another management cluster
	Report      report            // for the status, without observations after the order
	Again       time.Duration     // time to the next decision at the latest; 0: after the next change
}

// decide returns the decision about one hosted cluster at now. It is a pure function:
// Hosting.gather collects the situation, Hosting.decideAndOrder executes the decision.
//
// A spec that is invalid, refused or paused changes nothing: the plane runs as at its
// last start, and the report has the reason.
func decide(s situation, now time.Time) decision {
	var d decision
	wantedName := serverName(s.Cluster)
	d.Report, d.Again = judgeSpec(s, wantedName, now)
	d.Report.Generation, d.Report.Endpoint, d.Report.Order = s.Cluster.Generation, s.Endpoint, s.Restore
	d.Report.Rotations, d.Report.Move = s.Rotations, s.Move
	d.Spec = wantedSpec(s, wantedName, d.Report.Release)
	c := d.decideChanges(s, now)
	d.Report.Release = d.Spec.Release
	d.Report.Image = cluster.ReleaseImage(string(d.Spec.Release))
	dataMissing := !c.ReplacesData && s.lacksData()
	if dataMissing { // a new plane would be empty and call itself available
		d.Report.Failure = &controlplane.Failure{
			Reason:  controlplane.DataMissing,
			Message: "the plane has run before, and its data is not in hosting's data directory",
		}
		d.Again = earlier(d.Again, blockedRetry)
	}
	p := d.decidePower(s, c, now)
	if s.isAway() {
		d.reportAway(s)
	}
	d.Run = p.Run && d.Spec.Release != "" && !dataMissing && !s.isAway() &&
		(c.ReplacesData || !s.Restore.needsDataToStart(s.Plane.LastStart))
	d.decideRoute(s, router.Route{
		ServerName: c.ServerName, Backend: s.Plane.Backend,
		// Connections wait while the data or keys are replaced.
		Asleep: p.Shut || c.ReplacesDataOrKeys || c.IsUnfinished && s.Plane.ReadySince.IsZero(),
	})
	return d
}

// wantedSpec returns the plane of the cluster's spec, with the data and keys of the last start.
func wantedSpec(s situation, name string, release controlplane.Version) controlplane.Spec {
	last := s.Plane.LastStart
	return controlplane.Spec{
		Name: s.Cluster.Name, Release: release, ServerNames: []string{name},
		ServiceCIDR: cmp.Or(serviceCIDR(s.Cluster.Spec), cluster.DefaultServiceNetwork),
		Data:        last.Data, Rotations: last.Rotations,
		Size: cluster.Size(s.Cluster.Labels[hypershift.SizeLabel]), Nodes: s.Nodes,
	}
}

// changes are what decideChanges has decided, besides the spec and the report.
type changes struct {
	ServerName         string // of connections to the plane
	ReplacesData       bool   // the plane gets the data of a prepared restore
	ReplacesDataOrKeys bool
	IsUnfinished       bool // a restore or a step of a rotation has begun and is not reported as done
}

// decideChanges decides which of the changes of the spec, the upgrade, the restore and the rotations the plane of
// d.Spec gets now. It takes the others out of d.Spec, and the report has the reason.
func (d *decision) decideChanges(s situation, now time.Time) changes {
	r, last := &d.Report, s.Plane.LastStart
	next := nextUpgrade(s.Upgrade, d.decideNextRelease(s), s.Plane, s.Upgrades, now)
	arrival := arrivalOf(s, r.Release, now)
	if s.Upgrade == nil && arrival.Upgrade != nil {
		next = arrival.Upgrade
	}
	if s.Shown == nil {
		r.Brought = arrival.Restore
	}
	c := changes{ServerName: d.Spec.ServerNames[0], ReplacesData: s.Restore.isPrepared()}
	// The copy of an upgrade may need every key of before it, so no step of a rotation begins until the upgrade has
	// ended.
	rotates := last.WasReady && !c.ReplacesData && !s.Restore.isUnfinished() && !isOpen(s.Upgrade)
	// Before a change of the upgrade is in the status, the plane does not get the names either: the runtime may refuse
	// the release.
	isHeld := r.Failure != nil || r.forbidsChanges() || !sameUpgrade(s.Upgrade, next) || r.Brought != nil
	if isHeld || r.Delayed != "" || isArriving(last) {
		d.Spec.Release, d.Spec.ServerNames = last.Release, last.ServerNames
		d.Spec.EmulatedVersion = last.EmulatedVersion
		c.ReplacesData, rotates = c.ReplacesData && !isHeld, false
		if len(last.ServerNames) > 0 {
			c.ServerName = last.ServerNames[0]
		}
	}
	if arrival.Release != "" && c.ReplacesData {
		d.Spec.Release, d.Spec.EmulatedVersion = arrival.Release, ""
	}
	d.decideUpgrade(s, next, now)
	if r.Brought != nil {
		d.Again = earlier(d.Again, confirmInterval) // after the status has it
	}
	if c.ReplacesData {
		d.Spec.Data = s.Restore.Order.ID
	}
	if c.ReplacesData && s.Restore.IsArrival && s.Restore.Prepared.Departure != nil {
		d.Spec.Rotations = s.Restore.Prepared.Departure.Rotations
	}
	if rotates {
		d.Spec.Rotations = rotationsAtNextStart(s.Rotations, last.Rotations)
	}
	c.ReplacesDataOrKeys = c.ReplacesData || d.Spec.Rotations != last.Rotations
	c.IsUnfinished = s.Restore.isUnfinished() || s.isRotating()
	return c
}

// decideNextRelease returns the release to which the next upgrade goes; "" while none may begin. The report has the
// reason.
func (d *decision) decideNextRelease(s situation) controlplane.Version {
	r, last := &d.Report, s.Plane.LastStart
	wanted := r.Release
	if r.forbidsChanges() {
		wanted = ""
	} else if s.Refused != nil {
		r.Failure = s.Refused
		d.Again = earlier(d.Again, blockedRetry)
	}
	if s.isRotating() && !isOpen(s.Upgrade) && wanted != "" && wanted != last.Served {
		r.Delayed = fmt.Sprintf("the upgrade to %s waits until a step of the rotation of a key is done", wanted)
		wanted = ""
	}
	if isArriving(last) || s.Move.mustStop() { // it begins when the plane has been ready where it has moved to
		wanted = ""
	}
	return wanted
}

// decidePower decides whether the plane sleeps.
func (d *decision) decidePower(s situation, c changes, now time.Time) powerDecision {
	d.Hibernation = s.Hibernation.next(s.Cluster, now)
	demand := powerOf(s, d.Hibernation, c.ServerName, now)
	// A hibernated plane wakes for the replacement of its data or keys, and sleeps when it has been ready.
	demand.Hibernated = demand.Hibernated && !c.ReplacesDataOrKeys && !c.IsUnfinished &&
		!awaitNodes(s.Rotations, s.Plane.LastStart.Rotations)
	p := demand.decide(now, s.Idle)
	d.Again = earlier(d.Again, p.Again)
	d.Report.Power = p.State
	return p
}

// reportAway writes into the report why the plane does not run on this management cluster any more.
func (d *decision) reportAway(s situation) {
	if s.Move.mustStop() {
		d.Report.Failure = s.Move.failure()
		if !s.Move.hasLeft() {
			d.Again = earlier(d.Again, blockedRetry)
		}
		return
	}
	d.Report.Failure = &controlplane.Failure{Reason: controlplane.MovedAway,
		Message: "another management cluster, or a copy of this one's disk, has the plane; this one never runs it again"}
}

// decideRoute decides where connections to the plane go. here is the route to the plane on this management cluster.
func (d *decision) decideRoute(s situation, here router.Route) {
	switch {
	case s.Move.hasLeft():
		d.Forward = s.Move.Leaving.Endpoint
		d.Route = router.Route{ServerName: here.ServerName, Backend: d.Forward}
	case s.Move.mustStop(): // connections wait until the other side can answer them
		d.Route = router.Route{ServerName: here.ServerName, Asleep: true}
	case s.Superseded: // another management cluster has the plane
	case len(s.Plane.LastStart.ServerNames) > 0 || d.Spec.Release != "": // otherwise there was never a plane here
		d.Route = here
	}
}

// isRotating reports whether a step of a rotation has begun and is not reported as done.
func (s situation) isRotating() bool {
	return haveUnreportedStep(s.Rotations, s.Plane.LastStart.Rotations)
}

// isAway reports whether another management cluster has the plane, or gets it.
func (s situation) isAway() bool { return s.Superseded || s.Move.mustStop() }

// lacksData reports whether the plane has run before and its data is lost.
func (s situation) lacksData() bool {
	return !s.Plane.Running && !s.Plane.HasData && (s.Plane.LastStart.WasReady || wasCompleted(s.Cluster.Status))
}

// judgeSpec checks the spec. again is the time until a pause ends by itself; 0: it does
// not.
func judgeSpec(s situation, wantedName string, now time.Time) (r report, again time.Duration) {
	if s.Invalid != nil {
		r.Problems = []string{s.Invalid.Error()}
		return r, 0
	}
	last := s.Plane.LastStart
	r.Problems = problems(s.Cluster.Spec, last.ServiceCIDR)
	if s.NameTaken {
		r.Problems = append(r.Problems, fmt.Sprintf("spec.kubeAPIServerDNSName: %s is another cluster's", wantedName))
	}
	r.Paused, again, r.PauseError = paused(s.Cluster.Spec.PausedUntil, now)
	dataOf := last.Served
	if isOpen(s.Upgrade) && s.Cluster.Spec.Release.Image == cluster.ReleaseImage(s.Upgrade.From) {
		dataOf = ""
	}
	r.Release, r.Refused = s.Releases.pick(s.Cluster.Spec.Release.Image, dataOf)
	return r, again
}

// next returns the hibernation after a decision about hc at now.
func (h hibernation) next(hc *hypershift.HostedCluster, now time.Time) hibernation {
	wanted := hc.Annotations[hypershift.HibernatedAnnotation] == "true"
	if wanted && !h.Wanted && h.Seen {
		h.Ordered = now
	}
	h.Wanted, h.Seen = wanted, true
	return h
}

// powerOf returns the part of a situation that decides whether the plane runs.
func powerOf(s situation, h hibernation, route string, now time.Time) power {
	u := s.Uses[route]
	p := power{
		Hibernated: h.Wanted, Ordered: h.Ordered, Running: s.Plane.Running, Ready: s.Plane.ReadySince,
		HasBeenReady: s.Plane.LastStart.WasReady && s.Cluster.Status.KubeConfig != nil,
		Asked:        s.Demand.Asked, Open: u.Open, Last: u.Last, Closed: s.RouteClosed,
	}
	if s.Demand.Waiting > 0 {
		p.Open, p.Asked = p.Open+s.Demand.Waiting, now
	}
	return p
}

// earlier returns the shorter of two times, of which 0 means never.
func earlier(a, b time.Duration) time.Duration {
	if a <= 0 || b > 0 && b < a {
		return max(b, 0)
	}
	return a
}

// wasCompleted reports whether a status shows a plane that has been ready once.
func wasCompleted(s hypershift.HostedClusterStatus) bool {
	return s.Version != nil && slices.ContainsFunc(s.Version.History, func(u hypershift.UpdateHistory) bool {
		return u.State == hypershift.Completed
	})
}
