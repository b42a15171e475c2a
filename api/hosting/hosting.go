// Package hosting holds what Atoll's hosting has beyond HyperShift's API: the
// custom resource Credential of hosting.atoll.dev/v1alpha1, its
// CustomResourceDefinition, and how things on a management cluster are named.
//
// It contains no logic but the names and imports nothing of ours.
package hosting

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Group and Version of Credential.
const (
	Group   = "hosting.atoll.dev"
	Version = "v1alpha1"
)

// SystemNamespace on a management cluster is hosting's own: its service
// account, and the secrets that it gives to hosted clusters.
const SystemNamespace = "atoll-hosting"

// Credentials is the resource of Credential.
func Credentials() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: Group, Version: Version, Resource: "credentials"}
}

// CredentialCRD is the CustomResourceDefinition of Credential, YAML.
//
//go:embed credentials.crd.yaml
var CredentialCRD []byte

// Credential asks for a client certificate in a hosted cluster. The private
// key stays with whoever made the request; a Credential holds nothing secret.
type Credential struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   CredentialSpec   `json:"spec"`
	Status CredentialStatus `json:"status,omitzero"`
}

// CredentialSpec is the requested state of a Credential.
type CredentialSpec struct {
	ClusterName string `json:"clusterName"` // of the HostedCluster in the same namespace
	ID          string `json:"id"`          // the credential's in the region
	// Request is a PEM certificate request. Only its key is taken, when its
	// signature is right; the certificate's subject is hosting's.
	Request           string `json:"request"`
	ExpirationSeconds int64  `json:"expirationSeconds"`
	Username          string `json:"username"` // the principal that asked for the credential
	// Role is RoleView, RoleEdit or RoleAdmin; "" is RoleAdmin.
	Role string `json:"role,omitempty"`
}

// Roles of a credential: the ClusterRoles of Kubernetes that its binding grants. RoleAdmin grants
// cluster-admin, because the customer administers the cluster and not only its namespaces.
const (
	RoleView  = "view"
	RoleEdit  = "edit"
	RoleAdmin = "admin"
)

// CredentialStatus is the observed state of a Credential, with its certificate.
type CredentialStatus struct {
	Certificate string `json:"certificate,omitempty"` // PEM
	// PEM: who signed the plane's serving certificate
	CABundle            string             `json:"caBundle,omitempty"`
	Server              string             `json:"server,omitempty"` // https://HOST:PORT
	TLSServerName       string             `json:"tlsServerName,omitempty"`
	ExpirationTimestamp *metav1.Time       `json:"expirationTimestamp,omitempty"`
	Conditions          []metav1.Condition `json:"conditions,omitempty"`
}

// Issued is the condition of a Credential whose certificate is in its status.
const Issued = "Issued"

// Namespace is the namespace of a cluster on its management cluster.
func Namespace(clusterID string) string { return "clusters-" + clusterID }

// HostedClusterName is the name of a cluster's HostedCluster.
func HostedClusterName(clusterID string) string { return "hc-" + short(clusterID) }

// NodePoolName is the name of a node pool's NodePool; hc is its HostedCluster,
// pool what the customer calls it.
func NodePoolName(hc, pool string) string { return hc + "-" + pool }

// CredentialName is the name of a credential's Credential.
func CredentialName(credentialID string) string { return "cred-" + short(credentialID) }

// ServerName is the name that a plane's serving certificate has and that
// the router finds it by, when its HostedCluster names no other.
func ServerName(hc string) string { return hc + "." + ServerDomain }

// ServerDomain is the domain of each ServerName. A region may give its clusters names of another domain.
const ServerDomain = "hosted.atoll.internal"

// CredentialUser is the user name of a credential in its plane, and the common name of its
// certificate. No other credential has it.
func CredentialUser(credentialID string) string { return "atoll:credential:" + credentialID }

// CredentialGroup is the only group of a credential's certificate, and the
// name of the ClusterRoleBinding that gives the credential its rights.
func CredentialGroup(credentialID string) string { return "atoll:credential:" + credentialID }

// short is of a hash, because the first digits of UUIDv7s are alike for weeks.
func short(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:])[:12]
}
