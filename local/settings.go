package local

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/gitops"
)

// maxReplicas is the largest number of processes of a service on one machine: each has about 70 MiB.
const maxReplicas = 4

// Settings are the declared settings of the region's processes and management clusters.
type Settings struct {
	Releases         []string                                      `json:"releases,omitempty"` // [] is the own release
	Replicas         map[string]int64                              `json:"replicas,omitempty"` // by service
	Traces           string                                        `json:"traces,omitempty"`
	PlacementShownTo string                                        `json:"placement_shown_to,omitempty"`
	Clusters         map[cluster.ManagementCluster]ClusterSettings `json:"management_clusters,omitempty"`
}

// ClusterSettings are the declared limits of a management cluster.
type ClusterSettings struct {
	Capacity map[string]int64 `json:"capacity,omitempty"`
	Releases []string         `json:"releases,omitempty"` // [] is the own release
}

// settingsOf returns the settings of a declaration.
func settingsOf(d gitops.Declaration) *Settings {
	s := &Settings{Releases: d.Versions.Releases, Replicas: d.Services.Replicas, Traces: d.Services.Traces,
		PlacementShownTo: d.Services.PlacementShownTo, Clusters: map[cluster.ManagementCluster]ClusterSettings{}}
	for _, c := range d.ManagementClusters {
		s.Clusters[cluster.ManagementCluster(c.Name)] = ClusterSettings{c.Settings.Capacity, c.Settings.Releases}
	}
	return s
}

// declaredSettings returns the settings of the declaration, and empty ones for a region that `atoll up` made.
func (st State) declaredSettings() Settings {
	if st.Settings == nil {
		return Settings{}
	}
	return *st.Settings
}

// replicatedServices are the services that can have several processes.
var replicatedServices = []string{maestroName, clmName, platformName, adapterName}

// replicas returns the number of processes of a service.
func (s Settings) replicas(service string) int {
	return int(min(max(s.Replicas[service], 1), maxReplicas))
}

// replica is one process of a service.
type replica struct {
	service string
	number  int // from 1
}

// name is the name of the process, such as clm for the first and clm-2 for the second.
func (r replica) name() string {
	if r.number == 1 {
		return r.service
	}
	return fmt.Sprintf("%s-%d", r.service, r.number)
}

func (r replica) opsPort() string { return r.name() + "-ops" }

// after returns the processes that must be ready before the replica starts. The first has created the tables.
func (r replica) after(others ...string) []string {
	if r.number > 1 {
		others = append(others, r.service)
	}
	return others
}

// replicas returns the processes of a service that has an API on a port, or none.
func (t topology) replicas(service string, spec func(replica) Spec) (specs []Spec) {
	for number := range t.st.declaredSettings().replicas(service) {
		specs = append(specs, spec(replica{service, number + 1}))
	}
	return specs
}

// sharingPorts lets the replicas of a declared region listen on the same ports. The last port, that of health and
// metrics, is the process's own.
func (t topology) sharingPorts(s Spec) Spec {
	if t.st.Settings == nil {
		return s
	}
	last := len(s.Ports) - 1
	s.SharedPorts, s.Ports = s.Ports[:last], s.Ports[last:]
	s.Args = append(s.Args, "--share-ports")
	return s
}

// traces returns the URL of the collector that gets the spans, "" for none.
func (st State) traces() string { return cmp.Or(st.declaredSettings().Traces, st.Traces) }

// releases returns the releases whose program this machine has.
func (b Binaries) releases() []string {
	if b.KubeVersion == "" {
		return nil
	}
	return []string{b.KubeVersion}
}

// selectReleases returns the declared releases whose program the machine has. Without declared ones it returns all that
// the machine has.
func selectReleases(declared, own []string) []string {
	if len(declared) == 0 {
		return own
	}
	return slices.DeleteFunc(slices.Clone(declared), func(r string) bool { return !slices.Contains(own, r) })
}

// limitsOf returns the capacity and the releases of a management cluster: what is declared, and for each resource that
// is not declared a share of the machine. A cluster of which this machine has no declared release keeps the declared
// ones, since an empty list would be every release.
func (st State) limitsOf(mc cluster.ManagementCluster, memoryMiB int64, bin Binaries) platform.ManagementClusterUpdate {
	declared := st.declaredSettings().Clusters[mc]
	capacity := capacityShare(memoryMiB, len(st.Clusters))
	maps.Copy(capacity, declared.Capacity)
	releases := selectReleases(declared.Releases, bin.releases())
	if len(releases) == 0 {
		releases = declared.Releases
	}
	return platform.ManagementClusterUpdate{Capacity: capacity, Versions: releases}
}
