package arm

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"atoll.dev/cluster"
	"atoll.dev/cluster/progress"
	"atoll.dev/internal/rest"
)

// authsSegment is the segment of external authentications.
const authsSegment = "externalAuths"

// noClients is why the region refuses clients: they sign people in to a console, which its clusters do not have.
const noClients = "the clusters of this region have no component that signs people in; the audiences of the issuer " +
	"are the client ids whose tokens the cluster accepts"

// Policies of the prefix of user names, as ARM names them.
const (
	policyNone     = "None" // the default of Kubernetes: none for the claim email, and otherwise the issuer's URL and #
	policyPrefix   = "Prefix"
	policyNoPrefix = "NoPrefix"
)

// conditionFields are the fields of the status of a resource.
var conditionFields = []field{
	{name: "conditions", kind: list, since: v20260630, visibility: readOnly, members: []field{
		{name: "type", since: v20260630, visibility: readOnly}, {name: "status", since: v20260630, visibility: readOnly},
		{name: "lastTransitionTime", since: v20260630, visibility: readOnly},
		{name: "reason", since: v20260630, visibility: readOnly}, {name: "message", since: v20260630, visibility: readOnly},
	}},
}

// authFields are the properties of externalAuths.
var authFields = []field{
	{name: "provisioningState", since: always, visibility: readOnly},
	{name: "status", kind: object, since: v20260630, visibility: readOnly, members: conditionFields},
	{name: "issuer", kind: object, since: always, required: true, members: []field{
		{name: "url", since: always, required: true, check: httpsURL},
		{name: "audiences", kind: list, since: always, required: true, check: all(minItems(1), maxItems(10), isListOfTexts)},
		{name: "ca", since: always},
	}},
	{name: "clients", kind: list, since: always, check: empty(noClients)},
	{name: "claim", kind: object, since: always, required: true, members: []field{
		{name: "mappings", kind: object, since: always, required: true, members: []field{
			{name: "username", kind: object, since: always, required: true, members: []field{
				{name: "claim", since: always, required: true, check: maxLength(256)},
				{name: "prefix", since: always},
				{name: "prefixPolicy", since: always, check: oneOf(policyNone, policyPrefix, policyNoPrefix)},
			}},
			{name: "groups", kind: object, since: always, members: []field{
				{name: "claim", since: always, check: maxLength(256)}, {name: "prefix", since: always},
			}},
		}},
		{name: "validationRules", kind: list, since: always, members: []field{
			{name: "type", since: always, fallback: "RequiredClaim", check: oneOf("RequiredClaim")},
			{name: "requiredClaim", kind: object, since: always, required: true, members: []field{
				{name: "claim", since: always, required: true}, {name: "requiredValue", since: always, required: true},
			}},
		}},
	}},
}

func httpsURL(value any) string {
	if u, err := url.Parse(value.(string)); err != nil || u.Scheme != "https" || u.Host == "" {
		return "Invalid value: must be an https URL"
	}
	return ""
}

func minItems(n int) func(any) string {
	return func(value any) string {
		if len(value.([]any)) < n {
			return "Invalid value: must have at least one item"
		}
		return ""
	}
}

func isListOfTexts(value any) string {
	for _, item := range value.([]any) {
		if _, isText := item.(string); !isText {
			return "Invalid value: must be a list of strings"
		}
	}
	return ""
}

// notImplemented returns the answer to a valid request that the region cannot carry out yet.
func notImplemented(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusNotImplemented, codeNotImplemented, format, args...)
}

// completeExternalAuth sets the prefix policy that follows from the prefix, and checks the properties of
// the external authentication by the rules of issuers that all fronts share.
func completeExternalAuth(p *problems, properties map[string]any) {
	username, _ := lookup(properties, "claim", "mappings", "username").(map[string]any)
	prefix := textAt(username, "prefix")
	if username != nil && username["prefixPolicy"] == nil {
		username["prefixPolicy"] = policyNone
		if prefix != "" {
			username["prefixPolicy"] = policyPrefix
		}
	}
	const mappings = "properties.claim.mappings"
	if prefix != "" && textAt(username, "prefixPolicy") != policyPrefix {
		p.add(mappings+".username.prefix", "Forbidden: prefixPolicy is not Prefix")
		return
	}
	if groups := lookup(properties, "claim", "mappings", "groups"); groups != nil &&
		textAt(properties, "claim", "mappings", "groups", "prefix") == "" {
		p.add(mappings+".groups.prefix", "Required value: groups of an issuer have a prefix in this region, such as oidc:")
		return
	}
	for _, found := range cluster.CheckIssuers("", []cluster.Issuer{issuerOf(properties)}) {
		p.add(authRequestFieldOf(strings.TrimPrefix(found.Field, "[0].")), "Invalid value: %s", found.Message)
	}
}

// authRequestFields maps fields of an issuer to the fields of an external authentication, by their
// beginnings.
var authRequestFields = []struct{ path, target string }{
	{"url", "issuer.url"}, {"audiences", "issuer.audiences"}, {"certificateAuthority", "issuer.ca"},
	{"claimMappings", "claim.mappings"},
}

// authRequestFieldOf returns the field of an external authentication from which a field of an issuer is
// made.
func authRequestFieldOf(field string) string {
	for _, t := range authRequestFields {
		if rest, found := strings.CutPrefix(field, t.path); found {
			return "properties." + t.target + rest
		}
	}
	if rest, found := strings.CutPrefix(field, "claimValidationRules"); found {
		return "properties.claim.validationRules" + strings.Replace(rest, "].", "].requiredClaim.", 1)
	}
	return "properties.issuer"
}

// issuerOf returns the issuer of tokens that a checked external authentication stands for.
func issuerOf(properties map[string]any) cluster.Issuer {
	issuer := cluster.Issuer{URL: textAt(properties, "issuer", "url"),
		CertificateAuthority: textAt(properties, "issuer", "ca")}
	audiences, _ := lookup(properties, "issuer", "audiences").([]any)
	for _, a := range audiences {
		text, _ := a.(string)
		issuer.Audiences = append(issuer.Audiences, text)
	}
	at := func(path ...string) string {
		return textAt(properties, append([]string{"claim", "mappings"}, path...)...)
	}
	username := cluster.UsernameMapping{Claim: at("username", "claim"), Prefix: at("username", "prefix")}
	switch policy := at("username", "prefixPolicy"); {
	case policy == policyNoPrefix, policy == policyNone && username.Claim == "email":
		username.PrefixPolicy = cluster.NoPrefix
	case policy == policyNone:
		username.Prefix = issuer.URL + "#"
	}
	issuer.ClaimMappings = cluster.ClaimMappings{Username: username,
		Groups: cluster.GroupsMapping{Claim: at("groups", "claim"), Prefix: at("groups", "prefix")}}
	rules, _ := lookup(properties, "claim", "validationRules").([]any)
	for _, r := range rules {
		rule, _ := r.(map[string]any)
		issuer.ClaimValidationRules = append(issuer.ClaimValidationRules, cluster.ClaimRule{
			Claim: textAt(rule, "requiredClaim", "claim"), RequiredValue: textAt(rule, "requiredClaim", "requiredValue")})
	}
	return issuer
}

// refuseSecondAuth refuses an external authentication beside one with another name: a cluster has one at most. Two
// requests at once cannot both pass, since the document of each has the name of the cluster.
func (f *front) refuseSecondAuth(x *exchange, named target) error {
	other, err := f.byName(x.ctx, kindAuth, x.subscription.ID, named.document)
	if err != nil || other == nil || strings.EqualFold(other.spec.Name, named.name) {
		return err
	}
	return secondAuth()
}

// secondAuth returns the answer to a request for a second external authentication of a cluster.
func secondAuth() error {
	return invalid(problems{{"name", "Forbidden: There are other external auths on the cluster. Only one external auth " +
		"is allowed per cluster."}})
}

// addCondition adds to the view of an external authentication how its cluster trusts the issuer now. The view of a
// resource that an operation works on has no condition.
func (f *front) addCondition(ctx context.Context, v version, r resource, shown map[string]any) {
	if !isTerminal(r.status.State) || r.status.Resource == "" {
		return
	}
	now := f.conditionOf(ctx, r)
	properties := shown["properties"].(map[string]any)
	if v < v20260630 {
		properties["condition"] = now
		return
	}
	properties["status"] = map[string]any{"conditions": []condition{now}}
}

// conditionOf reads from the lifecycle manager how a cluster trusts the issuer of an external authentication.
func (f *front) conditionOf(ctx context.Context, r resource) condition {
	have, err := f.clm.GetWithStatuses(ctx, clusters, r.status.Resource)
	if err != nil {
		f.log.Warn("reading the Cluster of an external authentication failed", "document", r.id, "error", err)
		return condition{Type: "Available", Status: "Unknown", Reason: "Unknown",
			Message: "the lifecycle manager does not answer"}
	}
	url := textAt(r.spec.Properties, "issuer", "url")
	now := progress.OfCluster(have.Resource, progress.HidePlacement)
	found := condition{LastTransitionTime: now.LastUpdate.UTC().Format(time.RFC3339)}
	var spec struct {
		Authentication struct{ Issuers []cluster.Issuer }
	}
	if json.Unmarshal(have.Spec, &spec) != nil || !slices.ContainsFunc(spec.Authentication.Issuers,
		func(i cluster.Issuer) bool { return i.URL == url }) {
		found.Type, found.Status, found.Reason = "Available", "False", "Distrusted"
		found.Message = "another API of the region has removed the issuer from the cluster; " +
			"PUT this resource again, or delete it"
		return found
	}
	switch {
	case now.Phase != progress.Ready:
		found.Type, found.Status, found.Reason = "Available", "False", now.Reason
		found.Message = "the control plane does not serve: " + now.Message
	case now.ObservedGeneration < int64(have.Generation):
		found.Type, found.Status, found.Reason = "Progressing", "True", string(cluster.ReasonUpdating)
		found.Message = "the control plane serves; the latest change of the cluster is under way"
	case now.Reason == progress.Degraded && strings.Contains(now.Message, url):
		found.Type, found.Status, found.Reason = "Degraded", "True", string(cluster.ReasonIssuerUnreachable)
		found.Message = now.Message
	default:
		found.Type, found.Status, found.Reason = "Available", "True", string(cluster.ReasonAsExpected)
		found.Message = "the control plane takes tokens of the issuer for " +
			strconv.Itoa(len(issuerOf(r.spec.Properties).Audiences)) + " audiences"
	}
	return found
}
