package local

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/gitops"
)

// maxReplicas is the largest number of processes of a service on one machine: each has about 70 MiB.
const maxReplicas = 4

// Settings are the declared settings of the region's processes and management clusters: those of the declaration, and
// those of the values of Helm that have a meaning on one machine.
type Settings struct {
	Atoll            string                                        `json:"atoll,omitempty"`    // the version
	Releases         []string                                      `json:"releases,omitempty"` // [] is the own release
	Replicas         map[string]int64                              `json:"replicas,omitempty"` // by service
	Traces           string                                        `json:"traces,omitempty"`
	PlacementShownTo string                                        `json:"placement_shown_to,omitempty"`
	RecoverLostAfter string                                        `json:"recover_lost_after,omitempty"`
	BaseDomain       string                                        `json:"base_domain,omitempty"` // of hosted clusters
	Processes        map[string]ProcessSettings                    `json:"processes,omitempty"`   // by service
	Clusters         map[cluster.ManagementCluster]ClusterSettings `json:"management_clusters,omitempty"`
}

// ClusterSettings are the declared settings of a management cluster.
type ClusterSettings struct {
	Capacity  map[string]int64           `json:"capacity,omitempty"`
	Releases  []string                   `json:"releases,omitempty"`  // [] is the own release
	Idle      string                     `json:"idle,omitempty"`      // until a plane sleeps; "" is hosting's default
	Processes map[string]ProcessSettings `json:"processes,omitempty"` // agent, hosting, router
}

// ProcessSettings are the settings that each process of a service has.
type ProcessSettings struct {
	LogLevel    string `json:"log_level,omitempty"`
	MemoryBytes int64  `json:"memory_bytes,omitempty"` // its garbage collector keeps below that, where it can; 0: no limit
	Processors  int64  `json:"processors,omitempty"`   // that it uses at once; 0: all
}

// settingsOf returns the settings of a declaration. The error joins all values of Helm that cannot be applied, each
// with its file and line.
func settingsOf(d gitops.Declaration) (*Settings, error) {
	s := &Settings{Atoll: d.Versions.Atoll, Releases: d.Versions.Releases, Replicas: maps.Clone(d.Services.Replicas),
		Traces: d.Services.Traces, PlacementShownTo: d.Services.PlacementShownTo,
		RecoverLostAfter: d.Services.RecoverLostAfter,
		Clusters:         map[cluster.ManagementCluster]ClusterSettings{}}
	values := newHelmValues(d.Values)
	values.applyRegion(s)
	mistakes := values.mistakes
	for _, c := range d.ManagementClusters {
		own := ClusterSettings{Capacity: c.Settings.Capacity, Releases: c.Settings.Releases}
		values := newHelmValues(c.Values)
		values.applyCluster(&own)
		mistakes = append(mistakes, values.mistakes...)
		s.Clusters[cluster.ManagementCluster(c.Name)] = own
	}
	return s, errors.Join(mistakes...)
}

// withUndeclaredClusters returns the settings together with the present settings of management clusters
// that are no longer declared. Such a cluster may host customers' clusters: until it is removed, its
// processes stay as they are.
func (s *Settings) withUndeclaredClusters(st State) *Settings {
	next := *s
	next.Clusters = maps.Clone(st.declaredSettings().Clusters)
	maps.DeleteFunc(next.Clusters, func(name cluster.ManagementCluster, _ ClusterSettings) bool {
		return !slices.Contains(st.Clusters, name)
	})
	if next.Clusters == nil {
		next.Clusters = map[cluster.ManagementCluster]ClusterSettings{}
	}
	maps.Copy(next.Clusters, s.Clusters)
	return &next
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
	if !slices.Contains(replicatedServices, service) {
		return 1
	}
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

// startsAfter returns the processes that must be ready before the replica starts. The first has created the tables.
func (r replica) startsAfter(others ...string) []string {
	if r.number > 1 {
		others = append(others, r.service)
	}
	return others
}

// replicaSpecs returns the specs of all processes of a service. spec makes that of one.
func (t topology) replicaSpecs(service string, spec func(replica) Spec) (specs []Spec) {
	for number := range t.st.declaredSettings().replicas(service) {
		specs = append(specs, spec(replica{service, number + 1}))
	}
	return specs
}

// withSharedPorts lets the replicas of a declared region listen on the same ports. The last port, that of health and
// metrics, is the process's own.
func (t topology) withSharedPorts(s Spec) Spec {
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

// recoverLostAfter returns how long an agent is lost until the clusters of its management cluster are recovered on
// others; "" is the lifecycle manager's default, never. A declared region has the declared time, if there is one.
func (st State) recoverLostAfter() string {
	return cmp.Or(st.declaredSettings().RecoverLostAfter, st.RecoverLostAfter)
}

// normalizeRecoverLostAfter returns a time in the form of State.RecoverLostAfter: "" for 0, which is the default, and
// one text for each other time, such as 1h30m for 90m. It returns a text that is no such time unchanged.
func normalizeRecoverLostAfter(text string) string {
	after, err := cluster.ParseRecoverLostAfter(text)
	switch {
	case err != nil:
		return text
	case after == 0:
		return ""
	}
	return cluster.FormatRecoverLostAfter(after)
}

// releases returns the releases whose program this machine has.
func (b Binaries) releases() []string {
	if len(b.Kubes) > 0 {
		return slices.Sorted(maps.Keys(b.Kubes))
	}
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
