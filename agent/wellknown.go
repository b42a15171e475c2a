package agent

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	workv1 "open-cluster-management.io/api/work/v1"
)

// wellKnown holds the feedback paths of WellKnownStatus by kind. Those of Deployment,
// DaemonSet, Job and Pod have the names of Open Cluster Management; those of StatefulSet
// and HyperShift's kinds are Atoll's.
type wellKnown struct {
	paths map[schema.GroupVersionKind][]feedbackPath
}

// replicas are the paths of Deployment and StatefulSet.
var replicas = []string{
	"ReadyReplicas", ".status.readyReplicas",
	"Replicas", ".status.replicas",
	"AvailableReplicas", ".status.availableReplicas",
}

func newWellKnown() *wellKnown {
	return &wellKnown{map[schema.GroupVersionKind][]feedbackPath{
		{Group: "apps", Version: "v1", Kind: "Deployment"}:  knownPaths(replicas...),
		{Group: "apps", Version: "v1", Kind: "StatefulSet"}: knownPaths(replicas...),
		{Group: "apps", Version: "v1", Kind: "DaemonSet"}: knownPaths(
			"NumberReady", ".status.numberReady",
			"DesiredNumberScheduled", ".status.desiredNumberScheduled",
			"NumberAvailable", ".status.numberAvailable"),
		{Group: "batch", Version: "v1", Kind: "Job"}: knownPaths(
			"JobComplete", condition("Complete")+".status",
			"JobSucceeded", ".status.succeeded"),
		{Version: "v1", Kind: "Pod"}: knownPaths(
			"PodReady", condition("Ready")+".status",
			"PodPhase", ".status.phase"),

		// The values of conditions are True, False or Unknown. Version is the version of the
		// latest update, VersionState is Completed or Partial; the endpoint is the API
		// server's; the names are those of Secrets in the HostedCluster's namespace.
		{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "HostedCluster"}: optionalPaths(
			"Available", condition("Available")+".status",
			"AvailableReason", condition("Available")+".reason",
			"AvailableMessage", condition("Available")+".message",
			"Progressing", condition("Progressing")+".status",
			"Degraded", condition("Degraded")+".status",
			"DegradedMessage", condition("Degraded")+".message",
			"ValidConfiguration", condition("ValidConfiguration")+".status",
			"ClusterVersionAvailable", condition("ClusterVersionAvailable")+".status",
			"Version", ".status.version.history[0].version",
			"VersionState", ".status.version.history[0].state",
			"DesiredVersion", ".status.version.desired.version",
			"EndpointHost", ".status.controlPlaneEndpoint.host",
			"EndpointPort", ".status.controlPlaneEndpoint.port",
			"KubeconfigSecret", ".status.kubeconfig.name",
			"KubeadminPasswordSecret", ".status.kubeadminPassword.name",
			"ObservedGeneration", condition("Available")+".observedGeneration"),

		// Replicas is the number of existing nodes, DesiredReplicas the requested number
		// (absent while the pool scales automatically).
		{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "NodePool"}: optionalPaths(
			"Ready", condition("Ready")+".status",
			"ReadyMessage", condition("Ready")+".message",
			"AllMachinesReady", condition("AllMachinesReady")+".status",
			"AllNodesHealthy", condition("AllNodesHealthy")+".status",
			"UpdatingVersion", condition("UpdatingVersion")+".status",
			"UpdatingConfig", condition("UpdatingConfig")+".status",
			"AutoscalingEnabled", condition("AutoscalingEnabled")+".status",
			"Replicas", ".status.replicas",
			"DesiredReplicas", ".spec.replicas",
			"Version", ".status.version"),
	}}
}

func condition(kind string) string { return fmt.Sprintf(`.status.conditions[?(@.type==%q)]`, kind) }

// knownPaths compiles alternating names and paths.
func knownPaths(nameAndPath ...string) []feedbackPath {
	var paths []feedbackPath
	for i := 0; i < len(nameAndPath); i += 2 {
		p := compilePath(workv1.JsonPath{Name: nameAndPath[i], Path: nameAndPath[i+1]})
		if p.err != nil {
			panic(fmt.Sprintf("agent: a well-known path does not parse: %v", p.err))
		}
		paths = append(paths, p)
	}
	return paths
}

func optionalPaths(nameAndPath ...string) []feedbackPath {
	paths := knownPaths(nameAndPath...)
	for i := range paths {
		paths[i].optional = true
	}
	return paths
}

// wellKnownConditions returns the rules of WellKnownConditions by kind and condition.
// Complete of Job and Pod is Open Cluster Management's; the others are Atoll's.
func wellKnownConditions() map[schema.GroupVersionKind]map[string]workv1.ConditionRule {
	rule := func(expression, message string) workv1.ConditionRule {
		return workv1.ConditionRule{CelExpressions: []string{expression}, MessageExpression: message}
	}
	ownCondition := func(condition string) workv1.ConditionRule { // the object's own condition
		return rule(
			fmt.Sprintf(`object.?status.?conditions.orValue([]).exists(c, c.type == %q && c.status == "True")`,
				condition),
			fmt.Sprintf(
				`object.?status.?conditions.orValue([]).filter(c, c.type == %q).map(c, c.?message.orValue("")).join()`,
				condition))
	}
	return map[schema.GroupVersionKind]map[string]workv1.ConditionRule{
		{Group: "batch", Version: "v1", Kind: "Job"}: {workv1.ManifestComplete: rule(
			`hasConditions(object.status) && object.status.conditions.exists(c, `+
				`(c.type == "Complete" || c.type == "Failed") && c.status == "True")`,
			`result ? "Job is finished" : "Job is not finished"`)},
		{Version: "v1", Kind: "Pod"}: {workv1.ManifestComplete: rule(
			`object.status.phase in ["Succeeded", "Failed"]`,
			`"Pod is in phase " + object.status.phase`)},
		{Group: "hypershift.openshift.io", Version: "v1beta1", Kind: "HostedCluster"}: {
			workv1.ManifestProgressing: ownCondition("Progressing"),
			workv1.ManifestDegraded:    ownCondition("Degraded"),
		},
	}
}
