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
// among those of bin. Of the values of Helm these are all that nothing here reads. A declaration with a mistake has no
// values of Helm here: Apply refuses it.
func UnappliedValues(d gitops.Declaration, bin Binaries) []Unapplied {
	settings, err := settingsOf(d)
	if err != nil {
		settings = &Settings{Replicas: d.Services.Replicas, Releases: d.Versions.Releases}
	}
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
	v, s := d.Versions, d.Services
	add("versions.images", v.Images, "the region runs the programs of versions.atoll, not images")
	add("versions.charts", v.Charts, "no chart is installed")
	own := bin.releases()
	addReleases := func(what string, declared []string) {
		lacking := slices.DeleteFunc(slices.Clone(declared), func(r string) bool { return slices.Contains(own, r) })
		add(what, lacking, missingReleasesReason(own))
	}
	addReleases("versions.releases", settings.Releases)
	for _, name := range slices.Sorted(maps.Keys(settings.Replicas)) {
		switch n := settings.Replicas[name]; {
		case !slices.Contains(replicatedServices, name):
			add("services.replicas."+name, n, "no service of this name has replicas")
		case n > maxReplicas:
			add("services.replicas."+name, n, fmt.Sprintf("this machine runs %d, the most that it takes", maxReplicas))
		}
	}
	add("services.broker", s.Broker, "the region runs its own broker")
	values := newHelmValues(d.Values)
	values.applyRegion(&Settings{})
	all = append(all, values.unapplied("values.")...)
	for _, c := range d.ManagementClusters {
		addReleases(c.Name+" releases", c.Settings.Releases)
		values := newHelmValues(c.Values)
		values.applyCluster(&ClusterSettings{})
		all = append(all, values.unapplied(c.Name+" values.")...)
	}
	return all
}

// missingReleasesReason returns why declared releases are not offered: it names the releases whose program
// the machine has.
func missingReleasesReason(own []string) string {
	if len(own) == 0 {
		return "this machine has no program of Kubernetes"
	}
	return "this machine has the program of " + strings.Join(own, " and ") + " only"
}
