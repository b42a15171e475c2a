package local

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"atoll.dev/cluster"
	"atoll.dev/gitops"
)

// Services of a management cluster, as the charts name them.
const (
	agentService   = "agent"
	hostingService = "hosting"
	routerService  = "router"
)

// chartServices are the services of the region whose log level and limits the chart of a regional cluster sets.
var chartServices = []string{pkiName, brokerName, clmName, maestroName, adapterName, platformName}

// logLevels are those that each service knows.
var logLevels = []string{"debug", "info", "warn", "error"}

// helmValues reads the values of Helm of a cluster that have a meaning on one machine, and remembers which it has read.
type helmValues struct {
	document gitops.Document
	applied  map[string]bool // paths, with points
	mistakes []error
}

func newHelmValues(document gitops.Document) *helmValues {
	return &helmValues{document: document, applied: map[string]bool{}}
}

// read returns a value whose type is that of its key in the chart, and marks it as applied. Without a value, or with a
// mistake, it returns the zero value.
func read[T any](h *helmValues, keys string) (value T, at gitops.Position) {
	found := h.document.Value(strings.Split(keys, "."))
	plain := found.Plain()
	if plain == nil {
		return value, found.At
	}
	h.applied[keys] = true
	value, ok := plain.(T)
	if !ok {
		h.refuse(found.At, keys, plain, fmt.Sprintf("a value of the type %T is needed", value))
	}
	return value, found.At
}

func (h *helmValues) refuse(at gitops.Position, keys string, value any, reason string) {
	h.mistakes = append(h.mistakes, fmt.Errorf("%s: the value of Helm %s is %v: %s", at, keys, value, reason))
}

// setText sets a text where the values have one that is not empty.
func (h *helmValues) setText(setting *string, keys string) {
	if text, _ := read[string](h, keys); text != "" {
		*setting = text
	}
}

// setRecoverLostAfter replaces the time until the clusters of a lost management cluster are recovered.
func (h *helmValues) setRecoverLostAfter(s *Settings) {
	const keys = "clm.recoverLostAfter"
	text, at := read[string](h, keys)
	if text == "" {
		return
	}
	after, err := cluster.ParseRecoverLostAfter(text)
	if err != nil {
		h.refuse(at, keys, text, err.Error())
		return
	}
	s.RecoverLostAfter = cluster.FormatRecoverLostAfter(after)
}

// logLevel returns a level of logs.
func (h *helmValues) logLevel(keys string) string {
	level, at := read[string](h, keys)
	if level != "" && !slices.Contains(logLevels, level) {
		h.refuse(at, keys, level, "it must be one of "+strings.Join(logLevels, ", "))
	}
	return level
}

// limits returns the limits of the processes of a service: limits.memory, and limits.cpu rounded up.
func (h *helmValues) limits(service string, level string) ProcessSettings {
	return ProcessSettings{LogLevel: level, MemoryBytes: h.quantity(service + ".resources.limits.memory"),
		Processors: h.quantity(service + ".resources.limits.cpu")}
}

// quantity returns a quantity of Kubernetes, rounded up to a whole number.
func (h *helmValues) quantity(keys string) int64 {
	found := h.document.Value(strings.Split(keys, "."))
	plain := found.Plain()
	if plain == nil {
		return 0
	}
	h.applied[keys] = true
	quantity, err := resource.ParseQuantity(fmt.Sprint(plain))
	if err == nil && (quantity.Sign() <= 0 || quantity.AsApproximateFloat64() > math.MaxInt64/2) {
		err = errors.New("it is out of range")
	}
	if err != nil {
		h.refuse(found.At, keys, plain, err.Error())
		return 0
	}
	return quantity.Value()
}

// applyRegion copies the values of a regional cluster to the settings.
func (h *helmValues) applyRegion(s *Settings) {
	h.setText(&s.Traces, "traces")
	h.setText(&s.PlacementShownTo, "platform.placementShownTo")
	h.setText(&s.BaseDomain, "adapter.baseDomain")
	h.setRecoverLostAfter(s)
	for _, service := range replicatedServices {
		if n, _ := read[int64](h, service+".replicas"); n > 0 {
			if s.Replicas == nil {
				s.Replicas = map[string]int64{}
			}
			s.Replicas[service] = n
		}
	}
	releases, at := read[[]any](h, "clm.releases")
	for i, release := range releases {
		if i == 0 {
			s.Releases = nil
		}
		text, isText := release.(string)
		if !isText {
			h.refuse(at, "clm.releases", release, "a release is a text such as 1.36.3")
			continue
		}
		s.Releases = append(s.Releases, text)
	}
	level := h.logLevel("logLevel")
	s.Processes = map[string]ProcessSettings{}
	for _, service := range chartServices {
		s.Processes[service] = h.limits(service, level)
	}
}

// applyCluster copies the values of a management cluster to the settings.
func (h *helmValues) applyCluster(s *ClusterSettings) {
	level := h.logLevel("logLevel")
	s.Processes = map[string]ProcessSettings{
		hostingService: {LogLevel: level}, // its limits are those of a pod with all planes
		routerService:  h.limits("hosting.router", level),
		agentService:   h.limits(agentService, h.logLevel("agent.logLevel")),
	}
	if isEnabled, _ := read[bool](h, "hosting.enabled"); !isEnabled {
		delete(h.applied, "hosting.enabled")
	}
	idle, at := read[string](h, "hosting.idle")
	if _, err := time.ParseDuration(idle); err != nil && idle != "" {
		h.refuse(at, "hosting.idle", idle, "it must be a duration such as 10m")
		return
	}
	s.Idle = idle
}

// unapplied returns each value that has no effect, with the reason. Names begin with prefix.
func (h *helmValues) unapplied(prefix string) (all []Unapplied) {
	for _, keys := range h.document.Leaves() {
		name := strings.Join(keys, ".")
		if !h.applied[name] {
			all = append(all, Unapplied{prefix + name, h.document.Value(keys).String(), reasonOf(keys)})
		}
	}
	return all
}

// reasons are why a value of Atoll's charts has no effect on one machine, by a pattern of its path with / between the
// keys. The first that matches counts.
var reasons = []struct{ pattern, reason string }{
	{"image", "the region runs programs, not images"},
	{"*/image", "the region runs programs, not images"},
	{"imagePullSecrets", "the region runs programs, not images"},
	{"database", "the region runs its own PostgreSQL"},
	{"broker/endpoint", "the region runs its own broker"},
	{"broker/configSecret", "the region runs its own broker"},
	{"networkPolicy", "the ports of the region are on loopback, without network policies"},
	{"metrics", "each process serves its metrics on loopback, without a proxy"},
	{"sentinel", "the sentinel runs in the processes of clm"},
	{"region", "the name of the region is that of its file"},
	{"hosting/enabled", "each management cluster here runs hosting"},
	{"hosting/releases", "the releases are those whose programs this machine has"},
	{"hosting/resources", "the limit of a pod with all its planes has no equivalent here"},
	{"*/extraArgs", "arguments name files and addresses of a pod"},
	{"*/*/extraArgs", "arguments name files and addresses of a pod"},
	{"*/autoscaling", "nothing here starts processes by load"},
	{"*/persistence", "the data is in the home of the region"},
	{"*/service", "the ports of the region are on loopback"},
	{"*/*/service", "the ports of the region are on loopback"},
	{"*/resources", "nothing is reserved for a process, and it has no disk of its own"},
	{"*/*/resources", "nothing is reserved for a process, and it has no disk of its own"},
	{"*/nodeSelector", "there is one machine"},
	{"*/tolerations", "there is one machine"},
	{"*/affinity", "there is one machine"},
	{"*/priorityClassName", "there is one machine"},
}

// ownKeys are the keys at the top of the values that the charts of Atoll read. Other keys are of other charts.
var ownKeys = append([]string{"image", "imagePullSecrets", "region", "logLevel", "traces", "caConfigMap", "database",
	"sentinel", "metrics", "networkPolicy", agentService, hostingService}, chartServices...)

// reasonOf returns why a value of Helm has no effect on one machine.
func reasonOf(keys []string) string {
	for _, r := range reasons {
		depth := strings.Count(r.pattern, "/") + 1
		if len(keys) < depth {
			continue
		}
		if matches, err := path.Match(r.pattern, strings.Join(keys[:depth], "/")); err == nil && matches &&
			slices.Contains(ownKeys, keys[0]) {
			return r.reason
		}
	}
	if !slices.Contains(ownKeys, keys[0]) {
		return "no chart is installed"
	}
	return "it describes objects of Kubernetes, and the region consists of processes"
}

// processSettings returns the settings of each process that has some, by its name.
func (s Settings) processSettings() map[string]ProcessSettings {
	all := map[string]ProcessSettings{}
	for service, settings := range s.Processes {
		for number := range s.replicas(service) {
			all[replica{service, number + 1}.name()] = settings
		}
	}
	for mc, own := range s.Clusters {
		all[agentName(mc)] = own.Processes[agentService]
		all[hostingName(mc)] = own.Processes[hostingService]
		all[routerName(mc)] = own.Processes[routerService]
	}
	return all
}

// maxProcessors bounds GOMAXPROCS: Go's runtime takes memory for each, and ends a program that asks for millions.
const maxProcessors = 1024

// minMemory bounds GOMEMLIMIT: below what a process needs at rest, it would do nothing but collect garbage.
const minMemory = 64 << 20

// with returns the spec of a process with its settings. The limits are those of Go's runtime: the program keeps them by
// itself, and is not killed.
func (s Spec) with(settings ProcessSettings) Spec {
	if settings.LogLevel != "" {
		s.Args = append(slices.Clone(s.Args), "--log-level", settings.LogLevel)
	}
	if settings.MemoryBytes > 0 {
		s.Env = append(slices.Clone(s.Env), fmt.Sprintf("GOMEMLIMIT=%d", max(settings.MemoryBytes, minMemory)))
	}
	if settings.Processors > 0 {
		s.Env = append(slices.Clone(s.Env), fmt.Sprintf("GOMAXPROCS=%d", min(settings.Processors, maxProcessors)))
	}
	return s
}

// text returns the settings for people, "" for none.
func (p ProcessSettings) text() string {
	var parts []string
	if p.LogLevel != "" {
		parts = append(parts, "logLevel="+p.LogLevel)
	}
	if p.MemoryBytes > 0 {
		parts = append(parts, "memory="+resource.NewQuantity(p.MemoryBytes, resource.BinarySI).String())
	}
	if p.Processors > 0 {
		parts = append(parts, fmt.Sprintf("cpu=%d", p.Processors))
	}
	return strings.Join(parts, ",")
}

// text returns the settings of a management cluster that are of its values of Helm, for people.
func (c ClusterSettings) text() string {
	parts := []string{}
	for _, service := range slices.Sorted(maps.Keys(c.Processes)) {
		if text := c.Processes[service].text(); text != "" {
			parts = append(parts, service+" "+text)
		}
	}
	if c.Idle != "" {
		parts = append(parts, hostingService+" idle="+c.Idle)
	}
	return strings.Join(parts, "; ")
}
