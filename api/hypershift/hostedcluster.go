// Package hypershift holds the custom resources by which a management cluster
// gets its orders: HostedCluster and NodePool of
// hypershift.openshift.io/v1beta1, with the JSON of HyperShift's own, and
// their CustomResourceDefinitions.
//
// Only the fields that Atoll reads or writes have Go types. Everything else
// passes through: the schemas keep unknown fields, and whoever changes an
// object does so with a patch, never by writing back what was decoded here.
//
// It contains no logic and imports only contracts of ours.
package hypershift

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and Version of HostedCluster and NodePool.
const (
	Group   = "hypershift.openshift.io"
	Version = "v1beta1"
)

// HostedClusters is the resource of HostedCluster.
func HostedClusters() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: "hostedclusters"}
}

// NodePools is the resource of NodePool.
func NodePools() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: "nodepools"}
}

// HibernatedAnnotation of a HostedCluster is Atoll's: "true" lets the plane
// sleep while nobody asks for it, "false" or none keeps it awake.
const HibernatedAnnotation = "atoll.dev/hibernated"

// SizeLabel of a HostedCluster is Atoll's: the size class that the region has reserved for the plane, small, medium
// or large. Without it the plane has the limits of before there were classes.
const SizeLabel = "atoll.dev/size"

// HostedCluster is a control plane that is wanted, and how it is.
type HostedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   HostedClusterSpec   `json:"spec"`
	Status HostedClusterStatus `json:"status,omitzero"`
}

// HostedClusterSpec is the requested state of a HostedCluster.
type HostedClusterSpec struct {
	Release              Release           `json:"release"`
	ClusterID            string            `json:"clusterID,omitempty"`
	InfraID              string            `json:"infraID,omitempty"`
	Channel              string            `json:"channel,omitempty"`
	Platform             Platform          `json:"platform,omitzero"`
	Networking           ClusterNetworking `json:"networking,omitzero"`
	DNS                  DNS               `json:"dns,omitzero"`
	KubeAPIServerDNSName string            `json:"kubeAPIServerDNSName,omitempty"`
	PullSecret           LocalObject       `json:"pullSecret,omitzero"`
	IssuerURL            string            `json:"issuerURL,omitempty"`
	Configuration        Configuration     `json:"configuration,omitzero"`
	FIPS                 bool              `json:"fips,omitempty"`

	ControllerAvailabilityPolicy     string `json:"controllerAvailabilityPolicy,omitempty"`
	InfrastructureAvailabilityPolicy string `json:"infrastructureAvailabilityPolicy,omitempty"`

	// PausedUntil is "true", "false" or a time of RFC 3339: until then nothing
	// about the plane is changed.
	PausedUntil *string `json:"pausedUntil,omitempty"`
}

// Configuration has OpenShift's configuration objects; Atoll reads one of them.
type Configuration struct {
	Authentication Authentication `json:"authentication,omitzero"`
}

// Authentication is OpenShift's AuthenticationSpec.
type Authentication struct {
	Type          string         `json:"type,omitempty"` // AuthenticationOIDC, or another that Atoll does not follow
	OIDCProviders []OIDCProvider `json:"oidcProviders,omitempty"`
}

// AuthenticationOIDC is the type of an Authentication by tokens of OIDCProviders.
const AuthenticationOIDC = "OIDC"

// OIDCProvider is an issuer of tokens.
type OIDCProvider struct {
	Name                 string                `json:"name"`
	Issuer               TokenIssuer           `json:"issuer"`
	ClaimMappings        TokenClaimMappings    `json:"claimMappings,omitzero"`
	ClaimValidationRules []TokenValidationRule `json:"claimValidationRules,omitempty"`
}

// TokenIssuer names an issuer and the clients whose tokens count.
type TokenIssuer struct {
	URL       string   `json:"issuerURL"`
	Audiences []string `json:"audiences"`
	// CertificateAuthority names a ConfigMap with the certificates, below CABundleKey, that verify the issuer's server.
	CertificateAuthority LocalObject `json:"issuerCertificateAuthority,omitzero"`
}

// CABundleKey is the key of certificates in a ConfigMap.
const CABundleKey = "ca-bundle.crt"

// TokenClaimMappings make names of claims.
type TokenClaimMappings struct {
	Username UsernameClaimMapping `json:"username,omitzero"`
	Groups   GroupsClaimMapping   `json:"groups,omitzero"`
}

// UsernameClaimMapping makes the name of the user.
type UsernameClaimMapping struct {
	Claim        string         `json:"claim"`
	PrefixPolicy string         `json:"prefixPolicy,omitempty"` // Prefix or NoPrefix
	Prefix       UsernamePrefix `json:"prefix,omitzero"`
}

// UsernamePrefix is the prefix of users, with the policy Prefix.
type UsernamePrefix struct {
	PrefixString string `json:"prefixString"`
}

// GroupsClaimMapping makes the names of groups.
type GroupsClaimMapping struct {
	Claim  string `json:"claim,omitempty"`
	Prefix string `json:"prefix,omitempty"`
}

// TokenValidationRule is a rule that tokens follow.
type TokenValidationRule struct {
	Type          string        `json:"type"` // RequiredClaim
	RequiredClaim RequiredClaim `json:"requiredClaim,omitzero"`
}

// RequiredClaim is a claim that tokens have, with this value.
type RequiredClaim struct {
	Claim         string `json:"claim"`
	RequiredValue string `json:"requiredValue"`
}

// Release is a version to run, as an image.
type Release struct {
	Image string `json:"image"`
}

// Platform is the infrastructure; Atoll passes it on.
type Platform struct {
	Type string `json:"type,omitempty"`
}

// LocalObject names an object in the same namespace.
type LocalObject struct {
	Name string `json:"name"`
}

// DNS is the customer's domain.
type DNS struct {
	BaseDomain string `json:"baseDomain,omitempty"`
}

// ClusterNetworking are the networks of a cluster; none may overlap another.
type ClusterNetworking struct {
	ClusterNetwork []ClusterNetworkEntry `json:"clusterNetwork,omitempty"` // of pods
	ServiceNetwork []NetworkEntry        `json:"serviceNetwork,omitempty"`
	MachineNetwork []NetworkEntry        `json:"machineNetwork,omitempty"`
	NetworkType    string                `json:"networkType,omitempty"`
}

// ClusterNetworkEntry is a network of pods.
type ClusterNetworkEntry struct {
	CIDR       string `json:"cidr"`
	HostPrefix int32  `json:"hostPrefix,omitempty"`
}

// NetworkEntry is a network.
type NetworkEntry struct {
	CIDR string `json:"cidr"`
}

// HostedClusterStatus is the observed state of a HostedCluster and its plane.
type HostedClusterStatus struct {
	Version              *ClusterVersionStatus `json:"version,omitempty"`
	KubeConfig           *LocalObject          `json:"kubeconfig,omitempty"`
	ControlPlaneEndpoint APIEndpoint           `json:"controlPlaneEndpoint,omitzero"`
	Conditions           []metav1.Condition    `json:"conditions,omitempty"`

	// Power, Restore, Backups, Upgrade, Move and Rotations, by kind of key, are Atoll's additions.
	Power     Power                     `json:"power,omitempty"`
	Restore   *RestoreStatus            `json:"restore,omitempty"`
	Backups   *BackupStatus             `json:"backups,omitempty"`
	Upgrade   *UpgradeStatus            `json:"upgrade,omitempty"` // the last one; none before the first
	Rotations map[string]RotationStatus `json:"rotations,omitempty"`
	Move      *MoveStatus               `json:"move,omitempty"` // the last one
	Size      *SizeStatus               `json:"size,omitempty"` // none for a plane that was never given one
}

// SizeStatus is the size class of a plane. It has no measured amounts: each change of a status travels to the region.
// No member is omitted, as in RestoreStatus.
type SizeStatus struct {
	Class       string       `json:"class"`  // whose limits hold
	Wanted      string       `json:"wanted"` // that the plane's use needs; "" while nothing is known of its use
	MemoryMiB   int64        `json:"memoryMiB"`
	Processes   int          `json:"processes"`
	CPUWeight   int          `json:"cpuWeight"`
	Nodes       int          `json:"nodes"`
	Enforced    bool         `json:"enforced"` // the kernel holds the plane to the limits
	OutOfMemory *metav1.Time `json:"outOfMemory"`
	Message     string       `json:"message"`
}

// APIEndpoint is where a plane is reached.
type APIEndpoint struct {
	Host string `json:"host"`
	Port int32  `json:"port"`
}

// Power is the requested state of a plane: running or stopped.
type Power string

// Powers.
const (
	Awake  Power = "Awake"
	Asleep Power = "Asleep" // its process is stopped, its data is kept
	Waking Power = "Waking"
)

// ClusterVersionStatus is the version that is run and those that were.
type ClusterVersionStatus struct {
	Desired            VersionRelease  `json:"desired"`
	History            []UpdateHistory `json:"history,omitempty"` // newest first
	ObservedGeneration int64           `json:"observedGeneration"`
	// AvailableUpdates is null when they are not known.
	AvailableUpdates []VersionRelease `json:"availableUpdates"`
}

// VersionRelease is a version and its image.
type VersionRelease struct {
	Version string `json:"version"`
	Image   string `json:"image"`
}

// UpdateHistory is one version that was run or tried.
type UpdateHistory struct {
	State          UpdateState  `json:"state"`
	StartedTime    metav1.Time  `json:"startedTime"`
	CompletionTime *metav1.Time `json:"completionTime"` // null while it is not completed
	Version        string       `json:"version"`
	Image          string       `json:"image"`
	Verified       bool         `json:"verified"`
}

// UpdateState is how far an update came.
type UpdateState string

// States of an update.
const (
	Partial   UpdateState = "Partial"
	Completed UpdateState = "Completed"
)

// Conditions of a HostedCluster, as HyperShift names them.
const (
	Available               = "Available"
	Progressing             = "Progressing"
	Degraded                = "Degraded"
	ValidConfiguration      = "ValidConfiguration"
	SupportedHostedCluster  = "SupportedHostedCluster"
	ValidReleaseImage       = "ValidReleaseImage"
	EtcdAvailable           = "EtcdAvailable"
	BackedUp                = "BackedUp" // Atoll's own: every acknowledged write is stored within seconds
	KubeAPIServerAvailable  = "KubeAPIServerAvailable"
	InfrastructureReady     = "InfrastructureReady"
	ReconciliationActive    = "ReconciliationActive"
	ReconciliationSucceeded = "ReconciliationSucceeded"
	ClusterVersionAvailable = "ClusterVersionAvailable"
	ValidIDPConfiguration   = "ValidIDPConfiguration" // the keys of all issuers of tokens are known
)
