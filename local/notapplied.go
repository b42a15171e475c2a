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

// UnappliedValues returns the declared values that Apply does not apply, so that nobody takes them for applied. Values
// that the configuration sets for every region are among them.
func UnappliedValues(d gitops.Declaration) []Unapplied {
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
	add("versions.releases", v.Releases, "customers may choose the releases of this program")
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
		add(c.Name+" releases", c.Settings.Releases, "it runs the release of this program")
	}
	return all
}
