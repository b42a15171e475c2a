package arm

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"atoll.dev/internal/rest"
)

// ARO classic: openShiftClusters, whose control planes an installer puts onto virtual machines of the customer. This
// region has no installer. So no cluster exists, a PUT is checked and answered 501, and requests that need no installer
// are served.
const (
	classicSegment         = "openShiftClusters"
	classicVersionsSegment = "openShiftVersions"
)

// The api-versions of openShiftClusters, the oldest first. They are indices of classicVersions, and the versions of
// classicFields.
const (
	classic20191231 version = iota
	classic20200430
	classic20210901
	classic20220401
	classic20220904
	classic20230401
	classic20230701
	classic20230904
	classic20231122
	classic20240812
	classic20250725
)

var classicVersions = []string{
	classic20191231: "2019-12-31-preview",
	classic20200430: "2020-04-30",
	classic20210901: "2021-09-01-preview",
	classic20220401: "2022-04-01",
	classic20220904: "2022-09-04",
	classic20230401: "2023-04-01",
	classic20230701: "2023-07-01-preview",
	classic20230904: "2023-09-04",
	classic20231122: "2023-11-22",
	classic20240812: "2024-08-12-preview",
	classic20250725: "2025-07-25",
}

// parseClassicVersion returns the index of the api-version with a name.
func parseClassicVersion(name string) (v version, known bool) {
	i := slices.Index(classicVersions, name)
	return version(i), i >= 0
}

// classicFields are the properties of openShiftClusters that a customer writes.
var classicFields = []field{
	{name: "clusterProfile", kind: object, since: always, required: true, members: []field{
		{name: "pullSecret", since: always},
		{name: "domain", since: always, required: true, check: maxLength(253)},
		{name: "version", since: always, check: matches(patchPattern, "4.14.16")},
		{name: "resourceGroupId", since: always, required: true},
		{name: "fipsValidatedModules", since: classic20220401, check: oneOf("Enabled", "Disabled")},
	}},
	{name: "servicePrincipalProfile", kind: object, since: always, members: []field{
		{name: "clientId", since: always, required: true}, {name: "clientSecret", since: always},
	}},
	{name: "platformWorkloadIdentityProfile", kind: object, since: classic20240812,
		members: []field{
			{name: "upgradeableTo", since: always}, {name: "platformWorkloadIdentities", kind: object, since: always},
		}},
	{name: "networkProfile", kind: object, since: always, required: true, members: []field{
		{name: "podCidr", since: always, required: true, check: ipv4NetworkUpTo(18)},
		{name: "serviceCidr", since: always, required: true, check: ipv4NetworkUpTo(22)},
		{name: "outboundType", since: classic20220904, fallback: "Loadbalancer", check: oneOf("Loadbalancer",
			"UserDefinedRouting")},
		{name: "loadBalancerProfile", kind: object, since: classic20231122, members: []field{
			{name: "managedOutboundIps", kind: object, since: always, members: []field{
				{name: "count", kind: integer, since: always, check: between(1, 20)}}},
		}},
		{name: "preconfiguredNSG", since: classic20230701, check: oneOf("Enabled", "Disabled")},
	}},
	{name: "masterProfile", kind: object, since: always, required: true, members: []field{
		{name: "vmSize", since: always, required: true},
		{name: "subnetId", since: always, required: true, check: resourceID("Microsoft.Network/virtualNetworks/subnets")},
		{name: "encryptionAtHost", since: classic20210901, check: oneOf("Enabled", "Disabled")},
		{name: "diskEncryptionSetId", since: classic20210901, check: resourceID(
			"Microsoft.Compute/diskEncryptionSets")},
	}},
	{name: "workerProfiles", kind: list, since: always, required: true, check: all(minItems(1), maxItems(1)),
		members: []field{
			{name: "name", since: always, required: true, check: oneOf("worker")},
			{name: "vmSize", since: always, required: true},
			{name: "diskSizeGB", kind: integer, since: always, required: true, check: between(128, 32767)},
			{name: "subnetId", since: always, required: true, check: resourceID("Microsoft.Network/virtualNetworks/subnets")},
			{name: "count", kind: integer, since: always, required: true, check: between(2, 50)},
		}},
	{name: "apiserverProfile", kind: object, since: always, required: true, members: []field{
		{name: "visibility", since: always, required: true, check: oneOf("Public", "Private")},
	}},
	{name: "ingressProfiles", kind: list, since: always, required: true, check: all(minItems(1), maxItems(1)),
		members: []field{
			{name: "name", since: always, required: true, check: oneOf("default")},
			{name: "visibility", since: always, required: true, check: oneOf("Public", "Private")},
		}},
}

// ipv4NetworkUpTo accepts a network of IPv4 that is aligned and has a prefix of at most so many bits.
func ipv4NetworkUpTo(bits int) func(any) string {
	return func(value any) string {
		p, err := netip.ParsePrefix(value.(string))
		switch {
		case err != nil || !p.Addr().Is4() || p != p.Masked():
			return "Invalid value: must be an aligned network of IPv4, such as 10.128.0.0/14"
		case p.Bits() > bits:
			return "Invalid value: the network is too small"
		}
		return ""
	}
}

// withClassicVersion returns a handler that reads the api-version of openShiftClusters and refuses an unknown one.
// since is the first api-version that has the route.
func (f *front) withClassicVersion(since version, serve func(*exchange) error) rest.Handler {
	return f.withSubscription(func(x *exchange) error {
		name := x.r.URL.Query().Get("api-version")
		if name == "" {
			return rest.Errorf(http.StatusBadRequest, codeInvalidParameter,
				"The request is missing required parameter 'api-version'.")
		}
		v, known := parseClassicVersion(name)
		if !known || v < since {
			return rest.Errorf(http.StatusBadRequest, codeInvalidResourceType, "The resource type '%s/%s' could not be "+
				"found in the namespace for api version '%s'. The supported api-versions are '%s'.", namespace, classicSegment,
				name, strings.Join(classicVersions[since:], ","))
		}
		x.version = v
		return serve(x)
	})
}

// noInstaller is the message of the answer to the PUT of a valid openShiftCluster.
const noInstaller = "The body is valid, but this region has no installer for openShiftClusters. Nothing was created. " +
	"Create an hcpOpenShiftCluster: its control plane runs in the region."

// putClassic checks a PUT of an openShiftCluster, and refuses it because there is no installer.
func (f *front) putClassic(x *exchange) error {
	if err := x.subscription.checkState(x.r.Method); err != nil {
		return err
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	var p problems
	name := x.path[strings.LastIndex(x.path, "/")+1:]
	if given, isText := body["name"].(string); isText && !strings.EqualFold(given, name) {
		p.add("name", "name must match resourceID path: %s", x.path)
	}
	if location, isText := body["location"].(string); !isText || location == "" {
		p.add("location", "Required value")
	}
	properties, _ := body["properties"].(map[string]any)
	checkClassic(&p, x.version, x.r.PathValue("rg"), properties)
	if err := invalid(p); err != nil {
		return err
	}
	return notImplemented(noInstaller)
}

// checkClassic adds to p the problems of the properties of an openShiftCluster: those of single fields first, and
// without these, those of fields that contradict each other.
func checkClassic(p *problems, v version, group string, properties map[string]any) {
	reader := bodyReader{version: v, isNew: true}
	after := reader.readObject("properties.", classicFields, properties, nil)
	*p = append(*p, reader.problems...)
	if len(*p) > 0 {
		return
	}
	if (properties["servicePrincipalProfile"] == nil) == (after["platformWorkloadIdentityProfile"] == nil) {
		p.add("properties.servicePrincipalProfile", "Invalid value: a cluster has either a servicePrincipalProfile or a "+
			"platformWorkloadIdentityProfile")
	}
	parts := strings.Split(strings.ToLower(textAt(after, "clusterProfile", "resourceGroupId")), "/")
	if len(parts) != 5 || parts[1] != "subscriptions" || parts[3] != "resourcegroups" || parts[4] == group {
		p.add("properties.clusterProfile.resourceGroupId",
			"Invalid value: must be the id of a resource group other than that of the cluster")
	}
	ingress, _ := after["ingressProfiles"].([]any)
	first, _ := ingress[0].(map[string]any)
	isPrivate := textAt(after, "apiserverProfile", "visibility") == "Private" && first["visibility"] == "Private"
	if textAt(after, "networkProfile", "outboundType") == "UserDefinedRouting" && !isPrivate {
		p.add("properties.networkProfile.outboundType",
			"Invalid value: UserDefinedRouting needs a private API server and a private ingress")
	}
}

// answerClassicNotFound answers 404 to a request about an openShiftCluster, because none exists.
func (f *front) answerClassicNotFound(x *exchange) error {
	parts := strings.Split(x.path, "/") // "", subscriptions, S, resourceGroups, G, providers, P, openShiftClusters, N
	return rest.Errorf(http.StatusNotFound, codeResourceNotFound,
		"The resource '%s/%s/%s' under resource group '%s' was not found.", namespace, classicSegment, parts[8], parts[4])
}

// listClassic answers with an empty list.
func (f *front) listClassic(x *exchange) error {
	return x.writeJSON(http.StatusOK, map[string]any{"value": []any{}})
}

// deleteClassic answers that the openShiftCluster does not exist, which ARM takes as deleted.
func (f *front) deleteClassic(x *exchange) error {
	if err := x.subscription.checkState(x.r.Method); err != nil {
		return err
	}
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}

// classicVersionResources returns the versions of the region's catalogue as openShiftClusters have them.
func (f *front) classicVersionResources(x *exchange) ([]map[string]any, error) {
	versions, err := f.versionResources(x)
	if err != nil {
		return nil, err
	}
	list := make([]map[string]any, len(versions))
	for i, v := range versions {
		name := v["name"].(string)
		list[i] = f.locatedResource(x, classicVersionsSegment, name, map[string]any{"version": name})
	}
	return list, nil
}
