package hypershift

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// NodePoolLabel of a Node names the NodePool that it belongs to.
const NodePoolLabel = "hypershift.openshift.io/nodePool"

// NodeProviderAnnotation of a NodePool is the name of a cluster.NodeProvider. It is no part of the spec:
// HyperShift's has no such field.
const NodeProviderAnnotation = "hosting.atoll.dev/provider"

// NodePool is a set of like nodes of a hosted cluster.
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   NodePoolSpec   `json:"spec"`
	Status NodePoolStatus `json:"status,omitzero"`
}

// NodePoolSpec is the requested state of a NodePool.
type NodePoolSpec struct {
	ClusterName      string               `json:"clusterName"` // of the HostedCluster in the same namespace
	Release          Release              `json:"release"`
	Platform         NodePoolPlatform     `json:"platform"`
	Replicas         *int32               `json:"replicas,omitempty"` // default 0
	Management       NodePoolManagement   `json:"management"`
	AutoScaling      *NodePoolAutoScaling `json:"autoScaling,omitempty"`
	NodeDrainTimeout *metav1.Duration     `json:"nodeDrainTimeout,omitempty"` // 0: no limit
	NodeLabels       map[string]string    `json:"nodeLabels,omitempty"`
	Taints           []Taint              `json:"taints,omitempty"`
	PausedUntil      *string              `json:"pausedUntil,omitempty"` // as HostedClusterSpec.PausedUntil
	Arch             string               `json:"arch,omitempty"`
}

// NodePoolPlatform is the infrastructure of the nodes.
type NodePoolPlatform struct {
	Type string               `json:"type,omitempty"`
	AWS  *AWSNodePoolPlatform `json:"aws,omitempty"`
}

// AWSNodePoolPlatform has the settings of a node in AWS that a simulated node shows.
type AWSNodePoolPlatform struct {
	InstanceType    string      `json:"instanceType"`
	InstanceProfile string      `json:"instanceProfile,omitempty"`
	RootVolume      *RootVolume `json:"rootVolume,omitempty"`
}

// RootVolume is a node's disk.
type RootVolume struct {
	Size int64  `json:"size"` // GiB
	Type string `json:"type,omitempty"`
}

// NodePoolManagement is how the hosting service repairs and upgrades nodes.
type NodePoolManagement struct {
	UpgradeType string          `json:"upgradeType,omitempty"` // Replace or InPlace
	Replace     *ReplaceUpgrade `json:"replace,omitempty"`     // of UpgradeType Replace
	AutoRepair  bool            `json:"autoRepair,omitempty"`
}

// ReplaceUpgrade is how new nodes replace outdated ones.
type ReplaceUpgrade struct {
	Strategy      string         `json:"strategy,omitempty"` // RollingUpdate (default) or OnDelete
	RollingUpdate *RollingUpdate `json:"rollingUpdate,omitempty"`
}

// RollingUpdate limits the nodes during a replacement. A share is of the ordered replicas.
type RollingUpdate struct {
	MaxSurge       *intstr.IntOrString `json:"maxSurge,omitempty"`       // nodes more than ordered; default 1
	MaxUnavailable *intstr.IntOrString `json:"maxUnavailable,omitempty"` // ready nodes fewer than ordered; default 0
}

// NodePoolAutoScaling are the bounds of a pool that scales by itself.
type NodePoolAutoScaling struct {
	Min int32 `json:"min"`
	Max int32 `json:"max"`
}

// Taint keeps pods off a node that do not tolerate it.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"`
}

// NodePoolStatus is the observed state of a NodePool.
type NodePoolStatus struct {
	Replicas   int32               `json:"replicas"`
	Version    string              `json:"version,omitempty"`
	Conditions []NodePoolCondition `json:"conditions,omitempty"`
}

// NodePoolCondition is a condition in the shape that node pools have: its
// generation is optional, and it has a severity.
type NodePoolCondition struct {
	Type               string                 `json:"type"`
	Status             metav1.ConditionStatus `json:"status"`
	Severity           string                 `json:"severity,omitempty"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
	Reason             string                 `json:"reason,omitempty"`
	Message            string                 `json:"message,omitempty"`
	ObservedGeneration int64                  `json:"observedGeneration,omitempty"`
}

// Conditions of a NodePool, besides those that it shares with a HostedCluster.
const (
	Ready              = "Ready"
	AllMachinesReady   = "AllMachinesReady"
	AllNodesHealthy    = "AllNodesHealthy"
	AutoscalingEnabled = "AutoscalingEnabled"
	AutorepairEnabled  = "AutorepairEnabled"
	UpdatingVersion    = "UpdatingVersion"
	UpdatingConfig     = "UpdatingConfig"
	UpdateManagement   = "UpdateManagementEnabled"
	ReachedIgnition    = "ReachedIgnitionEndpoint"
)
