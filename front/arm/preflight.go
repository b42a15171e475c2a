package arm

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/store"
)

// preflight serves the preflight of a deployment: it checks each resource of the deployment as a PUT would, the
// quotas too, and stores nothing. It answers 200 in any case; the body says whether the deployment can succeed.
func (f *front) preflight(x *exchange) error {
	if err := x.subscription.checkState(x.r.Method); err != nil {
		return err
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	resources, _ := body["resources"].([]any)
	check := preflightCheck{f: f, x: x, group: x.r.PathValue("rg"), planned: map[string]*resource{}}
	if parts := strings.Split(x.path, "/"); len(parts) > 4 {
		check.group = parts[4] // with its case
	}
	// A node pool may come before its cluster in the list.
	for _, kind := range []store.Kind{kindCluster, kindPool, kindAuth} {
		for _, item := range resources {
			if err := check.add(kind, item); err != nil {
				return err
			}
		}
	}
	if err := check.checkQuotas(); err != nil {
		return err
	}
	answer := map[string]any{"status": string(ops.Succeeded)}
	if failure := check.failure(); failure != nil {
		answer = map[string]any{"status": string(ops.Failed), "error": failure}
	}
	return x.writeJSON(http.StatusOK, answer)
}

// preflightCheck is the check of one deployment.
type preflightCheck struct {
	f        *front
	x        *exchange
	group    string
	planned  map[string]*resource // by the name of the document: the resources after the deployment
	needs    [4]int64             // clusters, node pools, nodes and works that the deployment adds
	failures []errorDetail
}

// add checks one resource if it has a kind. Resources of other types, with unknown api-versions, or with expressions
// of the template language that ARM has not evaluated are skipped.
func (c *preflightCheck) add(kind store.Kind, item any) error {
	body, _ := item.(map[string]any)
	name, _ := body["name"].(string)
	kindName, _ := body["type"].(string)
	apiVersion, _ := body["apiVersion"].(string)
	v, known := parseVersion(apiVersion)
	if !strings.EqualFold(kindName, resourceTypeOf(kind)) || !known || hasExpression(body) {
		return nil
	}
	path := fmt.Sprintf("/subscriptions/%s/resourceGroups/%s/providers/%s/%s/%s", c.x.subscription.ID, c.group, namespace,
		clustersSegment, name)
	if kind == kindPool {
		clusterName, poolName, _ := strings.Cut(name, "/")
		path = strings.TrimSuffix(path, name) + clusterName + "/" + poolsSegment + "/" + poolName
		body["name"] = poolName
	}
	if kind == kindAuth {
		clusterName, authName, _ := strings.Cut(name, "/")
		path = strings.TrimSuffix(path, name) + clusterName + "/" + authsSegment + "/" + authName
		body["name"] = authName
	}
	err := c.plan(kind, v, path, body)
	e, isAnswer := errors.AsType[*rest.Error](err)
	if !isAnswer || e.Status >= http.StatusInternalServerError {
		return err
	}
	detail := errorDetail{Code: codeOf(e), Message: fmt.Sprintf("Content validation failed for '%s': %s", name, e.Reason),
		Target: strings.ToLower(path)}
	for _, field := range e.Fields {
		detail.Details = append(detail.Details, errorDetail{Code: codeInvalidContent, Message: field.Message,
			Target: field.Field})
	}
	c.failures = append(c.failures, detail)
	return nil
}

// plan checks a resource as a PUT of its path would, and adds its use of the quotas to needs.
func (c *preflightCheck) plan(kind store.Kind, v version, path string, body map[string]any) error {
	named, err := parseTarget(path, kind)
	if err != nil {
		return err
	}
	have, err := c.f.byName(c.x.ctx, kind, c.x.subscription.ID, named.document)
	if err != nil {
		return err
	}
	var parent *resource
	if kind != kindCluster {
		name := strings.ToLower(named.group + "/" + named.cluster)
		if parent = c.planned[name]; parent == nil {
			if parent, err = c.f.byName(c.x.ctx, kindCluster, c.x.subscription.ID, name); err != nil {
				return err
			}
		}
		if parent == nil {
			return rest.Errorf(http.StatusNotFound, codeParentNotFound,
				"The parent resource '%s/%s' exists neither in the region nor in the deployment.", resourceTypeOf(kindCluster),
				named.cluster)
		}
	}
	if have != nil && !isTerminal(have.status.State) {
		return conflict(have.spec.Path, "Cannot update resource while resource is %q", strings.ToLower(have.status.State))
	}
	next, err := c.f.nextResource(c.x.with(v), named, have, parent, body)
	if err != nil {
		return err
	}
	if err := c.f.authorize(c.x, have, parent, next); err != nil {
		return err
	}
	key := named.document
	if kind == kindAuth { // whose document has the name of the cluster's
		key += "/" + authsSegment
		if have != nil && !strings.EqualFold(have.spec.Name, named.name) {
			return secondAuth()
		}
	}
	if c.planned[key] != nil {
		return rest.Errorf(http.StatusBadRequest, codeInvalidContent, "The deployment has the resource twice.")
	}
	c.planned[key] = &next
	for i, n := range quotaUse(&next) {
		c.needs[i] += n
	}
	for i, n := range quotaUse(have) {
		c.needs[i] -= n
	}
	return nil
}

// with returns a copy of the exchange with another api-version.
func (x *exchange) with(v version) *exchange {
	q := *x.request
	q.version = v
	after := *x
	after.request = &q
	return &after
}

// quotaNames are the quotas of an account in the order of quotaUse, as the lifecycle manager names them.
var quotaNames = [4]string{"clusters", "node_pools", "nodes", "works"}

// quotaUse returns what a resource uses of each quota; nil uses nothing.
func quotaUse(r *resource) [4]int64 {
	switch {
	case r == nil, r.kind == kindAuth:
		return [4]int64{}
	case r.kind == kindCluster:
		return [4]int64{1, 0, 0, 2}
	}
	return [4]int64{0, 1, int64(integerAt(r.spec.Properties, "replicas")), 1}
}

// checkQuotas adds a failure for each quota of the account that the deployment would exceed.
func (c *preflightCheck) checkQuotas() error {
	if c.needs == [4]int64{} {
		return nil
	}
	quotas, err := c.f.clm.Quotas(c.x.ctx, c.x.subscription.Account)
	if err != nil {
		return err
	}
	for _, q := range quotas.Items {
		for i, name := range quotaNames {
			if q.Name == name && q.Limit != nil && c.needs[i] > 0 && q.Used+c.needs[i] > *q.Limit {
				c.failures = append(c.failures, errorDetail{Code: codeQuotaExceeded, Message: fmt.Sprintf("The deployment needs "+
					"%d of the quota %s, and %d of %d are used.", c.needs[i], name, q.Used, *q.Limit), Target: name})
			}
		}
	}
	return nil
}

// failure returns the error of the deployment, nil when all checks have passed.
func (c *preflightCheck) failure() *errorDetail {
	switch len(c.failures) {
	case 0:
		return nil
	case 1:
		return &c.failures[0]
	}
	return &errorDetail{Code: codeSeveralErrors, Message: fmt.Sprintf("%d errors occurred", len(c.failures)),
		Details: c.failures}
}

// hasExpression reports whether a value has an expression of the template language, such as "[parameters('a')]".
func hasExpression(value any) bool {
	switch v := value.(type) {
	case string:
		return strings.HasPrefix(v, "[") && strings.HasSuffix(v, "]") && !strings.HasPrefix(v, "[[")
	case []any:
		for _, item := range v {
			if hasExpression(item) {
				return true
			}
		}
	case map[string]any:
		for _, item := range v {
			if hasExpression(item) {
				return true
			}
		}
	}
	return false
}
