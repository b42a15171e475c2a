package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	workv1 "open-cluster-management.io/api/work/v1"
)

// amwName is the name of an AppliedManifestWork without the hash of its hub.
type amwName string

// objectKey identifies an object in one API version.
type objectKey struct {
	schema.GroupVersionResource
	Namespace, Name string
}

// identity identifies an object independently of the API version.
type identity struct {
	Group, Resource, Namespace, Name string
}

func (k objectKey) identity() identity {
	return identity{k.Group, k.Resource, k.Namespace, k.Name}
}

func (k objectKey) String() string {
	return strings.Join([]string{k.Group, k.Version, k.Resource, k.Namespace, k.Name}, "/")
}

// resourceRef is an applied object as AppliedManifestWorks record it.
type resourceRef = workv1.AppliedManifestResourceMeta

func refOf(k objectKey, uid types.UID) resourceRef {
	return resourceRef{
		ResourceIdentifier: workv1.ResourceIdentifier{Group: k.Group, Resource: k.Resource, Namespace: k.Namespace,
			Name: k.Name},
		Version: k.Version,
		UID:     string(uid),
	}
}

func keyOf(r resourceRef) objectKey {
	return objectKey{
		GroupVersionResource: schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource},
		Namespace:            r.Namespace, Name: r.Name,
	}
}

// compareRefs compares two references in the order in which OCM sorts appliedResources.
func compareRefs(a, b resourceRef) int {
	for _, c := range []int{
		strings.Compare(a.Group, b.Group), strings.Compare(a.Version, b.Version), strings.Compare(a.Resource,
			b.Resource),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
	} {
		if c != 0 {
			return c
		}
	}
	return 0
}

// hubHash returns the name of the hub in AppliedManifestWorks: the hash of the broker's
// address exactly as configured.
func hubHash(brokerHost string) string { return hexSHA256([]byte(brokerHost)) }

func hexSHA256(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

var appliedWorks = schema.GroupVersionResource{
	Group: workv1.GroupName, Version: "v1", Resource: "appliedmanifestworks",
}

const (
	appliedWorkAPIVersion = workv1.GroupName + "/v1"
	appliedWorkKind       = "AppliedManifestWork"
)

func ownerReference(amwName string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: appliedWorkAPIVersion, Kind: appliedWorkKind, Name: amwName, UID: uid}
}

func isAppliedWork(o metav1.OwnerReference) bool {
	return o.APIVersion == appliedWorkAPIVersion && o.Kind == appliedWorkKind
}
