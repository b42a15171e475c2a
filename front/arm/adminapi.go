package arm

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"atoll.dev/access"
	"atoll.dev/internal/rest"
	"atoll.dev/release"
)

// adminAPI is the admin API of ARO classic, for operators only. It serves the actions that need no
// installer, and answers every other action with 501 and the reason, so that the log of an
// operator's script shows why nothing happened.
type adminAPI struct{ releases *release.Cache }

// adminVersion is the api-version of every request to the admin API.
const adminVersion = "admin"

// Reasons for 501.
const (
	noClassicCluster = "This region has no installer for openShiftClusters, so no cluster exists that the action %s " +
		"could work on. Clusters with a hosted control plane have: atoll cluster, and atoll access"
	noHive        = "The region has no Hive: %s needs it. Works on management clusters have: atoll work"
	noMaintenance = "The region has no installer for openShiftClusters, so %s has nothing to " +
		"maintain. Rollouts of the region have: atoll rollout"
	releasesAreInCLM = "Releases are resources of the lifecycle manager; %s changes none. Use: atoll clm"
)

// adminRoute is an action of the admin API: serve, or the reason why the region cannot carry it out.
type adminRoute struct {
	method, path string
	serve        func(*adminAPI, *http.Request) (any, error)
	reason       string
}

// classicAdminPath is the path of one cluster in the admin API.
const classicAdminPath = "/subscriptions/{sub}/resourcegroups/{rg}" + providerPath + classicPath + "/{cluster}"

// adminRoutes are the actions of ARO classic's admin API, below /admin, in lower case.
func adminRoutes() []adminRoute {
	routes := []adminRoute{
		{method: "GET", path: "/versions", serve: (*adminAPI).listReleases},
		{method: "PUT", path: "/versions", reason: releasesAreInCLM},
		{method: "GET", path: "/platformworkloadidentityrolesets", serve: emptyList("value")},
		{method: "PUT", path: "/platformworkloadidentityrolesets", reason: noClassicCluster},
		{method: "GET", path: "/supportedvmsizes", serve: (*adminAPI).listSizes},
		{method: "GET", path: "/clusters", serve: emptyList("clusters")},
		{method: "GET", path: providerPath + classicPath, serve: emptyList("value")},
		{method: "GET", path: "/billingdocuments", serve: emptyList("billingDocuments")},
		{method: "GET", path: "/billingdocuments/{id}", serve: (*adminAPI).answerNotFound},
		{method: "GET", path: "/hivesyncset", reason: noHive},
		{method: "GET", path: "/hivesyncset/syncsetname/{name}", reason: noHive},
		{method: "GET", path: "/hive/k8sobjects/{resource}", reason: noHive},
		{method: "GET", path: "/maintenancemanifests/queued", serve: emptyList("value")},
		{method: "POST", path: "/maintenancemanifests/cancel", reason: noMaintenance},
		{method: "GET", path: "/maintenanceschedules", serve: emptyList("value")},
		{method: "PUT", path: "/maintenanceschedules", reason: noMaintenance},
		{method: "GET", path: "/maintenanceschedules/{id}", serve: (*adminAPI).answerNotFound},
	}
	for action, methods := range map[string]string{
		"": "GET PATCH", "top/pods": "GET", "top/nodes": "GET", "effectiveroutetable": "GET",
		"kubernetesobjects": "GET POST DELETE", "approvecsr": "POST", "kubernetespodlogs": "GET", "resources": "GET",
		"serialconsole": "GET", "clusterdeployment": "GET", "clustersync": "GET", "redeployvm": "POST", "startvm": "POST",
		"stopvm": "POST", "skus": "GET", "preresizevalidation": "GET", "resize": "POST", "resizecontrolplane": "POST",
		"controlplanestatuscheckafterresize": "GET", "reconcilefailednic": "POST", "cordonnode": "POST", "drainnode": "POST",
		"etcdrecovery": "POST", "etcdcertificaterenew": "POST", "etcdkeycount": "POST", "deletemanagedresource": "POST",
		"exec": "POST", "runjob": "POST", "maintenancemanifests": "GET PUT", "maintenancemanifests/{id}": "GET DELETE",
		"maintenancemanifests/{id}/cancel": "POST", "selectors": "GET", "investigate": "POST", "kubeconfig/new": "POST",
		"kubeconfig/newelevated": "POST", "ssh/newelevated": "POST",
	} {
		for method := range strings.FieldsSeq(methods) {
			path := strings.TrimSuffix(classicAdminPath+"/"+action, "/")
			routes = append(routes, adminRoute{method: method, path: path, reason: noClassicCluster})
		}
	}
	return routes
}

// register registers the routes of the admin API.
func (a *adminAPI) register(router *access.Router) {
	for _, route := range adminRoutes() {
		action := access.Action("ListClusters")
		if route.method != http.MethodGet {
			action = "UpdateCluster"
		}
		router.Handle(access.Route{Method: route.method, Path: adminPath + route.path, Action: action, Kind: "Account",
			Audience: access.Operators}, func(w http.ResponseWriter, r *http.Request) error {
			if r.URL.Query().Get("api-version") != adminVersion {
				return rest.Errorf(http.StatusBadRequest, codeInvalidParameter, "The admin API needs api-version=%s.",
					adminVersion)
			}
			if route.serve == nil {
				return notImplemented(route.reason+".", route.method+" "+adminPath+route.path)
			}
			body, err := route.serve(a, r)
			if err != nil {
				return err
			}
			return rest.WriteJSON(w, http.StatusOK, body)
		})
	}
}

// emptyList serves the empty list of a kind of objects that only an installer would make.
func emptyList(name string) func(*adminAPI, *http.Request) (any, error) {
	return func(*adminAPI, *http.Request) (any, error) { return map[string]any{name: []any{}}, nil }
}

func (a *adminAPI) answerNotFound(r *http.Request) (any, error) {
	return nil, rest.Errorf(http.StatusNotFound, codeResourceNotFound, "%s does not exist.", r.PathValue("id"))
}

// listReleases returns the releases of the region's catalogue.
func (a *adminAPI) listReleases(r *http.Request) (any, error) {
	offers, err := a.releases.Offers(r.Context())
	if err != nil {
		return nil, err
	}
	list := []any{}
	for _, o := range offers {
		list = append(list, map[string]any{"name": o.Version, "properties": map[string]any{"version": o.Version,
			"openShiftPullspec": o.Image, "channel": o.Channel, "enabled": true}})
	}
	return map[string]any{"value": list}, nil
}

// listSizes returns the sizes of virtual machines that stand for an instance type of the region.
func (a *adminAPI) listSizes(r *http.Request) (any, error) {
	role := r.URL.Query().Get("vmRole")
	if !slices.Contains([]string{"", "master", "worker"}, role) {
		return nil, rest.Errorf(http.StatusBadRequest, codeInvalidParameter, "vmRole is master or worker, not %q.",
			rest.Shorten(role, 32))
	}
	sizes := map[string]any{}
	for series, memory := range map[string]int{"D": 4, "E": 8, "F": 2} {
		for cores := range instanceSizes {
			name := fmt.Sprintf("Standard_%s%ss_v3", series, cores)
			instance, _ := instanceTypeOf(name)
			sizes[name] = map[string]any{"coreCount": cores, "gibPerCore": memory, "family": "standard" + series + "Sv3Family",
				"instanceType": instance}
		}
	}
	return sizes, nil
}
