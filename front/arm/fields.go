package arm

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// clusterFields are the properties of hcpOpenShiftClusters. The region refuses values of protections that it does not
// have, because a customer relies on them: private endpoints, authorized networks, keys of the customer. It stores
// autoscaling and clusterImageRegistry, so that clients read the values that they wrote; these have no effect, because
// the region scales no node pools and runs no registry.
var clusterFields = []field{
	{name: "provisioningState", since: always, visibility: readOnly},
	{name: "status", kind: object, since: v20260630, visibility: readOnly, members: conditionFields},
	{name: "version", kind: object, since: always, members: []field{
		{name: "id", since: always, updatableSince: v20251223, keptIfAbsent: true, check: matches(minorPattern, "1.36")},
		{name: "channelGroup", since: always, fallback: "stable", check: oneOf("stable", "fast")},
	}},
	{name: "dns", kind: object, since: always, members: []field{
		{name: "baseDomainPrefix", since: always, visibility: createOnly, keptIfAbsent: true, check: all(maxLength(15),
			matches(dnsPrefix, "demo"))},
		{name: "baseDomain", since: always, visibility: readOnly},
	}},
	{name: "network", kind: object, since: always, members: []field{
		{name: "networkType", since: always, visibility: createOnly, fallback: "OVNKubernetes",
			check: oneOf("OVNKubernetes", "Other")},
		{name: "podCidr", since: always, visibility: createOnly, fallback: "10.128.0.0/14", check: cidr},
		{name: "serviceCidr", since: always, visibility: createOnly, fallback: "172.30.0.0/16", check: cidr},
		{name: "machineCidr", since: always, visibility: createOnly, fallback: "10.0.0.0/16", check: cidr},
		{name: "hostPrefix", kind: integer, since: always, visibility: createOnly, fallback: json.Number("23"),
			check: between(23, 26)},
	}},
	{name: "api", kind: object, since: always, members: []field{
		{name: "url", since: always, visibility: readOnly},
		{name: "visibility", since: always, visibility: createOnly, fallback: "Public", check: oneOf("Public")},
		{name: "authorizedCidrs", kind: list, since: always, check: empty("this region does not restrict who reaches " +
			"the API of a cluster")},
	}},
	{name: "platform", kind: object, since: always, required: true, members: []field{
		{name: "managedResourceGroup", since: always, visibility: createOnly, keptIfAbsent: true, check: maxLength(90)},
		{name: "subnetId", since: always, visibility: createOnly, required: true, check: resourceID(
			"Microsoft.Network/virtualNetworks/subnets")},
		{name: "vnetIntegrationSubnetId", since: v20251223, visibility: createOnly, check: resourceID(
			"Microsoft.Network/virtualNetworks/subnets")},
		{name: "outboundType", since: always, visibility: createOnly, fallback: "LoadBalancer",
			check: oneOf("LoadBalancer")},
		{name: "networkSecurityGroupId", since: always, visibility: createOnly, required: true, check: resourceID(
			"Microsoft.Network/networkSecurityGroups")},
		{name: "issuerUrl", since: always, visibility: readOnly},
		{name: "operatorsAuthentication", kind: object, since: always, visibility: createOnly},
	}},
	{name: "etcd", kind: object, since: always, members: []field{
		{name: "dataEncryption", kind: object, since: always, members: []field{
			{name: "keyManagementMode", since: always, visibility: createOnly, fallback: "PlatformManaged",
				check: oneOf("PlatformManaged")},
			{name: "customerManaged", kind: anything, since: always, check: absent("this region encrypts with its own keys; " +
				"keyManagementMode is PlatformManaged")},
		}},
	}},
	{name: "autoscaling", kind: object, since: always, members: []field{
		{name: "maxNodesTotal", kind: integer, since: always, check: between(0, 500)},
		{name: "maxPodGracePeriodSeconds", kind: integer, since: always, fallback: json.Number("600"),
			check: between(1, math.MaxInt32)},
		{name: "maxNodeProvisionTimeSeconds", kind: integer, since: always, fallback: json.Number("900"),
			check: between(1, math.MaxInt32)},
		{name: "podPriorityThreshold", kind: integer, since: always, fallback: json.Number("-10"),
			check: between(math.MinInt32, math.MaxInt32)},
	}},
	{name: "clusterImageRegistry", kind: object, since: always, members: []field{
		{name: "state", since: always, visibility: createOnly, check: oneOf("Enabled", "Disabled")},
	}},
	{name: "nodeDrainTimeoutMinutes", kind: integer, since: always, check: between(0, 10080)},
	{name: "imageDigestMirrors", kind: list, since: v20251223, check: maxItems(240), members: []field{
		{name: "source", since: always, required: true, check: maxLength(255)},
		{name: "mirrors", kind: list, since: always, required: true, check: maxItems(255)},
	}},
	{name: "ingress", kind: object, since: v20260630, members: []field{
		{name: "type", since: v20260630, visibility: createOnly, fallback: "Public", check: oneOf("Public")},
	}},
	{name: "cryptoRestrictions", since: v20260630, visibility: createOnly, fallback: "None", check: oneOf("None",
		"FIPS")},
}

// poolFields are the properties of nodePools.
var poolFields = []field{
	{name: "provisioningState", since: always, visibility: readOnly},
	{name: "status", kind: object, since: v20260630, visibility: readOnly, members: conditionFields},
	{name: "version", kind: object, since: always, members: []field{
		{name: "id", since: always, keptIfAbsent: true, check: matches(patchPattern, "1.36.3")},
		{name: "channelGroup", since: always, fallback: "stable", check: oneOf("stable", "fast")},
	}},
	{name: "platform", kind: object, since: always, required: true, members: []field{
		{name: "subnetId", since: always, visibility: createOnly, keptIfAbsent: true, check: resourceID(
			"Microsoft.Network/virtualNetworks/subnets")},
		{name: "vmSize", since: always, visibility: createOnly, required: true, check: knownSize},
		{name: "enableEncryptionAtHost", kind: boolean, since: always, visibility: createOnly, fallback: false,
			check: isFalse("this region's nodes have no disks to encrypt")},
		{name: "availabilityZone", since: always, visibility: createOnly, check: maxLength(16)},
		{name: "osDisk", kind: object, since: always, members: []field{
			{name: "sizeGiB", kind: integer, since: always, visibility: createOnly, fallback: json.Number("64"),
				check: between(64, 4095)},
			{name: "diskStorageAccountType", since: always, visibility: createOnly, fallback: "Premium_LRS",
				check: oneOf("Premium_LRS", "StandardSSD_LRS", "Standard_LRS")},
			{name: "encryptionSetId", since: always, check: absent("this region's nodes have no disks to encrypt")},
			{name: "diskType", since: v20251223, visibility: createOnly, fallback: "Managed", check: oneOf("Managed",
				"Ephemeral")},
		}},
	}},
	{name: "replicas", kind: integer, since: always, fallback: json.Number("0"), check: between(0, 200)},
	{name: "autoRepair", kind: boolean, since: always, visibility: createOnly, fallback: true},
	{name: "autoScaling", kind: object, since: always, check: absent("this region does not scale node pools; " +
		"use replicas")},
	{name: "labels", kind: list, since: always, check: maxItems(50), members: []field{
		{name: "key", since: always, required: true}, {name: "value", since: always},
	}},
	{name: "taints", kind: list, since: always, check: maxItems(50), members: []field{
		{name: "key", since: always, required: true, check: maxLength(316)},
		{name: "value", since: always, check: maxLength(63)},
		{name: "effect", since: always, required: true, check: oneOf("NoSchedule", "PreferNoSchedule", "NoExecute")},
	}},
	{name: "nodeDrainTimeoutMinutes", kind: integer, since: always, check: between(0, 10080)},
}

var (
	clusterName  = regexp.MustCompile(`^[a-zA-Z]([-a-zA-Z0-9]{0,52}[a-zA-Z0-9])?$`)
	poolName     = regexp.MustCompile(`^[a-zA-Z]([-a-zA-Z0-9]{0,13}[a-zA-Z0-9])?$`)
	minorPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+$`)
	patchPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`)
	dnsPrefix    = regexp.MustCompile(`^[a-z]([-a-z0-9]*[a-z0-9])?$`)
)

func all(checks ...func(any) string) func(any) string {
	return func(value any) string {
		for _, check := range checks {
			if wrong := check(value); wrong != "" {
				return wrong
			}
		}
		return ""
	}
}

func oneOf(values ...string) func(any) string {
	return func(value any) string {
		if slices.Contains(values, value.(string)) {
			return ""
		}
		quoted := make([]string, len(values))
		for i, v := range values {
			quoted[i] = strconv.Quote(v)
		}
		return fmt.Sprintf("Unsupported value: %q: supported values: %s", value, strings.Join(quoted, ", "))
	}
}

func matches(pattern *regexp.Regexp, example string) func(any) string {
	return func(value any) string {
		if pattern.MatchString(value.(string)) {
			return ""
		}
		return fmt.Sprintf("Invalid value: %q: must have the form of %s", value, example)
	}
}

func maxLength(n int) func(any) string {
	return func(value any) string {
		if len(value.(string)) > n {
			return fmt.Sprintf("Too long: may not be more than %d bytes", n)
		}
		return ""
	}
}

func maxItems(n int) func(any) string {
	return func(value any) string {
		if len(value.([]any)) > n {
			return fmt.Sprintf("Too many: %d: must have at most %d items", len(value.([]any)), n)
		}
		return ""
	}
}

func between(least, most int) func(any) string {
	return func(value any) string {
		n, _ := strconv.Atoi(value.(json.Number).String())
		switch {
		case n < least:
			return fmt.Sprintf("Invalid value: %d: must be greater than or equal to %d", n, least)
		case n > most:
			return fmt.Sprintf("Invalid value: %d: must be less than or equal to %d", n, most)
		}
		return ""
	}
}

func cidr(value any) string {
	if _, err := netip.ParsePrefix(value.(string)); err != nil {
		return fmt.Sprintf("Invalid value: %q: must be a network such as 10.0.0.0/16", value)
	}
	return ""
}

func empty(why string) func(any) string {
	return func(value any) string {
		if len(value.([]any)) > 0 {
			return "Forbidden: " + why
		}
		return ""
	}
}

func absent(why string) func(any) string { return func(any) string { return "Forbidden: " + why } }

func isFalse(why string) func(any) string {
	return func(value any) string {
		if value.(bool) {
			return "Forbidden: " + why
		}
		return ""
	}
}

// resourceID accepts the id of an Azure resource of one type.
func resourceID(resourceType string) func(any) string {
	types := strings.Split(strings.ToLower(resourceType), "/")
	return func(value any) string {
		parts := strings.Split(strings.ToLower(value.(string)), "/")
		wrong := fmt.Sprintf("Invalid value: %q: must be the id of a resource of the type %s", value, resourceType)
		if len(parts) != 5+2*len(types) || parts[0] != "" || parts[1] != "subscriptions" ||
			parts[3] != "resourcegroups" || parts[5] != "providers" || parts[6] != types[0] {
			return wrong
		}
		for i, name := range types[1:] {
			if parts[7+2*i] != name || parts[8+2*i] == "" {
				return wrong
			}
		}
		return ""
	}
}

var sizePattern = regexp.MustCompile(`^Standard_([DEF])([0-9]+)[a-z]*(_v[0-9]+)?$`)

// instanceSizes are the sizes of this region's nodes by vCPUs.
var instanceSizes = map[string]string{"2": "large", "4": "xlarge", "8": "2xlarge", "16": "4xlarge", "32": "8xlarge",
	"48": "12xlarge", "64": "16xlarge", "96": "24xlarge"}

// instanceTypeOf returns the type of this region's nodes that has the vCPUs and the memory of an Azure
// size of the series D (4 GiB for each vCPU), E (8 GiB) and F (2 GiB).
func instanceTypeOf(size string) (name string, known bool) {
	m := sizePattern.FindStringSubmatch(size)
	if m == nil {
		return "", false
	}
	suffix, known := instanceSizes[m[2]]
	return map[string]string{"D": "m6a", "E": "r6a", "F": "c6a"}[m[1]] + "." + suffix, known
}

func knownSize(value any) string {
	if _, known := instanceTypeOf(value.(string)); known {
		return ""
	}
	return fmt.Sprintf("Unsupported value: %q: supported are the series D, E and F with 2, 4, 8, 16, 32, 48, 64 or 96 "+
		"vCPUs, such as \"Standard_D8s_v3\"", value)
}

// maxEphemeralGiB is the published bound of the size of an ephemeral disk.
const maxEphemeralGiB = 2040

// checkDisk checks the size of the disk of a new node pool against the type of the disk.
func checkDisk(p *problems, properties map[string]any) {
	size := integerAt(properties, "platform", "osDisk", "sizeGiB")
	if textAt(properties, "platform", "osDisk", "diskType") == "Ephemeral" && size > maxEphemeralGiB {
		p.add("properties.platform.osDisk.sizeGiB", "Invalid value: %d: must be less than or equal to %d for an "+
			"ephemeral disk", size, maxEphemeralGiB)
	}
}
