package arm

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"atoll.dev/internal/rest"
	"atoll.dev/store"
)

// target is a parsed path: the cluster, node pool or external authentication that it names.
type target struct {
	kind     store.Kind
	group    string
	cluster  string
	name     string // of the resource itself
	path     string // its id, with the case in which the client sent the names
	document string // the name of its document
}

var groupName = regexp.MustCompile(`^[-\w.()]{0,89}[-\w()]$`)

// parseTarget reads the path of a cluster, node pool or external authentication. The fixed parts of the id get
// their own case.
func parseTarget(path string, kind store.Kind) (target, error) {
	// "", subscriptions, S, resourceGroups, G, providers, P, hcpOpenShiftClusters, C, nodePools or externalAuths, N
	parts := strings.Split(path, "/")
	if len(parts) < 9 || kind != kindCluster && len(parts) < 11 {
		return target{}, rest.Errorf(http.StatusNotFound, codeNotFound, "The requested path could not be found.")
	}
	t := target{kind: kind, group: parts[4], cluster: parts[8], name: parts[8]}
	t.path = fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s/%s", strings.ToLower(parts[2]), t.group,
		namespace, clustersSegment, t.cluster)
	t.document = strings.ToLower(t.group + "/" + t.cluster)
	wrong := func(code, name, what string) error {
		return rest.Errorf(http.StatusBadRequest, code, "The %s '%s' is invalid.", what, name)
	}
	switch {
	case !groupName.MatchString(t.group):
		return t, wrong("InvalidResourceGroupName", t.group, "resource group name")
	case !clusterName.MatchString(t.cluster):
		return t, wrong(codeInvalidName, t.cluster, "resource name")
	}
	if kind == kindPool {
		t.name = parts[10]
		t.path += "/" + poolsSegment + "/" + t.name
		t.document += "/" + strings.ToLower(t.name)
		if !poolName.MatchString(t.name) {
			return t, wrong(codeInvalidName, t.name, "resource name")
		}
	}
	if kind == kindAuth {
		t.name = parts[10]
		t.path += "/" + authsSegment + "/" + t.name
		if !poolName.MatchString(t.name) { // the same rule
			return t, wrong(codeInvalidName, t.name, "resource name")
		}
	}
	return t, nil
}

// findResource reads the resource that a path in lower case names, and its cluster, into a request. They
// stay nil when they do not exist.
func (f *front) findResource(ctx context.Context, q *request, subscription, path string) error {
	parts := strings.Split(path, "/")
	if len(parts) < 9 || parts[3] != "resourcegroups" || parts[7] != strings.ToLower(clustersSegment) {
		return nil
	}
	kind, name := kindCluster, parts[4]+"/"+parts[8]
	if len(parts) == 11 && parts[9] == strings.ToLower(poolsSegment) {
		kind, name = kindPool, name+"/"+parts[10]
	}
	if len(parts) == 11 && parts[9] == strings.ToLower(authsSegment) {
		kind = kindAuth
	}
	var err error
	if kind != kindCluster {
		if q.parent, err = f.byName(ctx, kindCluster, subscription, parts[4]+"/"+parts[8]); err != nil {
			return err
		}
	}
	q.resource, err = f.byName(ctx, kind, subscription, name)
	if kind == kindAuth && q.resource != nil && !strings.EqualFold(q.resource.spec.Name, parts[10]) {
		q.resource = nil // the cluster has one with another name
	}
	return err
}

// byName reads a resource; it is nil if there is none.
func (f *front) byName(ctx context.Context, kind store.Kind, subscription, name string) (*resource, error) {
	d, err := f.store.GetByName(ctx, kind, subscription, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := toResource(d)
	return &r, err
}

// notFound returns the answer to a request for a resource that does not exist.
func (f *front) notFound(x *exchange, kind store.Kind) error {
	t, err := parseTarget(x.path, kind)
	if err != nil {
		return err
	}
	name := t.cluster
	if kind != kindCluster {
		name += "/" + t.name
	}
	return rest.Errorf(http.StatusNotFound, codeResourceNotFound,
		"The resource '%s/%s' under resource group '%s' was not found.", resourceTypeOf(kind), name, t.group)
}

// parentOf reads the cluster of the node pools or external authentications in a path.
func (f *front) parentOf(x *exchange) (*resource, error) {
	t, err := parseTarget(x.path, kindCluster)
	if err != nil {
		return nil, err
	}
	parent, err := f.byName(x.ctx, kindCluster, x.subscription.ID, t.document)
	if err == nil && parent == nil {
		return nil, rest.Errorf(http.StatusNotFound, codeParentNotFound,
			"The parent resource '%s/%s' under resource group '%s' was not found.", resourceTypeOf(kindCluster), t.cluster,
			t.group)
	}
	return parent, err
}
