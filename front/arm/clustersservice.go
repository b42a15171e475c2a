package arm

import (
	"context"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
	"atoll.dev/release"
	"atoll.dev/search"
	"atoll.dev/store"
)

// OperatorOptions are what the APIs for operators need.
type OperatorOptions struct {
	Store      *store.Store // of the database platform, opened with StoreKinds too
	CLM        *clmclient.Client
	Identifier access.Identifier // of the Platform API
	Region     string
	Limiter    *access.Limiter
	Denials    access.Denials
	Log        *slog.Logger
	Metrics    prometheus.Registerer // gets the metrics of requests
}

// clustersService serves the queries of Clusters Service with which operators of ARO HCP look for a
// cluster: which cluster of the region belongs to a resource of Azure, and which management cluster hosts
// it. It only reads, and has no route for customers.
type clustersService struct {
	store  *store.Store
	clm    *clmclient.Client
	region string
}

// Paths of Clusters Service, where both APIs have the same clusters, and of the admin API.
const (
	clustersMgmtPath = "/api/clusters_mgmt/v1"
	aroHCPPath       = "/api/aro_hcp/v1alpha1"
	adminPath        = "/admin"
)

// WithOperatorAPIs returns a handler that serves Clusters Service and the admin API of ARO classic below
// their paths, and calls next for all other paths.
func WithOperatorAPIs(o OperatorOptions, next http.Handler) http.Handler {
	s := &clustersService{store: o.Store, clm: o.CLM, region: o.Region}
	router := access.NewRouter(access.Options{Identifier: o.Identifier, Policy: access.PrivilegedOnly{}, Region: o.Region,
		Limiter: o.Limiter, Denials: o.Denials, Log: o.Log})
	for _, api := range []string{clustersMgmtPath, aroHCPPath} {
		for path, serve := range map[string]rest.Handler{
			"/clusters":                      s.list,
			"/clusters/{id}":                 s.withCluster(s.cluster),
			"/clusters/{id}/status":          s.withCluster(s.status),
			"/clusters/{id}/provision_shard": s.withCluster(s.provisionShard),
			"/clusters/{id}/node_pools":      s.withCluster(s.pools),
		} {
			router.Handle(access.Route{Method: http.MethodGet, Path: api + path, Action: "ListClusters", Kind: "Account",
				Audience: access.Operators}, serve)
		}
	}
	adminRouter := access.NewRouter(access.Options{Identifier: originalPathIdentifier{o.Identifier},
		Policy: access.PrivilegedOnly{}, Region: o.Region, Limiter: o.Limiter, Denials: o.Denials, Log: o.Log})
	(&adminAPI{release.NewCache(o.CLM)}).register(adminRouter)
	admin := rest.SecurityHeaders(rest.Observe(rest.Options{Log: o.Log, ErrorBody: errorBodyOf, Classify: classify,
		IDHeaders: []string{"X-Ms-Request-Id"}}, inLowerCase(adminRouter)))
	handler := rest.SecurityHeaders(rest.Observe(rest.Options{Log: o.Log, Classify: classify,
		IDHeaders: []string{"X-Operation-Id"}, Metrics: o.Metrics}, router))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, clustersMgmtPath+"/") || strings.HasPrefix(r.URL.Path, aroHCPPath+"/") {
			handler.ServeHTTP(w, r)
			return
		}
		if strings.HasPrefix(strings.ToLower(r.URL.Path), adminPath+"/") {
			admin.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// originalURLKey is the key of the context value with the URL before inLowerCase changed it.
type originalURLKey struct{}

// inLowerCase returns a handler whose requests have a path in lower case: names in Azure have no case.
func inLowerCase(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lower := r.Clone(context.WithValue(r.Context(), originalURLKey{}, r.URL))
		lower.URL.Path, lower.URL.RawPath = strings.ToLower(r.URL.Path), ""
		next.ServeHTTP(w, lower)
	})
}

// originalPathIdentifier identifies the sender of a request by the path in its original case, because the
// signature of a request covers that path.
type originalPathIdentifier struct{ access.Identifier }

// Identify implements access.Identifier.
func (s originalPathIdentifier) Identify(r *http.Request) (access.Identity, []byte, error) {
	if sent, isLower := r.Context().Value(originalURLKey{}).(*url.URL); isLower {
		r = r.WithContext(r.Context())
		r.URL = sent
	}
	return s.Identifier.Identify(r)
}

// apiPathOf returns the path at which the API of a request begins.
func apiPathOf(r *http.Request) string {
	if strings.HasPrefix(r.URL.Path, aroHCPPath) {
		return aroHCPPath
	}
	return clustersMgmtPath
}

// createdResource is a resource with the time of its creation.
type createdResource struct {
	resource
	created time.Time
}

// id returns the id of the cluster in the region; before the lifecycle manager has it, that of the document.
func (c createdResource) id() string {
	if c.status.Resource != "" {
		return c.status.Resource
	}
	return c.resource.id
}

// clusterStates are the states of Clusters Service by provisioningState.
var clusterStates = map[string]string{stateAccepted: "pending", stateProvisioning: "installing",
	stateUpdating: "updating", stateDeleting: "uninstalling", stateSucceeded: "ready",
	stateFailed: "error", stateCanceled: "error"}

// stateSQL is the state of Clusters Service in SQL. Its text is always the same: databases and connections
// keep a statement by its text.
var stateSQL = func() string {
	var s strings.Builder
	s.WriteString("case d.status->>'provisioningState'")
	for _, of := range slices.Sorted(maps.Keys(clusterStates)) {
		s.WriteString(" when '" + of + "' then '" + clusterStates[of] + "'")
	}
	return s.String() + " end"
}()

// clusterSearch declares by what clusters can be searched. Names of Azure have no case.
func clusterSearch() search.Schema {
	azure := map[string]string{"subscription_id": "d.scope", "resource_group_name": "split_part(d.name, '/', 1)",
		"resource_name": "lower(d.spec->>'name')"}
	return search.Schema{Table: "clusters", Fields: map[string]search.Field{
		"id":   {SQL: "coalesce(nullif(d.status->>'resource', ''), d.id)", Type: search.Text},
		"name": {SQL: azure["resource_name"], Type: search.Text},
		"azure": {Within: func(parts []string) (search.Field, bool) {
			if len(parts) != 1 || azure[parts[0]] == "" {
				return search.Field{}, false
			}
			sql := azure[parts[0]]
			return search.Field{SQL: sql, Type: search.Text, Equal: sql + " = lower(%s)"}, true
		}},
		"state": {SQL: stateSQL, Type: search.Text},
		"status": {Within: func(parts []string) (search.Field, bool) {
			return search.Field{SQL: stateSQL, Type: search.Text}, len(parts) == 1 && parts[0] == "state"
		}},
	}}
}

// Bounds of the pages of Clusters Service.
const (
	servicePageSize    = 100
	maxServicePageSize = 500
	// maxServiceOffset bounds how many clusters the database passes over before a page.
	maxServiceOffset = 100_000
)

// list serves the list of clusters, with search and pages.
func (s *clustersService) list(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	filter, err := clusterSearch().Parse(strings.TrimSpace(query.Get("search")))
	if err != nil {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "the search %q cannot be understood: %s",
			rest.Shorten(query.Get("search"), 200), err)
	}
	number := func(name string, fallback, most int) int {
		n, err := strconv.Atoi(query.Get(name))
		if err != nil || n < 1 {
			return fallback
		}
		return min(n, most)
	}
	page, size := number("page", 1, 1_000_000), number("size", servicePageSize, maxServicePageSize)
	if (page-1)*size > maxServiceOffset {
		return rest.Errorf(http.StatusBadRequest, rest.CodeInvalid, "page %d of %d clusters each begins after the first "+
			"%d clusters; narrow the list with: search=azure.subscription_id='SUBSCRIPTION'", page, size, maxServiceOffset)
	}
	list, err := s.store.List(r.Context(), store.Query{Kind: kindCluster, Where: store.Fragment(filter.SQL()), Limit: size,
		Offset: (page - 1) * size, Count: true, OrderBy: []store.Order{{Expr: "d.created_at", Type: "timestamptz"}}})
	if err != nil {
		return err
	}
	items := []any{}
	for _, d := range list.Documents {
		c, err := toResource(d)
		if err != nil {
			return err
		}
		items = append(items, s.clusterView(apiPathOf(r), createdResource{c, d.CreatedAt}))
	}
	return rest.WriteJSON(w, http.StatusOK, map[string]any{"kind": "ClusterList", "page": page, "size": len(items),
		"total": list.Total, "items": items})
}

// withCluster returns a handler that reads the cluster whose id is in the path, and calls serve with it.
func (s *clustersService) withCluster(serve func(*http.Request, createdResource) (map[string]any, error)) rest.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		id := r.PathValue("id")
		var page store.Page
		for _, sql := range []string{clusterByIDSQL, oldClusterByIDSQL} {
			if len(page.Documents) > 0 {
				break
			}
			var err error
			if page, err = s.store.List(r.Context(), store.Query{Kind: kindCluster, Limit: 1, Where: store.Fragment{SQL: sql,
				Args: []any{id}}}); err != nil {
				return err
			}
		}
		if len(page.Documents) == 0 {
			return rest.Errorf(http.StatusNotFound, "not-found", "no resource of Azure has the cluster %q; list them "+
				"with: GET %s/clusters", rest.Shorten(id, 64), apiPathOf(r))
		}
		c, err := toResource(page.Documents[0])
		if err != nil {
			return err
		}
		body, err := serve(r, createdResource{c, page.Documents[0].CreatedAt})
		if err != nil {
			return err
		}
		return rest.WriteJSON(w, http.StatusOK, body)
	}
}

// cluster serves GET of one cluster.
func (s *clustersService) cluster(r *http.Request, c createdResource) (map[string]any, error) {
	return s.clusterView(apiPathOf(r), c), nil
}

// clusterView returns a cluster in the form of Clusters Service.
func (s *clustersService) clusterView(api string, c createdResource) map[string]any {
	properties := c.spec.Properties
	azure := map[string]any{"subscription_id": c.scope, "resource_name": strings.ToLower(c.spec.Name),
		"resource_group_name":                strings.Split(c.resource.name, "/")[0],
		"managed_resource_group_name":        textAt(properties, "platform", "managedResourceGroup"),
		"subnet_resource_id":                 textAt(properties, "platform", "subnetId"),
		"network_security_group_resource_id": textAt(properties, "platform", "networkSecurityGroupId")}
	status := statusOf(c)
	shown := map[string]any{
		"kind": "Cluster", "id": c.id(), "href": api + "/clusters/" + c.id(), "name": strings.ToLower(c.spec.Name),
		"state": status["state"], "status": status, "azure": azure,
		"creation_timestamp": c.created.UTC().Format(time.RFC3339),
		"cloud_provider":     map[string]any{"id": "azure"}, "product": map[string]any{"id": "aro"},
		"region": map[string]any{"id": s.region}, "hypershift": map[string]any{"enabled": true},
		"properties": map[string]any{"azure_resource_id": c.spec.Path, "account": c.spec.Account},
	}
	if seen := c.status.Observed; seen != nil {
		if seen.URL != "" {
			shown["api"] = map[string]any{"url": seen.URL}
		}
		if seen.Version != "" {
			shown["version"] = map[string]any{"id": "openshift-v" + seen.Version, "raw_id": seen.Version,
				"channel_group": textAt(properties, "version", "channelGroup")}
		}
	}
	return shown
}

// statusOf returns the status of a cluster, with the error of its last operation.
func statusOf(c createdResource) map[string]any {
	status := map[string]any{"kind": "ClusterStatus", "id": c.id(), "state": clusterStates[c.status.State]}
	if e := c.status.Error; e != nil {
		status["provision_error_code"], status["provision_error_message"] = e.Code, e.Message
	}
	return status
}

// status serves GET of the status of a cluster.
func (s *clustersService) status(_ *http.Request, c createdResource) (map[string]any, error) {
	return statusOf(c), nil
}

// provisionShard serves the name of the management cluster that hosts a cluster.
func (s *clustersService) provisionShard(r *http.Request, c createdResource) (map[string]any, error) {
	reports, err := s.reports(r.Context(), c)
	if err != nil {
		return nil, err
	}
	name := string(reports.Placement().ManagementCluster)
	if name == "" {
		return nil, rest.Errorf(http.StatusNotFound, "not-found", "the cluster %s has no management cluster yet; see: "+
			"atoll cluster trace", c.id())
	}
	return map[string]any{"kind": "ProvisionShard", "id": name,
		"href":   apiPathOf(r) + "/clusters/" + c.id() + "/provision_shard",
		"status": "active", "management_cluster": name, "region": map[string]any{"id": s.region},
		"azure_shard": map[string]any{"aks_management_cluster_name": name}}, nil
}

// reports returns the reports of the adapters about a cluster, none before the lifecycle manager has it.
func (s *clustersService) reports(ctx context.Context, c createdResource) (cluster.Reports, error) {
	if c.status.Resource == "" {
		return nil, nil
	}
	ctx = clmclient.WithTenant(ctx, c.spec.Account)
	r, err := s.clm.GetWithStatuses(ctx, clusters, c.status.Resource)
	if remote.StatusOf(err) == http.StatusNotFound {
		return nil, nil
	}
	return cluster.Reports(r.Statuses), err
}

// pools serves the list of node pools of a cluster.
func (s *clustersService) pools(r *http.Request, c createdResource) (map[string]any, error) {
	items := []any{}
	q := store.Query{Kind: kindPool, Where: store.Fragment{SQL: childrenSQL, Args: []any{c.resource.id}}}
	for {
		page, err := s.store.List(r.Context(), q)
		if err != nil {
			return nil, err
		}
		for _, d := range page.Documents {
			p, err := toResource(d)
			if err != nil {
				return nil, err
			}
			items = append(items, map[string]any{"kind": "NodePool", "id": strings.ToLower(p.spec.Name),
				"replicas": p.spec.Properties["replicas"], "status": statusOf(createdResource{p, d.CreatedAt}),
				"version": map[string]any{"id": textAt(p.spec.Properties, "version", "id")},
				"azure_node_pool": map[string]any{"resource_name": strings.ToLower(p.spec.Name),
					"vm_size": textAt(p.spec.Properties, "platform", "vmSize")}})
		}
		if q.After = page.Next; q.After == "" {
			return map[string]any{"kind": "NodePoolList", "page": 1, "size": len(items), "total": len(items), "items": items},
				nil
		}
	}
}
