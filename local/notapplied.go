package local

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"atoll.dev/gitops"
)

// Unapplied is a declared value that has no effect on a region on one machine.
type Unapplied struct {
	What     string `json:"what"` // the key, for a management cluster after its name
	Declared string `json:"declared"`
	Reason   string `json:"reason"`
}

// UnappliedValues returns the declared values that Apply does not apply, so that nobody takes them for applied. Values
// that the configuration sets for every region are among them. Of declared releases these are all whose program is not
// among those of bin.
func UnappliedValues(d gitops.Declaration, bin Binaries) []Unapplied {
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
	own := bin.releases()
	addReleases := func(what string, declared []string) {
		lacking := slices.DeleteFunc(slices.Clone(declared), func(r string) bool { return slices.Contains(own, r) })
		add(what, lacking, reasonOfLackedReleases(own))
	}
	addReleases("versions.releases", v.Releases)
	for _, name := range slices.Sorted(maps.Keys(s.Replicas)) {
		switch n := s.Replicas[name]; {
		case !slices.Contains(replicatedServices, name):
			add("services.replicas."+name, n, "no service of this name has replicas")
		case n > maxReplicas:
			add("services.replicas."+name, n, fmt.Sprintf("this machine runs %d, the most that it takes", maxReplicas))
		}
	}
	add("services.broker", s.Broker, "the region runs its own broker")
	for _, c := range d.ManagementClusters {
		addReleases(c.Name+" releases", c.Settings.Releases)
	}
	return all
}

// reasonOfLackedReleases says which releases the region has in the place of those that it lacks.
func reasonOfLackedReleases(own []string) string {
	if len(own) == 0 {
		return "this machine has no program of Kubernetes"
	}
	return "this machine has the program of " + strings.Join(own, " and ") + " only"
}
