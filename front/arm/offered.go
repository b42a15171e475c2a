package arm

import (
	"net/http"
	"slices"
	"strings"

	semver "k8s.io/apimachinery/pkg/util/version"

	"atoll.dev/internal/rest"
	"atoll.dev/release"
)

// Segments of the resources below a location that say what the region offers.
const (
	versionsSegment = "hcpOpenShiftVersions"
	roleSetsSegment = "hcpOperatorIdentityRoleSets"
)

// checkLocation refuses a path that names another location than this region.
func (f *front) checkLocation(x *exchange) error {
	if location := strings.ReplaceAll(x.r.PathValue("location"), " ", ""); location != strings.ToLower(f.location) {
		return rest.Errorf(http.StatusNotFound, codeResourceNotFound,
			"The location '%s' has nothing of this resource provider here; this region is '%s'.", location, f.location)
	}
	return nil
}

// locatedResource returns a resource that the region itself has below its location.
func (f *front) locatedResource(x *exchange, segment, name string, properties any) map[string]any {
	return map[string]any{"id": "/subscriptions/" + x.subscription.ID + "/providers/" + namespace + "/locations/" +
		f.location + "/" + segment + "/" + name, "name": name, "type": namespace + "/locations/" + segment,
		"properties": properties}
}

// versionResources returns the releases that the region offers, the oldest first. A node pool's version.id is
// the name of one; a cluster's version.id is its first two numbers.
func (f *front) versionResources(x *exchange) ([]map[string]any, error) {
	offers, err := f.releases.Offers(x.ctx)
	if err != nil {
		return nil, err
	}
	offers = slices.Clone(offers)
	slices.SortStableFunc(offers, func(a, b release.Offer) int {
		one, errOne := semver.ParseSemantic(a.Version)
		if other, err := semver.ParseSemantic(b.Version); err == nil && errOne == nil {
			order, _ := one.Compare(other.String()) // both were read
			return order
		}
		return strings.Compare(a.Version, b.Version)
	})
	list := make([]map[string]any, len(offers))
	for i, o := range offers {
		list[i] = f.locatedResource(x, versionsSegment, o.Version, map[string]any{"channelGroup": o.Channel,
			"enabled": true})
	}
	return list, nil
}

// roleSetResources returns a set for each minor version of the region. The sets are empty: no operator of this
// region's control planes and nodes uses an identity of Azure, so none needs a role.
func (f *front) roleSetResources(x *exchange) ([]map[string]any, error) {
	versions, err := f.versionResources(x)
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, v := range versions {
		minor := minorOf(v["name"].(string))
		if len(list) == 0 || list[len(list)-1]["name"] != minor {
			list = append(list, f.locatedResource(x, roleSetsSegment, minor, map[string]any{
				"controlPlaneOperators": []any{}, "dataPlaneOperators": []any{}}))
		}
	}
	return list, nil
}

// listOffered serves a list of resources below the location. It has no pages.
func (f *front) listOffered(read func(*exchange) ([]map[string]any, error)) func(*exchange) error {
	return func(x *exchange) error {
		if err := f.checkLocation(x); err != nil {
			return err
		}
		list, err := read(x)
		if err != nil {
			return err
		}
		return x.writeJSON(http.StatusOK, map[string]any{"value": list})
	}
}

// getOffered serves one resource below the location.
func (f *front) getOffered(read func(*exchange) ([]map[string]any, error), segment string) func(*exchange) error {
	return func(x *exchange) error {
		if err := f.checkLocation(x); err != nil {
			return err
		}
		list, err := read(x)
		if err != nil {
			return err
		}
		for _, r := range list {
			if strings.EqualFold(r["name"].(string), x.r.PathValue("name")) {
				return x.writeJSON(http.StatusOK, r)
			}
		}
		return rest.Errorf(http.StatusNotFound, codeResourceNotFound, "The resource '%s/locations/%s/%s' was not found.",
			namespace, segment, x.r.PathValue("name"))
	}
}

// rpOperation is one operation of the resource provider, by which Azure's roles permit it.
type rpOperation struct {
	Name         string           `json:"name"`
	IsDataAction bool             `json:"isDataAction"`
	Origin       string           `json:"origin"`
	Display      operationDisplay `json:"display"`
}

type operationDisplay struct {
	Provider    string `json:"provider"`
	Resource    string `json:"resource"`
	Operation   string `json:"operation"`
	Description string `json:"description"`
}

// rpOperations are all operations of the resource provider. They are the same for every subscription.
var rpOperations = listOperations()

func listOperations() (list []rpOperation) {
	add := func(name, resource, operation, description string) {
		list = append(list, rpOperation{Name: namespace + "/" + name, Origin: "user,system", Display: operationDisplay{
			Provider: "Azure Red Hat OpenShift", Resource: resource, Operation: operation, Description: description}})
	}
	write := func(segment, resource, thing string) {
		add(segment+"/read", resource, "Read "+thing, "Reads and lists "+thing+".")
		add(segment+"/write", resource, "Write "+thing, "Creates and changes "+thing+".")
		add(segment+"/delete", resource, "Delete "+thing, "Deletes "+thing+".")
	}
	read := func(segment, resource, thing string) {
		add(segment+"/read", resource, "Read "+thing, "Reads and lists "+thing+".")
	}
	add("register/action", namespace, "Register the resource provider", "Registers a subscription.")
	read("operations", "operations", "operations of the resource provider")
	write(clustersSegment, clustersSegment, "hosted clusters")
	add(clustersSegment+"/requestAdminCredential/action", clustersSegment, "Request a credential",
		"Signs a client certificate for an administrator of a cluster.")
	add(clustersSegment+"/revokeCredentials/action", clustersSegment, "Revoke credentials",
		"Ends the rights of all certificates that were signed for administrators of a cluster.")
	write(clustersSegment+"/"+poolsSegment, poolsSegment, "node pools")
	write(clustersSegment+"/"+authsSegment, authsSegment, "external authentications")
	write(classicSegment, classicSegment, "clusters of ARO classic")
	for action, thing := range map[string]string{"listCredentials": "the password of the administrator",
		"listAdminCredentials": "the kubeconfig of the administrator"} {
		add(classicSegment+"/"+action+"/action", classicSegment, "Read "+thing, "Reads "+thing+" of a cluster.")
	}
	read("locations/"+classicVersionsSegment, classicVersionsSegment, "versions of ARO classic")
	for segment, thing := range map[string]string{versionsSegment: "versions", roleSetsSegment: "role sets of operators",
		statusesSegment: "statuses of operations", resultsSegment: "results of operations"} {
		read("locations/"+segment, segment, thing)
	}
	slices.SortFunc(list, func(a, b rpOperation) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// listRPOperations serves the operations of the resource provider. No subscription and no api-version is needed.
func (f *front) listRPOperations(x *exchange) error {
	return x.writeJSON(http.StatusOK, map[string]any{"value": rpOperations})
}
