package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"atoll.dev/gitops"
)

// Unapplied is a declared value that has no effect on a region on one machine.
type Unapplied struct {
	What     string `json:"what"` // the key, for a management cluster after its name
	Declared string `json:"declared"`
	Reason   string `json:"reason"`
}

// OwnRelease returns the release of Kubernetes whose program this machine has, as 1.36.3. It is "" when there is no
// program. A region on this machine offers its customers this release and no other.
func OwnRelease() string {
	bin, err := FindBinaries()
	if err != nil {
		return ""
	}
	return bin.KubeVersion
}

// UnappliedValues returns the declared values that Apply does not apply, so that nobody takes them for applied. Values
// that the configuration sets for every region are among them. Of declared releases these are all but the own one.
func UnappliedValues(d gitops.Declaration, ownRelease string) []Unapplied {
	all := []Unapplied{}
	add := func(what string, declared any, reason string) {
		text, err := json.Marshal(declared)
		if err != nil {
			text = fmt.Append(nil, declared)
		}
		if slices.Contains([]string{`""`, "null", "[]", "{}"}, string(text)) {
			return // nothing is declared
		}
		all = append(all, Unapplied{what, string(text), reason})
	}
	const ownVersion = "the region runs the versions of this program"
	v, s := d.Versions, d.Services
	add("versions.atoll", v.Atoll, ownVersion)
	add("versions.images", v.Images, ownVersion)
	add("versions.charts", v.Charts, "no chart is installed")
	addReleases := func(what string, declared []string) {
		add(what, releasesLackedHere(declared, ownRelease), reasonOfLackedReleases(declared, ownRelease))
	}
	addReleases("versions.releases", v.Releases)
	for _, name := range slices.Sorted(maps.Keys(s.Replicas)) {
		if n := s.Replicas[name]; n != 1 {
			add("services.replicas."+name, n, "each service has one process")
		}
	}
	add("services.broker", s.Broker, "the region runs its own broker")
	add("services.traces", s.Traces, "`atoll up --traces URL` sets it")
	if s.PlacementShownTo != "operators" {
		add("services.placementShownTo", s.PlacementShownTo, "the names of management clusters are shown to operators")
	}
	for _, c := range d.ManagementClusters {
		add(c.Name+" capacity", c.Settings.Capacity, "it has a share of this machine")
		addReleases(c.Name+" releases", c.Settings.Releases)
	}
	return all
}

// releasesLackedHere returns the declared releases whose program this machine does not have.
func releasesLackedHere(declared []string, ownRelease string) []string {
	return slices.DeleteFunc(slices.Clone(declared), func(release string) bool { return release == ownRelease })
}

// reasonOfLackedReleases says which release the region has in the place of those that it lacks.
func reasonOfLackedReleases(declared []string, ownRelease string) string {
	switch {
	case ownRelease == "":
		return "this machine has no program of Kubernetes"
	case slices.Contains(declared, ownRelease):
		return "this machine has the program of " + ownRelease + " only"
	}
	return "this machine has the program of " + ownRelease + " only, which is offered although it is not declared"
}
