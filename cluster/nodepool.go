package cluster

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"atoll.dev/cluster/document"
	"atoll.dev/internal/instancetype"
)

// MaxReplicas is how many nodes a node pool can have.
const MaxReplicas = 500

// NodePoolRules checks the specs of node pools. A spec is a decoded JSON object
// (document.Decode). Paths in problems begin with "spec".
type NodePoolRules struct {
	Releases Releases // that the region offers
	Image    string   // of the release of the node pool's cluster
	// Providers that the region offers, the default first; none means Simulated only. A spec without a
	// provider means Simulated.
	Providers []NodeProvider
}

// NodeProvider says where the nodes of a node pool come from. It never changes.
type NodeProvider string

const (
	Simulated NodeProvider = "simulated" // the control plane plays the nodes: pods are scheduled, nothing is executed
	Local     NodeProvider = "local"     // real nodes on the machine of the management cluster
	External  NodeProvider = "external"  // machines of the customer
)

// ParseNodeProvider returns the provider of a name; Simulated for "".
func ParseNodeProvider(name string) (NodeProvider, error) {
	switch p := NodeProvider(name); p {
	case "", Simulated:
		return Simulated, nil
	case Local, External:
		return p, nil
	}
	return "", fmt.Errorf("%s is no provider of nodes; there are simulated, local and external", document.Quote(name))
}

// providerOf returns the provider in a spec of a node pool.
func providerOf(spec map[string]any) NodeProvider {
	name, _ := document.Lookup(spec, "provider").(string)
	p, err := ParseNodeProvider(name)
	if err != nil {
		return Simulated // the rule of the spec reports it
	}
	return p
}

var nodePoolRule = document.Object(map[string]document.Rule{
	"displayName": document.Text(256),
	"provider":    document.OneOf(string(Simulated), string(Local), string(External)),
	"labels":      document.Dictionary(50, nodeLabelKey, document.String(document.LabelValue)),
	"taints": document.List(50, document.Object(map[string]document.Rule{
		"key":    document.String(taintKey),
		"value":  document.String(document.LabelValue),
		"effect": document.OneOf("NoSchedule", "PreferNoSchedule", "NoExecute"),
	})),
	"nodePool": document.Object(map[string]document.Rule{
		"replicas": document.Integer(0, MaxReplicas),
		"management": document.Object(map[string]document.Rule{
			"autoRepair": document.Boolean, "upgradeType": document.OneOf("Replace", "InPlace"),
			"replace": document.Object(map[string]document.Rule{
				"strategy": document.OneOf(RollingUpdate, OnDelete),
				"rollingUpdate": document.Object(map[string]document.Rule{
					"maxSurge": countOrShare, "maxUnavailable": countOrShare,
				}),
			}),
		}),
		"platform": document.Object(map[string]document.Rule{
			"type": document.OneOf("AWS", "None"), "aws": document.Object(awsNodeMembers),
		}),
		"release":          document.Object(map[string]document.Rule{"image": document.Text(512)}),
		"nodeDrainTimeout": document.Duration,
	}),
})

// Strategies by which new nodes replace outdated ones.
const (
	RollingUpdate = "RollingUpdate"
	OnDelete      = "OnDelete"
)

var share = regexp.MustCompile(`^(100|[1-9]?[0-9])%$`)

// countOrShare accepts a number of nodes, or a share of the replicas from "0%" to "100%".
func countOrShare(p *document.Problems, path string, v any) {
	text, isText := v.(string)
	switch {
	case isText && !share.MatchString(text):
		p.Add(path, `%s is no share from "0%%" to "100%%"`, document.Quote(text))
	case !isText:
		document.Integer(0, MaxReplicas)(p, path, v)
	}
}

// checkReplace checks that a replacement may make or remove a node.
func checkReplace(p *document.Problems, spec map[string]any) {
	path := []string{"nodePool", "management", "replace", "rollingUpdate"}
	isZero := func(v any) bool { return v == json.Number("0") || v == "0%" }
	limits := document.Lookup(spec, path...)
	if unavailable := document.Lookup(limits, "maxUnavailable"); isZero(document.Lookup(limits, "maxSurge")) &&
		(unavailable == nil || isZero(unavailable)) {
		p.Add("spec."+strings.Join(path, "."), "maxSurge and maxUnavailable cannot both be 0: no node could be replaced")
	}
}

var awsNodeMembers = map[string]document.Rule{
	"instanceType": document.String(instanceType),
	"rootVolume": document.Object(map[string]document.Rule{
		"size": document.Integer(8, 16384), "type": document.Text(16), "iops": document.Integer(0, 256000),
		"encrypted": document.Boolean, "encryptionKey": document.Text(2048),
	}),
	"subnet":          document.AnyObject,
	"instanceProfile": document.Text(256),
	"securityGroups":  document.AnyList,
}

// nodePoolImmutable are the paths of a spec that cannot change.
var nodePoolImmutable = [][]string{{"nodePool", "platform"}, {"nodePool", "management", "upgradeType"}}

// nodePoolKept are the paths of a spec that its replacement may leave out.
var nodePoolKept = append([][]string{
	{"nodePool", "release"}, {"nodePool", "replicas"},
	{"nodePool", "management", "autoRepair"}, {"nodePool", "nodeDrainTimeout"}, {"provider"},
}, nodePoolImmutable...)

// Complete adds the defaults of missing members to the spec of a new node pool, and checks it.
func (n NodePoolRules) Complete(p *document.Problems, spec map[string]any) {
	pool := document.Ensure(spec, "nodePool")
	if len(n.Providers) > 0 && n.Providers[0] != Simulated {
		document.SetDefault(spec, "provider", string(n.Providers[0]))
	}
	if to := providerOf(spec); to != Simulated && !slices.Contains(n.Providers, to) {
		p.Add("spec.provider", "the region offers no %s nodes", to)
	}
	document.SetDefault(pool, "replicas", json.Number("2"))
	document.SetDefault(pool, "nodeDrainTimeout", "0s")
	management, platform := document.Ensure(pool, "management"), document.Ensure(pool, "platform")
	document.SetDefault(management, "autoRepair", true)
	document.SetDefault(management, "upgradeType", "Replace")
	document.SetDefault(platform, "type", "AWS")
	document.SetDefault(document.Ensure(platform, "aws"), "instanceType", instancetype.Default)
	if n.Image != "" {
		document.SetDefault(document.Ensure(pool, "release"), "image", n.Image)
	}
	n.check(p, nil, spec)
}

// CheckChange checks a spec that takes the place of another.
func (n NodePoolRules) CheckChange(p *document.Problems, before, after map[string]any) {
	n.check(p, before, after)
	for _, path := range nodePoolImmutable {
		document.CheckUnchanged(p, "spec."+strings.Join(path, "."),
			document.Lookup(before, path...), document.Lookup(after, path...))
	}
	if from, to := providerOf(before), providerOf(after); from != to {
		p.Add("spec.provider", "cannot be changed from %s: create another node pool", from)
	}
	for _, path := range [][]string{{"nodePool", "replicas"}, {"nodePool", "release", "image"}} {
		if document.Lookup(before, path...) != nil && document.Lookup(after, path...) == nil {
			p.Add("spec."+strings.Join(path, "."), "cannot be removed")
		}
	}
}

// RestoreOmitted copies from the stored spec into its replacement what the
// replacement leaves out and either cannot change or was filled in.
func (n NodePoolRules) RestoreOmitted(before, after map[string]any) {
	copyOmitted(before, after, nodePoolKept)
}

// check checks a whole spec; before is the stored spec, nil for a new node pool.
func (n NodePoolRules) check(p *document.Problems, before, spec map[string]any) {
	nodePoolRule(p, "spec", spec)
	const field = "spec.nodePool.release.image"
	from, _ := document.Lookup(before, "nodePool", "release", "image").(string)
	image, ok := document.Lookup(spec, "nodePool", "release", "image").(string)
	// The cluster may have a release that the region offers no more.
	if ok && image != from && (image == n.Image || n.Releases.checkOffered(p, field, image)) {
		err := CheckNodeVersion(n.Releases.VersionOf(from), n.Releases.VersionOf(image), n.Releases.VersionOf(n.Image))
		if err != nil {
			p.Add(field, "%s", err)
		}
	}
	checkTaints(p, spec)
	checkReplace(p, spec)
}

// checkTaints checks that each taint has a key and an effect and that no two
// taints have the same.
func checkTaints(p *document.Problems, spec map[string]any) {
	taints, _ := spec["taints"].([]any)
	type identity struct{ key, effect string }
	seen := map[identity]bool{}
	for i, taint := range taints {
		field := fmt.Sprintf("spec.taints[%d]", i)
		key, effect := document.Lookup(taint, "key"), document.Lookup(taint, "effect")
		if key == nil || effect == nil {
			p.Add(field, "needs a key and an effect")
			continue
		}
		k, keyIsText := key.(string)
		e, effectIsText := effect.(string)
		if !keyIsText || !effectIsText {
			continue // the rule of the spec reports it
		}
		if seen[identity{k, e}] {
			p.Add(field, "is there twice: a key and its effect must be unique")
		}
		seen[identity{k, e}] = true
	}
}

func instanceType(s string) string {
	if _, ok := instancetype.Lookup(s); ok {
		return ""
	}
	family, _, _ := strings.Cut(s, ".")
	var near []string
	for _, known := range instancetype.Names() {
		if strings.HasPrefix(known, family+".") && family != "" {
			near = append(near, known)
		}
	}
	if len(near) == 0 {
		near = []string{"m6a.xlarge", "c6i.2xlarge", "r6i.large", "and others of these and their neighbouring families"}
	}
	return document.Quote(s) + " is not a known instance type; possible: " + strings.Join(near, ", ")
}

// reservedLabelDomains are the domains of labels that the region, or Kubernetes
// itself, sets.
var reservedLabelDomains = []string{"kubernetes.io", "k8s.io", "atoll.dev", "hypershift.openshift.io"}

func nodeLabelKey(key string) string {
	domain, _, qualified := strings.Cut(key, "/")
	if qualified && domain != "node-restriction.kubernetes.io" {
		for _, reserved := range reservedLabelDomains {
			if domain == reserved || strings.HasSuffix(domain, "."+reserved) {
				return "is reserved: labels of " + reserved + " are set by the service"
			}
		}
	}
	return document.LabelKey(key)
}

func taintKey(key string) string {
	if wrong := document.LabelKey(key); wrong != "" {
		return document.Quote(key) + " " + strings.ReplaceAll(wrong, "label key", "taint key")
	}
	return ""
}
