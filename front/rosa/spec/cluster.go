// Package spec reads what customers say of clusters and node pools: it checks
// every field at once, fills in what they leave out, and says what of a change
// is not possible. The contract is package api/platform.
//
// All of it is a function of the request, of what is stored and of the releases
// that the region offers; it reads no clock and calls nobody. Package
// front/rosa does the rest, and nothing else imports this one.
package spec

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Lengths of names.
const (
	maxClusterName  = 54
	maxNodePoolName = 15
)

// Env is what clusters and node pools are checked against.
type Env struct {
	Creator  string // ARN of the caller
	Releases Releases
}

// New is what a request to create something asks for, complete.
type New struct {
	Name    string
	Project string          // target_project_id of a cluster
	Cluster string          // id, of a node pool
	Spec    json.RawMessage // as it is stored
}

var nameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

func name(most int) rule {
	return matching(func(s string) string {
		switch {
		case len(s) > most:
			return fmt.Sprintf("has %d characters; %d are possible", len(s), most)
		case !nameForm.MatchString(s):
			return quote(s) + " is not possible; use a-z, 0-9 and -, beginning and ending with a letter or digit"
		}
		return ""
	})
}

// kindRule refuses a body that is of another kind. Requests need not say it.
func kindRule(kind string) rule {
	return matching(func(s string) string {
		if s == kind {
			return ""
		}
		return quote(s) + " does not belong here; this is where a " + kind + " goes"
	})
}

// clusterRule is the spec of a cluster. Members of hostedCluster that cannot be
// changed are in clusterImmutable.
var clusterRule = object(map[string]rule{
	"displayName":         text(256),
	"deleteProtection":    boolean,
	"expirationTimestamp": moment,
	"properties":          dictionary(100, propertyKey, text(1024)),
	"tags":                dictionary(50, tagKey, text(256)),
	"hostedCluster":       object(hostedCluster),
	"aws":                 dictionary(50, awsKey, text(2048)),
	"controlPlaneUpgradePolicy": object(map[string]rule{
		"updateType": oneOf("UserInitiated", "ServiceInitiated"), "scheduleType": oneOf("Manual", "Automatic"),
		"schedule": matching(cron),
		"version":  text(64), "nextRun": moment, "upgradeScope": text(64),
	}),
	"placement": object(map[string]rule{
		"managementCluster": name(63), "selector": dictionary(20, labelKey, matching(labelValue)),
	}),
	"hibernated": boolean,
	"creatorARN": text(2048),
})

// hostedCluster has the fields of HyperShift's HostedClusterSpec.
var hostedCluster = map[string]rule{
	"release": object(map[string]rule{"image": text(512)}),
	"networking": object(map[string]rule{
		"clusterNetwork": list(1, networkRule), "serviceNetwork": list(1, networkRule), "machineNetwork": list(
			8, networkRule),
		"networkType": oneOf("OVNKubernetes", "Calico", "Other"), "apiServer": passed("an object"),
		"allocateNodeCIDRs": oneOf("Enabled", "Disabled"),
	}),
	"platform": object(map[string]rule{"type": oneOf("AWS", "None"),
		"aws": passed("an object")}),
	"controllerAvailabilityPolicy":     oneOf("HighlyAvailable", "SingleReplica"),
	"infrastructureAvailabilityPolicy": oneOf("HighlyAvailable", "SingleReplica"),
	"olmCatalogPlacement":              oneOf("management", "guest"),
	"fips":                             boolean,
	"capabilities":                     passed("an object"),

	"autoscaling":              passed("an object"),
	"configuration":            passed("an object"),
	"operatorConfiguration":    passed("an object"),
	"secretEncryption":         passed("an object"),
	"additionalTrustBundle":    passed("an object"),
	"auditWebhook":             passed("an object"),
	"imageContentSources":      passed("a list"),
	"tolerations":              passed("a list"),
	"nodeSelector":             dictionary(20, labelKey, matching(labelValue)),
	"labels":                   dictionary(20, labelKey, matching(labelValue)),
	"channel":                  text(256),
	"updateService":            text(2048),
	"pausedUntil":              matching(pausedUntil),
	"autoNode":                 passed("an object"),
	"clusterID":                ours,
	"infraID":                  ours,
	"controlPlaneRelease":      ours,
	"dns":                      ours,
	"etcd":                     ours,
	"services":                 ours,
	"pullSecret":               ours,
	"sshKey":                   ours,
	"issuerURL":                ours,
	"kubeAPIServerDNSName":     ours,
	"serviceAccountSigningKey": ours,
}

// clusterImmutable are the parts of a spec that stay as they are.
var clusterImmutable = [][]string{
	{"creatorARN"}, {"aws"}, {"placement"},
	{"hostedCluster", "networking"}, {"hostedCluster", "platform"}, {"hostedCluster", "controllerAvailabilityPolicy"},
	{"hostedCluster", "olmCatalogPlacement"}, {"hostedCluster", "fips"}, {"hostedCluster", "capabilities"},
}

// clusterKept are the parts that a spec which replaces another may leave out.
var clusterKept = append([][]string{{"hostedCluster", "release"}}, clusterImmutable...)

// NewCluster reads the body of a request to create a cluster.
func (e Env) NewCluster(body []byte) (New, Problems, error) {
	var p Problems
	doc, err := envelope(body, &p, nil, map[string]rule{
		"kind": kindRule("Cluster"), "name": name(maxClusterName), "target_project_id": matching(labelValue),
		"spec": passed("an object"),
	}, "name")
	if err != nil {
		return New{}, nil, err
	}
	made := New{}
	made.Name, _ = doc["name"].(string)
	made.Project, _ = doc["target_project_id"].(string)
	spec, ok := doc["spec"].(map[string]any)
	if doc["spec"] == nil {
		spec, ok = map[string]any{}, true
	}
	if ok {
		e.completeCluster(&p, spec)
	}
	return finished(made, spec, p)
}

// completeCluster checks a new spec and fills in what it leaves out.
func (e Env) completeCluster(p *Problems, spec map[string]any) {
	withoutNulls(spec)
	clusterRule(p, "spec", spec)
	if creator := spec["creatorARN"]; creator != nil && creator != e.Creator {
		p.add("spec.creatorARN", "is set by the service, from the request's signature; leave it out")
	}
	spec["creatorARN"] = e.Creator
	hosted := within(spec, "hostedCluster")
	release := within(hosted, "release")
	if image, named := release["image"].(string); named {
		e.Releases.known(p, "spec.hostedCluster.release.image", image)
	} else if newest, ok := e.Releases.Newest(); ok {
		fill(release, "image", newest.Image)
	} else if release["image"] == nil {
		p.add("spec.hostedCluster.release.image",
			"is missing, and the region offers no release; its operator adds them")
	}
	networking, given := within(hosted, "networking"), map[string]bool{}
	for _, kind := range networkKinds {
		given[kind.name] = networking[kind.name] != nil
		fill(networking, kind.name, []any{map[string]any{"cidr": kind.fallback}})
	}
	networks(p, "spec.hostedCluster.networking", networking, given)
	e.policy(p, nil, spec)
}

// policy checks an upgrade policy, if it changes.
func (e Env) policy(p *Problems, have, want any) {
	before, after := at(have, "controlPlaneUpgradePolicy", "version"), at(want, "controlPlaneUpgradePolicy", "version")
	v, ok := after.(string)
	if ok && before != after && !slices.ContainsFunc(e.Releases, func(r Release) bool { return r.Version == v }) {
		p.add("spec.controlPlaneUpgradePolicy.version", "%s is not a version of this region", quote(v))
	}
}

// Known is what is stored of something that a request changes.
type Known struct {
	ID, Name, Cluster, Project, CreatedBy, Account string
	Spec                                           json.RawMessage
}

// PatchCluster is the spec of a cluster to which the body of a request, a merge
// patch, was applied.
func (e Env) PatchCluster(have Known, body []byte) (json.RawMessage, Problems, error) {
	return e.changeCluster(have, body, false)
}

// ReplaceCluster is the spec of a cluster that the body of a request replaces.
func (e Env) ReplaceCluster(have Known, body []byte) (json.RawMessage, Problems, error) {
	return e.changeCluster(have, body, true)
}

func (e Env) changeCluster(have Known, body []byte, replace bool) (json.RawMessage, Problems, error) {
	var p Problems
	doc, err := envelope(body, &p, have.fixed("Cluster"), have.members("Cluster", replace), "spec")
	if err != nil {
		return nil, nil, err
	}
	before, after, err := have.change(doc["spec"], replace, clusterKept)
	if err != nil || after == nil {
		return nil, p.sorted(), err
	}
	clusterRule(&p, "spec", after)
	for _, path := range clusterImmutable {
		unchanged(&p, "spec."+strings.Join(path, "."), at(before, path...), at(after, path...))
	}
	was, _ := at(before, "hostedCluster", "release", "image").(string)
	if wanted, ok := at(after, "hostedCluster", "release", "image").(string); ok {
		e.Releases.upgrade(&p, "spec.hostedCluster.release.image", was, wanted)
	} else if at(after, "hostedCluster", "release", "image") == nil {
		p.add("spec.hostedCluster.release.image", "cannot be removed")
	}
	e.policy(&p, before, after)
	changed, problems, err := finished(New{}, after, p)
	return changed.Spec, problems, err
}

// envelope reads a body and checks its members; those that are needed have to
// be there. A null is the same as no member, but for what is fixed: to take that
// away is a change.
func envelope(body []byte, p *Problems, fixed map[string]string, members map[string]rule, needed ...string) (
	map[string]any, error) {
	v, err := decode(body)
	if err != nil {
		return nil, err
	}
	doc, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the body must be an object, not %s", kindOf(v))
	}
	for name, value := range doc {
		if value != nil {
			continue
		}
		delete(doc, name)
		if fixed[name] != "" {
			p.add(name, "cannot be removed")
		}
	}
	object(members)(p, "", doc)
	for _, name := range needed {
		if doc[name] == nil {
			p.add(name, "is missing")
		}
	}
	return doc, nil
}

// fixed is what identifies it, by the members that say so.
func (k Known) fixed(kind string) map[string]string {
	f := map[string]string{"id": k.ID, "name": k.Name, "created_by": k.CreatedBy, "account": k.Account}
	if kind == "NodePool" {
		f["cluster_id"] = k.Cluster
	} else {
		f["target_project_id"] = k.Project
	}
	return f
}

// members are what a body that changes something may have: its spec, and what
// identifies it, as it is. One that replaces it may be what a GET showed.
func (k Known) members(kind string, replace bool) map[string]rule {
	m := map[string]rule{"kind": kindRule(kind), "spec": passed("an object")}
	for name, have := range k.fixed(kind) {
		m[name] = func(p *Problems, path string, v any) {
			if v != have {
				p.add(path, "cannot be changed")
			}
		}
	}
	if replace {
		for _, shown := range []string{"generation", "resource_version", "status", "placementRef", "created_at",
			"updated_at", "deleted_at"} {
			m[shown] = func(*Problems, string, any) {}
		}
	}
	return m
}

// change is what is stored, and what becomes of it: nil when the request has no
// spec to speak of.
func (k Known) change(spec any, replace bool, kept [][]string) (before, after map[string]any, err error) {
	stored, err := decode(k.Spec)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the stored spec: %w", err)
	}
	before, _ = withoutNulls(stored).(map[string]any)
	given, ok := spec.(map[string]any)
	if !ok {
		return before, nil, nil
	}
	if !replace {
		return before, withoutNulls(merged(before, given)).(map[string]any), nil
	}
	after = withoutNulls(given).(map[string]any)
	for _, path := range kept {
		if value := at(before, path...); value != nil && at(after, path...) == nil {
			last := len(path) - 1
			fill(within(after, path[:last]...), path[last], value)
		}
	}
	return before, after, nil
}

// maxSpec is how many bytes a spec may have: it travels within a work, whose
// manifests may have 500 KiB together.
const maxSpec = 256 << 10

// finished is what came of a request.
func finished(made New, spec map[string]any, p Problems) (New, Problems, error) {
	if len(p) > 0 {
		return New{}, p.sorted(), nil
	}
	var err error
	if made.Spec, err = json.Marshal(spec); err != nil {
		return New{}, nil, err
	}
	if len(made.Spec) > maxSpec {
		p.add("spec", "has %d bytes; %d are possible", len(made.Spec), maxSpec)
		return New{}, p, nil
	}
	return made, nil, nil
}

var (
	awsName     = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*$`)
	cronForm    = regexp.MustCompile(`^[0-9*/,-]+( +[0-9A-Za-z*/,-]+){4}$`)
	propertyFor = regexp.MustCompile(`^[A-Za-z0-9_./:=+@-]+$`)
)

func awsKey(key string) string {
	if len(key) > 128 || !awsName.MatchString(key) {
		return "is not a name such as privateSubnetIds"
	}
	return ""
}

func propertyKey(key string) string {
	if len(key) > 128 || !propertyFor.MatchString(key) {
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

func cron(s string) string {
	if len(s) > 128 || !cronForm.MatchString(s) {
		return quote(s) + " is not a schedule of cron, such as 0 3 * * 6"
	}
	return ""
}

func pausedUntil(s string) string {
	var p Problems
	if s == "true" || s == "false" {
		return ""
	}
	if moment(&p, "", s); len(p) > 0 {
		return quote(s) + " is neither true nor a time such as 2027-01-02T15:04:05Z"
	}
	return ""
}
