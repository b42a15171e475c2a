package arm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"atoll.dev/cluster"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// Kinds of the documents of this front, in the database platform (decision 105).
const (
	kindSubscription store.Kind = "ArmSubscription"
	kindCluster      store.Kind = "ArmCluster"
	kindPool         store.Kind = "ArmNodePool"
	kindAuth         store.Kind = "ArmExternalAuth"
)

// indexes are the columns, besides the names, by which Clusters Service and the worker find documents.
var indexes = map[store.Kind][]store.Index{
	kindCluster: {{Name: "azure_name", On: "btree (lower(spec->>'name'))", Live: true}},
	kindPool:    {{Name: "parent", On: "btree ((spec->>'parent'))", Live: true}},
	kindAuth:    {{Name: "parent", On: "btree ((spec->>'parent'))", Live: true}},
}

// childrenSQL finds the node pools and external authentications of a cluster by the id of its document.
const childrenSQL = "d.spec->>'parent' = $1"

// resourceFacet, followed by the id of the Cluster at the lifecycle manager, is the facet of a cluster's document. An
// index on the status instead would prevent PostgreSQL from updating statuses in place.
const resourceFacet = "resource="

// clusterByIDSQL finds the document of a cluster by its own id, or by the id of its Cluster at the lifecycle manager,
// which is in a facet. oldClusterByIDSQL finds documents that were written before they had the facet.
const (
	clusterByIDSQL = "(d.id = $1 or d.id = any(array(select f.id from feed f where f.kind = 'ArmCluster' " +
		"and f.facets @> array['" + resourceFacet + "' || $1])))"
	oldClusterByIDSQL = "d.status->>'resource' = $1"
)

// facetsOf returns the facets of the document of a cluster.
func facetsOf(d store.Document) []string {
	var status resourceStatus
	if json.Unmarshal(d.Status, &status) != nil || status.Resource == "" {
		return nil
	}
	return []string{resourceFacet + status.Resource}
}

// StoreKinds returns the kinds with which the database of this front is opened.
func StoreKinds() []store.KindSpec {
	owner := func(d store.Document) string {
		var spec struct{ Account cluster.Account }
		_ = json.Unmarshal(d.Spec, &spec) // a document without an account is the region's
		return string(spec.Account)
	}
	operations := ops.StoreKind()
	operations.Owner = func(d store.Document) string {
		var order ops.Order
		var p parameters
		if json.Unmarshal(d.Spec, &order) == nil {
			_ = json.Unmarshal(order.Parameters, &p) // an operation without an account is the region's
		}
		return string(p.Account)
	}
	specs := []store.KindSpec{operations}
	for _, kind := range []store.Kind{kindSubscription, kindCluster, kindPool, kindAuth} {
		of := store.KindSpec{Kind: kind, History: true, Owner: owner, Indexes: indexes[kind]}
		if kind == kindCluster {
			of.Facets = facetsOf
		}
		specs = append(specs, of)
	}
	return specs
}

// resourceSpec is the requested state of a resource. The scope of its document is the subscription; its
// name is the path of the resource below the subscription, in lower case. The document of an external
// authentication has the name of its cluster, so that a cluster has one at most. The id of a document is
// never used again.
type resourceSpec struct {
	Account    cluster.Account `json:"account"`
	Path       string          `json:"path"` // the id of the resource in Azure, with the case of its first PUT
	Parent     string          `json:"parent,omitempty"`
	Name       string          `json:"name"`
	Location   string          `json:"location"`
	Tags       map[string]any  `json:"tags,omitempty"`
	Identity   any             `json:"identity,omitempty"`
	Properties map[string]any  `json:"properties"`
	SystemData map[string]any  `json:"systemData,omitempty"`
	// Image is the release that version.id stands for; it changes with version.id only.
	Image string `json:"image"`
}

// resourceStatus is the observed state of a resource.
type resourceStatus struct {
	State     string       `json:"provisioningState"`
	Error     *ops.Error   `json:"error,omitempty"`    // of the last operation
	Resource  string       `json:"resource,omitempty"` // id at the lifecycle manager; "": unknown
	Observed  *observation `json:"observed,omitempty"`
	Operation string       `json:"operation,omitempty"` // the last one
}

// observation is the part of the observed state of a Cluster or NodePool that the resource shows.
type observation struct {
	URL        string `json:"url,omitempty"`
	BaseDomain string `json:"baseDomain,omitempty"` // of the name of a cluster's API server
	Version    string `json:"version,omitempty"`
}

// resource is a document of this front, decoded.
type resource struct {
	kind    store.Kind
	id      string
	scope   string // the subscription
	name    string
	version int64
	spec    resourceSpec
	status  resourceStatus
}

// The words of provisioningState.
const (
	stateAccepted     = "Accepted"
	stateProvisioning = "Provisioning"
	stateUpdating     = "Updating"
	stateDeleting     = "Deleting"
	stateSucceeded    = "Succeeded"
	stateFailed       = "Failed"
	stateCanceled     = "Canceled"
)

// isTerminal reports whether no operation works on a resource with this state.
func isTerminal(state string) bool {
	return state == stateSucceeded || state == stateFailed || state == stateCanceled
}

// toResource decodes a document.
func toResource(d store.Document) (resource, error) {
	r := resource{kind: d.Kind, id: d.ID, scope: d.Scope, name: d.Name, version: d.Version}
	err := decodeNumbers(d.Spec, &r.spec)
	if err == nil {
		err = json.Unmarshal(d.Status, &r.status)
	}
	if err != nil {
		return r, fmt.Errorf("reading %s %s: %w", d.Kind, d.ID, err)
	}
	return r, nil
}

// store writes spec and status of the resource into its document.
func (r resource) store(d *store.Document) (err error) {
	if d.Spec, err = json.Marshal(r.spec); err == nil {
		d.Status, err = json.Marshal(r.status)
	}
	if err != nil {
		return fmt.Errorf("encoding %s %s: %w", r.kind, r.id, err)
	}
	return nil
}

// authOperationSuffix makes, after the id of a cluster's document, the operation key of its external authentication. A
// change of the Cluster wakes the operation with that key.
const authOperationSuffix = "/" + authsSegment

// operationKey returns the name by which the engine knows the resource (ops.Order.Resource). Two operations
// with the same key never run at the same time.
func (r resource) operationKey() string {
	if r.kind == kindAuth {
		return r.spec.Parent + authOperationSuffix
	}
	return r.id
}

// etag returns the entity tag of a state of the resource.
func (r resource) etag() string { return fmt.Sprintf("%q", fmt.Sprint(r.version)) }

// decodeNumbers decodes JSON and keeps its numbers as they are written.
func decodeNumbers(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// clusterNameOf returns the name of the Cluster at the lifecycle manager. Names are unique in an
// account there, and in a resource group here, so the name has a digest of the resource's id.
func clusterNameOf(r resource) string {
	const longest = 45
	name := strings.ToLower(r.spec.Name)
	name = strings.Trim(name[:min(len(name), longest)], "-")
	sum := sha256.Sum256([]byte(r.scope + "/" + r.name))
	return name + "-" + hex.EncodeToString(sum[:4])
}

// resourceTypeOf returns the type of a kind of resources.
func resourceTypeOf(kind store.Kind) string {
	switch kind {
	case kindPool:
		return namespace + "/" + clustersSegment + "/" + poolsSegment
	case kindAuth:
		return namespace + "/" + clustersSegment + "/" + authsSegment
	}
	return namespace + "/" + clustersSegment
}

// fieldsOf returns the fields of the properties of a kind of resources.
func fieldsOf(kind store.Kind) []field {
	switch kind {
	case kindPool:
		return poolFields
	case kindAuth:
		return authFields
	}
	return clusterFields
}

// showObserved sets a member of an object of the properties that only the service writes.
func showObserved(properties map[string]any, object, member, value string) {
	have, _ := properties[object].(map[string]any)
	properties[object] = jsonvalue.Overlay(have, map[string]any{member: value})
}

// view returns a resource in the form of an api-version.
func (r resource) view(v version) map[string]any {
	properties := v.visibleFields(fieldsOf(r.kind), r.spec.Properties)
	properties["provisioningState"] = r.status.State
	if seen := r.status.Observed; seen != nil && seen.URL != "" && r.kind == kindCluster {
		showObserved(properties, "api", "url", seen.URL)
		showObserved(properties, "platform", "issuerUrl", cluster.OwnIssuer)
		if seen.BaseDomain != "" {
			showObserved(properties, "dns", "baseDomain", seen.BaseDomain)
		}
	}
	shown := map[string]any{
		"id": r.spec.Path, "name": r.spec.Name, "type": resourceTypeOf(r.kind), "properties": properties,
	}
	if r.kind != kindAuth {
		shown["location"] = r.spec.Location
	}
	if len(r.spec.Tags) > 0 {
		shown["tags"] = r.spec.Tags
	}
	if r.spec.Identity != nil {
		shown["identity"] = r.spec.Identity
	}
	if len(r.spec.SystemData) > 0 {
		shown["systemData"] = r.spec.SystemData
	}
	return shown
}
