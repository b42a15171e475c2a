package rollout

import (
	"slices"
	"strings"

	"atoll.dev/gitops"
)

// restarting lists the programs that restart when a key of the configuration changes. The first prefix that a key has
// counts.
var restarting = []struct{ prefix, what string }{
	{"versions.atoll", "all services"},
	{"versions.images.", "the service *"},
	{"versions.charts.", "the workloads of the chart *"},
	{"versions.releases", ""}, // CLM reads them
	{"git.revision", "the workloads whose chart or values differ in the revision"},
	{"git.branch", "the workloads whose chart or values differ in the branch"},
	{"git.", "the workloads whose chart differs in the repository"},
	{"services.replicas.", ""}, // Kubernetes adds or removes replicas
	{"services.", "platform, clm and maestro"},
	{"dns.", "platform and router"},
	{"values.", "the workloads whose chart reads a changed value"},
	{"managementCluster.", ""}, // fleet registers them
	{"terraform.", ""},         // nothing restarts by itself
	{"aws.", ""},
}

// restartedBy returns the services that changes restart, each once.
func restartedBy(changes []gitops.Change) []string {
	all := []string{}
	for _, c := range changes {
		for _, v := range c.Values {
			if what := restartedByKey(v.Key); what != "" && v.Pinned == "" && !slices.Contains(all, what) {
				all = append(all, what)
			}
		}
	}
	slices.Sort(all)
	return all
}

func restartedByKey(key string) string {
	for _, r := range restarting {
		if rest, ok := strings.CutPrefix(key, r.prefix); ok {
			return strings.ReplaceAll(r.what, "*", rest)
		}
	}
	return ""
}

// targetOf returns the target that brings a change.
func targetOf(c gitops.Change, isTarget map[Target]bool) Target {
	t := Target(c.Region)
	if canary := t + Target("/"+c.Cluster); c.Cluster != "" && isTarget[canary] {
		return canary
	}
	return t
}
