package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const (
	regionalChart   = "../../deploy/charts/regional-cluster/atoll"
	managementChart = "../../deploy/charts/management-cluster/atoll"
	examples        = "../../examples/deploy"
)

// chartCase is a chart with values.
type chartCase struct {
	name, chart string
	values      string // YAML
}

// chartCases returns the charts with the least values, with every option, and with the values that `atoll config
// render` wrote for each cluster of the examples.
func chartCases(t *testing.T) []chartCase {
	t.Helper()
	cases := []chartCase{
		{"regional, least values", regionalChart, "region: eu-central-1"},
		{"regional, every option", regionalChart, everyRegionalOption},
		{"regional, broker with a file", regionalChart, "{region: r1, broker: {configSecret: iot}}"},
		{"management, least values", managementChart, "global: {cluster: mc01-r1, domain: r1.example.com}"},
		{"management, every option", managementChart, everyManagementOption},
	}
	sets, err := filepath.Glob(examples + "/*/*/regional-cluster/apps/applicationset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob(examples + "/*/*/management-clusters/*/apps/applicationset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if len(sets) != 4 || len(more) != 6 {
		t.Fatalf("examples/deploy has %d regional and %d management clusters", len(sets), len(more))
	}
	for _, file := range append(sets, more...) {
		c := chartCase{name: file, chart: regionalChart}
		if slices.Contains(more, file) {
			c.chart = managementChart
		}
		c.values = string(renderedValues(t, file))
		cases = append(cases, c)
	}
	return cases
}

// renderedValues returns the values that Argo CD gives to a chart of a rendered ApplicationSet.
func renderedValues(t *testing.T, applicationSet string) []byte {
	t.Helper()
	text, err := os.ReadFile(applicationSet)
	if err != nil {
		t.Fatal(err)
	}
	sources, _, _ := unstructured.NestedSlice(documents(t, text)[0].Object, "spec", "template", "spec", "sources")
	global, _, _ := unstructured.NestedMap(sources[0].(map[string]any), "helm", "valuesObject")
	if len(global) == 0 {
		t.Fatalf("%s has no values", applicationSet)
	}
	if text, err = os.ReadFile(filepath.Join(filepath.Dir(applicationSet), "..", "values.yaml")); err != nil {
		t.Fatal(err)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for key, value := range global {
		values[key] = value
	}
	if text, err = yaml.Marshal(values); err != nil {
		t.Fatal(err)
	}
	return text
}

func (c chartCase) render(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	objects, err := renderChart(c.chart, "atoll", "atoll", c.parse(t))
	if err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	return objects
}

func (c chartCase) parse(t *testing.T) map[string]any {
	t.Helper()
	values := map[string]any{}
	if err := yaml.Unmarshal([]byte(c.values), &values); err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	return values
}

// Helm's own linter finds nothing worse than a missing icon.
func TestHelmLintsTheCharts(t *testing.T) {
	for _, c := range chartCases(t) {
		for _, m := range lint.All(c.chart, c.parse(t), "atoll", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s", c.name, m)
			}
		}
	}
}

// Each value that breaks a schema is refused with its key.
func TestChartsRefuseBadValues(t *testing.T) {
	for _, c := range []struct{ chart, values, key string }{
		{regionalChart, "region: r1\nclm: {replicas: two}", "clm.replicas"},
		{regionalChart, "region: r1\nclm: {replicaz: 2}", "replicaz"},
		{regionalChart, "region: r1\ncml: {replicas: 2}", "cml"},
		{regionalChart, "region: r1\nlogLevel: loud", "logLevel"},
		{regionalChart, "region: r1\ndatabase: {port: 70000}", "database.port"},
		{regionalChart, "region: r1\nnetworkPolicy: {customers: [everybody]}", "networkPolicy.customers.0"},
		{regionalChart, "region: r1\nplatform: {resources: {limits: {memory: much}}}", "platform.resources.limits.memory"},
		{regionalChart, "region: r1\nnetworkPolicy: {operators: [us]}", "networkPolicy.operators.0"},
		{regionalChart, "region: r1\nglobal: {services: {placementShownTo: nobody}}", "placementShownTo"},
		{regionalChart, "region: r1\nglobal: {services: {recoverLostAfter: 4m}}", "recoverLostAfter"},
		{regionalChart, "region: r1\nclm: {recoverLostAfter: 30}", "clm.recoverLostAfter"},
		{regionalChart, "{}", "region"},
		// Without items, Kubernetes permits everybody and every port.
		{regionalChart, "region: r1\ndatabase: {cidrs: []}", "database.cidrs"},
		{regionalChart, "region: r1\ndatabase: {cidrs: null}", "database"},
		{regionalChart, "region: r1\nnetworkPolicy: {broker: {cidrs: []}}", "networkPolicy.broker.cidrs"},
		{regionalChart, "region: r1\nnetworkPolicy: {broker: {port: null}}", "networkPolicy.broker"},
		{regionalChart, "region: r1\nnetworkPolicy: {kubernetes: {cidrs: []}}", "networkPolicy.kubernetes.cidrs"},
		{regionalChart, "region: r1\nnetworkPolicy: {kubernetes: {ports: []}}", "networkPolicy.kubernetes.ports"},
		{regionalChart, "region: r1\nnetworkPolicy: {enabled: null}", "networkPolicy"},
		{managementChart, "global: {cluster: c, domain: d}\nnetworkPolicy: {region: []}", "networkPolicy.region"},
		{managementChart, "global: {cluster: c, domain: d}\nnetworkPolicy: {region: null}", "networkPolicy"},
		{managementChart, "global: {cluster: c, domain: d}\nnetworkPolicy: {regionPorts: []}", "networkPolicy.regionPorts"},
		{managementChart, "global: {cluster: c, domain: d}\nnetworkPolicy: {kubernetes: {cidrs: []}}",
			"networkPolicy.kubernetes.cidrs"},
		{managementChart, "global: {cluster: c, domain: d}\nnetworkPolicy: {kubernetes: {ports: []}}",
			"networkPolicy.kubernetes.ports"},
		// The accounts of customers stay apart, whatever the values.
		{regionalChart, "region: r1\nclm: {config: {server: {tenant: {enabled: false}}}}", "clm.config.server.tenant"},
		{managementChart, "global: {cluster: c, domain: d}\nhosting: {enabled: true}", "hosting.advertise"},
		{managementChart, "global: {cluster: c, domain: d}\nhosting: {releases: {latest: /bin/x}}", "latest"},
		{managementChart, "global: {cluster: c, domain: d}\nhosting: {backups: {cidrs: []}}", "hosting.backups.cidrs"},
		{managementChart, "global: {cluster: c, domain: d}\nhosting: {backups: {secret: A B}}", "hosting.backups.secret"},
		{managementChart, "global: {cluster: c, domain: d}\nhosting: {warmPlanes: {count: -1}}", "hosting.warmPlanes.count"},
		{managementChart, "global: {cluster: c, domain: d}\nhosting: {warmPlanes: {count: 1, capacity: {planes: x}}}",
			"hosting.warmPlanes.capacity"},
		{managementChart, "global: {cluster: c, domain: d}\nagent: {tokn: x}", "tokn"},
		{managementChart, "global: {domain: d}", "name"},
		{agentChart, "{name: n, mqtt: m, pki: p, ca_hash: 'md5:x'}", "ca_hash"},
	} {
		_, err := renderChart(c.chart, "atoll", "atoll", chartCase{values: c.values}.parse(t))
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "/", "."), c.key) {
			t.Errorf("%s: %q: %v", c.chart, c.values, err)
		}
	}
	// Another chart's values are permitted where they are listed.
	allowed := chartCase{"", regionalChart, "{region: r1, otherCharts: [hypershift], hypershift: {a: 1}}"}
	allowed.render(t)
}

// Every pod has what the restricted profile of Kubernetes demands, and probes, resources and a policy of its network;
// no container has a Secret in its environment; no object has a secret's text or gives more rights than bootstrap does.
func TestPodsOfChartsAreRestricted(t *testing.T) {
	for _, c := range chartCases(t) {
		objects := c.render(t)
		var pods int
		for _, o := range objects {
			switch o.GetKind() {
			case "Secret":
				t.Errorf("%s: a Secret %s", c.name, o.GetName())
			case "ClusterRoleBinding":
				role, _, _ := unstructured.NestedString(o.Object, "roleRef", "name")
				if !slices.Contains([]string{"atoll-agent", "atoll-hosting", "system:auth-delegator"}, role) {
					t.Errorf("%s: %s gives %s", c.name, o.GetName(), role)
				}
			case "StatefulSet", "Deployment":
				pods++
				checkPod(t, c.name+": "+o.GetName(), o, objects)
			}
		}
		if pods == 0 {
			t.Errorf("%s: no pod", c.name)
		}
	}
}

func checkPod(t *testing.T, name string, o *unstructured.Unstructured, objects []*unstructured.Unstructured) {
	t.Helper()
	pod, _, _ := unstructured.NestedMap(o.Object, "spec", "template", "spec")
	must := func(of map[string]any, want any, path ...string) {
		t.Helper()
		if have, _, _ := unstructured.NestedFieldNoCopy(of, path...); fmt.Sprint(have) != fmt.Sprint(want) {
			t.Errorf("%s: %s is %v, want %v", name, strings.Join(path, "."), have, want)
		}
	}
	must(pod, true, "securityContext", "runAsNonRoot")
	must(pod, "RuntimeDefault", "securityContext", "seccompProfile", "type")
	containers, _, _ := unstructured.NestedSlice(pod, "containers")
	for _, c := range containers {
		c := c.(map[string]any)
		must(c, false, "securityContext", "allowPrivilegeEscalation")
		must(c, true, "securityContext", "readOnlyRootFilesystem")
		must(c, []any{"ALL"}, "securityContext", "capabilities", "drop")
		environment, _, _ := unstructured.NestedSlice(c, "env")
		for _, variable := range environment {
			if _, isSecret, _ := unstructured.NestedMap(variable.(map[string]any), "valueFrom", "secretKeyRef"); isSecret {
				t.Errorf("%s: a Secret is in the environment of %s: %v", name, c["name"], variable)
			}
		}
		if from, has := c["envFrom"]; has {
			t.Errorf("%s: container %s has the environment %v", name, c["name"], from)
		}
		required := [][]string{{"resources", "requests", "cpu"}, {"resources", "limits", "memory"}}
		if c["name"] != "metrics" { // the proxy of metrics is another project's
			required = append(required, []string{"startupProbe"}, []string{"livenessProbe"}, []string{"readinessProbe"})
		}
		for _, path := range required {
			if _, found, _ := unstructured.NestedFieldNoCopy(c, path...); !found {
				t.Errorf("%s: container %s has no %s", name, c["name"], strings.Join(path, "."))
			}
		}
	}
	labels, _, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels")
	selected := map[string]bool{}
	for _, other := range objects {
		path := []string{"spec", "selector", "matchLabels"}
		if other.GetKind() == "NetworkPolicy" {
			path = []string{"spec", "podSelector", "matchLabels"}
		}
		selector, _, _ := unstructured.NestedStringMap(other.Object, path...)
		matches := len(selector) > 0 && other.GetNamespace() == o.GetNamespace()
		for key, value := range selector {
			matches = matches && labels[key] == value
		}
		selected[other.GetKind()] = selected[other.GetKind()] || matches
		if other.GetKind() == "NetworkPolicy" && other.GetName() == "default-deny" && len(selector) == 0 &&
			other.GetNamespace() == o.GetNamespace() {
			selected["default-deny"] = true
		}
	}
	wanted := []string{"NetworkPolicy", "default-deny"}
	replicas, found, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "replicas")
	if !found || fmt.Sprint(replicas) != "1" {
		wanted = append(wanted, "PodDisruptionBudget")
	}
	for _, kind := range wanted {
		if !selected[kind] {
			t.Errorf("%s: no %s selects it", name, kind)
		}
	}
}

// The program has every command and every flag that a chart gives it.
func TestTheProgramAcceptsTheArgumentsOfCharts(t *testing.T) {
	atoll := requireProgram(t, "ATOLL_BIN", "atoll")
	accepted := map[string]bool{}
	check := func(args []string) {
		if text := strings.Join(args, " "); !accepted[text] {
			accepted[text] = true
			output(t, atoll, append(slices.Clone(args), "--help")...)
		}
	}
	commands := map[string]bool{}
	for _, c := range chartCases(t)[:5] {
		eachContainer(c.render(t), func(container map[string]any) {
			command, _, _ := unstructured.NestedStringSlice(container, "command")
			args, _, _ := unstructured.NestedStringSlice(container, "args")
			if len(command) == 0 {
				return // the proxy of metrics
			}
			commands[command[1]] = true
			check(append(command[1:], args...))
			for _, probe := range []string{"startupProbe", "livenessProbe", "readinessProbe"} {
				command, _, _ := unstructured.NestedStringSlice(container, probe, "exec", "command")
				check(command[1:])
			}
		})
	}
	for _, service := range []string{"pki", "broker", "clm", "sentinel", "maestro", "adapter", "platform", "agent",
		"hosting", "router"} {
		if !commands[service] {
			t.Errorf("no chart runs atoll %s", service)
		}
	}
}

func eachContainer(objects []*unstructured.Unstructured, do func(map[string]any)) {
	for _, o := range objects {
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			do(c.(map[string]any))
		}
	}
}

// acceptsChartsAndExamples checks that every object of every chart passes the validation of a real API server, and so
// do the Applications and ApplicationSets of the examples: by the kinds of Argo CD and of the Prometheus Operator, as
// their owners released them.
func acceptsChartsAndExamples(t *testing.T, cluster *chartCluster) {
	for _, name := range []string{"atoll", "atoll-hosting", "argocd"} {
		cluster.apply(t, &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace",
			"metadata": map[string]any{"name": name}}})
	}
	cluster.applyForeignKinds(t)
	seen := map[string]bool{}
	kinds := map[string]int{}
	dryRun := func(o *unstructured.Unstructured) {
		text, err := yaml.Marshal(o.Object)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[string(text)] {
			seen[string(text)] = true
			kinds[o.GetKind()]++
			cluster.dryRun(t, o)
		}
	}
	for _, c := range chartCases(t) {
		for _, o := range c.render(t) {
			dryRun(o)
		}
	}
	for _, pattern := range []string{"/*/*/*/root.yaml", "/*/*/*/*/root.yaml", "/*/*/*/apps/*.yaml",
		"/*/*/*/*/apps/*.yaml"} {
		files, err := filepath.Glob(examples + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, o := range documents(t, text) {
				dryRun(o)
			}
		}
	}
	for _, kind := range []string{"StatefulSet", "Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget",
		"HorizontalPodAutoscaler", "ServiceMonitor", "ClusterRole", "CustomResourceDefinition", "Application",
		"ApplicationSet"} {
		if kinds[kind] == 0 {
			t.Errorf("no %s was validated", kind)
		}
	}
	t.Logf("validated: %v", kinds)
}

const everyRegionalOption = `
region: r1
traces: https://traces.example:4318
imagePullSecrets: [{name: registry}]
image: {repository: registry.example/atoll, tag: v1, pullPolicy: Always}
database: {host: db.example, port: 6432, sslMode: verify-full, caConfigMap: db-ca, cidrs: [10.1.0.0/16, "fd00::/8"]}
pki: {service: {type: LoadBalancer, annotations: {a: b}}, persistence: {size: 2Gi, storageClass: fast}}
broker: {service: {type: LoadBalancer}, extraArgs: [--source-id=maestro], nodeSelector: {disk: ssd}}
clm:
  config: {server: {max_resource_bytes: 1048576}}
  releases: ["1.36.3"]
  recoverLostAfter: 1h30m
  autoscaling: {enabled: true}
  tolerations: [{key: a, operator: Exists}]
  priorityClassName: system-cluster-critical
sentinel: {enabled: true, replicas: 3}
maestro: {autoscaling: {enabled: true, maxReplicas: 9}, extraArgs: [--broker-connections=4]}
adapter: {autoscaling: {enabled: true}, configMaps: [mine, other], baseDomain: hosted.example}
platform: {autoscaling: {enabled: true}, placementShownTo: customers, service: {type: LoadBalancer},
  operators: {enabled: true, service: {type: LoadBalancer, annotations: {a: b}}}}
metrics: {enabled: true, labels: {release: prometheus}}
networkPolicy: {operators: [10.3.0.0/16], extraEgress: [{to: [{ipBlock: {cidr: 10.9.0.0/16}}], ports: [{port: 4318}]}]}
`

const everyManagementOption = `
global: {cluster: mc01-r1, domain: r1.example.com, version: v1, images: {hosting: "registry.example/hosting:v2"},
  services: {broker: "iot.example:8883"}}
imagePullSecrets: [{name: registry}]
agent: {extraArgs: [--publish-rate=100], nodeSelector: {a: b}, tolerations: [{operator: Exists}]}
hosting:
  enabled: true
  advertise: mc01.example:6443
  nodeSelector: {a: b}
  tolerations: [{operator: Exists}]
  persistence: {size: 100Gi, storageClass: fast}
  backups: {secret: atoll-backups, cidrs: [10.8.0.0/16], port: 9000}
  warmPlanes: {count: 3, capacity: {planes: 40, memory_mib: 16000}}
  router: {service: {type: LoadBalancer, annotations: {a: b}}, extraArgs: [--max-per-cluster=4096]}
networkPolicy: {extraEgress: [{to: [{ipBlock: {cidr: 10.9.0.0/16}}]}]}
`
