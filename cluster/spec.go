package cluster

import (
	"encoding/json"
	"regexp"
	"strings"

	"atoll.dev/cluster/document"
)

// maxSpecBytes bounds a stored spec: it travels within a work, whose manifests
// may have 500 KiB together.
const maxSpecBytes = 256 << 10

// Extension has the members that a front adds to the spec of a cluster, for its own
// customers only.
type Extension struct {
	Members   map[string]document.Rule
	Immutable [][]string // paths of members that cannot change
}

// ClusterRules checks the specs of clusters. A spec is a decoded JSON object
// (document.Decode). Paths in problems begin with "spec".
type ClusterRules struct {
	Releases Releases // that the region offers
	Extension
}

// clusterMembers are the members of a cluster's spec that every front has.
var clusterMembers = map[string]document.Rule{
	"displayName":         document.Text(256),
	"deleteProtection":    document.Boolean,
	"expirationTimestamp": document.Time,
	"properties":          document.Dictionary(100, propertyKey, document.Text(1024)),
	"tags":                document.Dictionary(50, tagKey, document.Text(256)),
	"hostedCluster":       document.Object(hostedClusterMembers),
	"controlPlaneUpgradePolicy": document.Object(map[string]document.Rule{
		"updateType":   document.OneOf("UserInitiated", "ServiceInitiated"),
		"scheduleType": document.OneOf("Manual", "Automatic"),
		"schedule":     document.String(cronSchedule),
		"version":      document.Text(64),
		"nextRun":      document.Time,
		"upgradeScope": document.Text(64),
	}),
	"placement": document.Object(map[string]document.Rule{
		"managementCluster": Name(maxHostNameLength),
		"selector":          document.Dictionary(20, document.LabelKey, document.String(document.LabelValue)),
	}),
	"hibernated":     document.Boolean,
	"authentication": authenticationRule,
}

// hostedClusterMembers are the fields of HyperShift's HostedClusterSpec.
var hostedClusterMembers = map[string]document.Rule{
	"release": document.Object(map[string]document.Rule{"image": document.Text(512)}),
	"networking": document.Object(map[string]document.Rule{
		"clusterNetwork":    networkList(ClusterNetwork),
		"serviceNetwork":    networkList(ServiceNetwork),
		"machineNetwork":    networkList(MachineNetwork),
		"networkType":       document.OneOf("OVNKubernetes", "Calico", "Other"),
		"apiServer":         document.AnyObject,
		"allocateNodeCIDRs": document.OneOf("Enabled", "Disabled"),
	}),
	"platform": document.Object(map[string]document.Rule{
		"type": document.OneOf("AWS", "None"), "aws": document.AnyObject,
	}),
	"controllerAvailabilityPolicy":     document.OneOf("HighlyAvailable", "SingleReplica"),
	"infrastructureAvailabilityPolicy": document.OneOf("HighlyAvailable", "SingleReplica"),
	"olmCatalogPlacement":              document.OneOf("management", "guest"),
	"fips":                             document.Boolean,
	"capabilities":                     document.AnyObject,

	"autoscaling":           document.AnyObject,
	"configuration":         document.AnyObject,
	"operatorConfiguration": document.AnyObject,
	"secretEncryption":      document.AnyObject,
	"additionalTrustBundle": document.AnyObject,
	"auditWebhook":          document.AnyObject,
	"imageContentSources":   document.AnyList,
	"tolerations":           document.AnyList,
	"nodeSelector":          document.Dictionary(20, document.LabelKey, document.String(document.LabelValue)),
	"labels":                document.Dictionary(20, document.LabelKey, document.String(document.LabelValue)),
	"channel":               document.Text(256),
	"updateService":         document.Text(2048),
	"pausedUntil":           document.String(pausedUntil),
	"autoNode":              document.AnyObject,

	"clusterID":                document.SetByService,
	"infraID":                  document.SetByService,
	"controlPlaneRelease":      document.SetByService,
	"dns":                      document.SetByService,
	"etcd":                     document.SetByService,
	"services":                 document.SetByService,
	"pullSecret":               document.SetByService,
	"sshKey":                   document.SetByService,
	"issuerURL":                document.SetByService,
	"kubeAPIServerDNSName":     document.SetByService,
	"serviceAccountSigningKey": document.SetByService,
}

func networkList(kind NetworkKind) document.Rule {
	for _, limit := range networkLimits {
		if limit.kind == kind {
			return document.List(limit.maxItems, networkRule)
		}
	}
	panic("cluster: no limits for networks of kind " + string(kind))
}

// clusterImmutable are the paths of a spec that cannot change.
var clusterImmutable = [][]string{
	{"placement"}, {"hostedCluster", "networking"}, {"hostedCluster", "platform"},
	{"hostedCluster", "controllerAvailabilityPolicy"}, {"hostedCluster", "olmCatalogPlacement"},
	{"hostedCluster", "fips"}, {"hostedCluster", "capabilities"},
}

// immutable returns the paths that cannot change, those of the front too.
func (c ClusterRules) immutable() [][]string {
	return append(append([][]string{}, clusterImmutable...), c.Immutable...)
}

const imageField = "spec.hostedCluster.release.image"

// Complete checks the spec of a new cluster and adds the defaults of missing members:
// the newest release and the default networks.
func (c ClusterRules) Complete(p *document.Problems, spec map[string]any) {
	document.DropNulls(spec)
	completeAuthentication(spec)
	c.checkMembers(p, spec)
	hosted := document.Ensure(spec, "hostedCluster")
	release := document.Ensure(hosted, "release")
	if image, named := release["image"].(string); named {
		c.Releases.checkOffered(p, imageField, image)
	} else if newest, ok := c.Releases.Newest(); ok {
		document.SetDefault(release, "image", newest.Image)
	} else if release["image"] == nil {
		p.Add(imageField, "is missing, and the region offers no release; its operator adds them")
	}
	completeNetworks(p, "spec.hostedCluster.networking", document.Ensure(hosted, "networking"))
	c.checkUpgradePolicy(p, nil, spec)
}

// CheckChange checks a spec that takes the place of another.
func (c ClusterRules) CheckChange(p *document.Problems, before, after map[string]any) {
	completeAuthentication(after)
	c.checkMembers(p, after)
	for _, path := range c.immutable() {
		document.CheckUnchanged(p, "spec."+strings.Join(path, "."),
			document.Lookup(before, path...), document.Lookup(after, path...))
	}
	from, _ := document.Lookup(before, "hostedCluster", "release", "image").(string)
	switch to := document.Lookup(after, "hostedCluster", "release", "image").(type) {
	case string:
		c.Releases.checkUpgrade(p, imageField, from, to)
	case nil:
		p.Add(imageField, "cannot be removed")
	}
	c.checkUpgradePolicy(p, before, after)
}

// RestoreOmitted copies from the stored spec into its replacement what the
// replacement leaves out and cannot change: the release and immutable members.
func (c ClusterRules) RestoreOmitted(before, after map[string]any) {
	copyOmitted(before, after, append([][]string{{"hostedCluster", "release"}}, c.immutable()...))
}

// copyOmitted copies the values at paths from before into after, where after has none.
func copyOmitted(before, after map[string]any, paths [][]string) {
	for _, path := range paths {
		if value := document.Lookup(before, path...); value != nil && document.Lookup(after, path...) == nil {
			last := len(path) - 1
			document.SetDefault(document.Ensure(after, path[:last]...), path[last], value)
		}
	}
}

// checkMembers checks each member of a spec by itself.
func (c ClusterRules) checkMembers(p *document.Problems, spec map[string]any) {
	members := map[string]document.Rule{}
	for name, rule := range clusterMembers {
		members[name] = rule
	}
	for name, rule := range c.Members {
		members[name] = rule
	}
	document.Object(members)(p, "spec", spec)
	checkAuthentication(p, spec)
}

// checkUpgradePolicy checks the version of an upgrade policy, if it changes.
func (c ClusterRules) checkUpgradePolicy(p *document.Problems, before, after any) {
	old := document.Lookup(before, "controlPlaneUpgradePolicy", "version")
	wanted := document.Lookup(after, "controlPlaneUpgradePolicy", "version")
	if v, ok := wanted.(string); ok && wanted != old && !c.Releases.hasVersion(v) {
		p.Add("spec.controlPlaneUpgradePolicy.version", "%s is not a version of this region", document.Quote(v))
	}
}

// Encode returns a checked spec as it is stored. A spec that is too large is a
// problem.
func Encode(p *document.Problems, spec map[string]any) (json.RawMessage, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if len(data) > maxSpecBytes {
		p.Add("spec", "has %d bytes; %d are possible", len(data), maxSpecBytes)
		return nil, nil
	}
	return data, nil
}

var (
	cronPattern        = regexp.MustCompile(`^[0-9*/,-]+( +[0-9A-Za-z*/,-]+){4}$`)
	propertyKeyPattern = regexp.MustCompile(`^[A-Za-z0-9_./:=+@-]+$`)
)

func propertyKey(key string) string {
	if len(key) > 128 || !propertyKeyPattern.MatchString(key) {
		return "is not the name of a property: up to 128 letters, digits and _./:=+@-"
	}
	return ""
}

func tagKey(key string) string {
	if strings.HasPrefix(strings.ToLower(key), "aws:") {
		return "is reserved for AWS; take another name"
	}
	return propertyKey(key)
}

func cronSchedule(s string) string {
	if len(s) > 128 || !cronPattern.MatchString(s) {
		return document.Quote(s) + " is not a schedule of cron, such as 0 3 * * 6"
	}
	return ""
}

func pausedUntil(s string) string {
	if _, err := ParsePause(s); err != nil {
		return err.Error()
	}
	return ""
}
