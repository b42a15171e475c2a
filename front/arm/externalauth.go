package arm

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"atoll.dev/internal/rest"
)

// authsSegment is the segment of external authentications, and authsType their type.
const (
	authsSegment = "externalAuths"
	authsType    = namespace + "/" + clustersSegment + "/" + authsSegment
)

var authName = regexp.MustCompile(`^[a-zA-Z]([-a-zA-Z0-9]{0,13}[a-zA-Z0-9])?$`)

// authFields are the properties of externalAuths.
var authFields = []field{
	{name: "issuer", kind: object, since: always, required: true, members: []field{
		{name: "url", since: always, required: true, check: httpsURL},
		{name: "audiences", kind: list, since: always, required: true, check: all(minItems(1), maxItems(10))},
		{name: "ca", since: always},
	}},
	{name: "clients", kind: list, since: always, check: maxItems(20), members: []field{
		{name: "component", kind: object, since: always, required: true, members: []field{
			{name: "name", since: always, required: true, check: maxLength(256)},
			{name: "authClientNamespace", since: always, required: true, check: maxLength(63)},
		}},
		{name: "clientId", since: always, required: true},
		{name: "extraScopes", kind: list, since: always},
		{name: "type", since: always, required: true, check: oneOf("Confidential", "Public")},
	}},
	{name: "claim", kind: object, since: always, required: true, members: []field{
		{name: "mappings", kind: object, since: always, required: true, members: []field{
			{name: "username", kind: object, since: always, required: true, members: []field{
				{name: "claim", since: always, required: true, check: maxLength(256)},
				{name: "prefix", since: always},
				{name: "prefixPolicy", since: always, check: oneOf("None", "Prefix", "NoPrefix")},
			}},
			{name: "groups", kind: object, since: always, members: []field{
				{name: "claim", since: always, check: maxLength(256)}, {name: "prefix", since: always},
			}},
		}},
		{name: "validationRules", kind: list, since: always, members: []field{
			{name: "type", since: always, check: oneOf("RequiredClaim")},
			{name: "requiredClaim", kind: object, since: always, members: []field{
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

// notImplemented returns the answer to a valid request for what the region cannot carry out yet.
func notImplemented(format string, args ...any) *rest.Error {
	return rest.Errorf(http.StatusNotImplemented, codeNotImplemented, format, args...)
}

// noExternalAuth is why the region stores no external authentication: a customer who reads one back relies on it.
const noExternalAuth = "The body is valid, but the API servers of this region take no tokens of other issuers yet. " +
	"Nothing was stored. Use requestAdminCredential, whose certificates the API servers take."

// putExternalAuth serves PUT and PATCH of an external authentication. It checks the request as the resource type
// requires, and refuses what is valid because no control plane can carry it out.
func (f *front) putExternalAuth(x *exchange) error {
	if err := x.subscription.admit(x.r.Method); err != nil {
		return err
	}
	if _, err := f.parentOf(x); err != nil {
		return err
	}
	if x.r.Method == http.MethodPatch {
		return f.missingExternalAuth(x)
	}
	body, err := x.readBody()
	if err != nil {
		return err
	}
	var p problems
	name := x.path[strings.LastIndex(x.path, "/")+1:]
	if !authName.MatchString(name) {
		return rest.Errorf(http.StatusBadRequest, codeInvalidName, "The resource name '%s' is invalid.", name)
	}
	if given, isText := body["name"].(string); isText && !strings.EqualFold(given, name) {
		p.add("name", "name must match resourceID path: %s", x.path)
	}
	checkExternalAuth(&p, x.version, body)
	if err := invalid(p); err != nil {
		return err
	}
	return notImplemented(noExternalAuth)
}

// checkExternalAuth checks the properties of an external authentication.
func checkExternalAuth(p *problems, v version, body map[string]any) {
	properties, _ := body["properties"].(map[string]any)
	a := acceptance{version: v, isNew: true}
	stored := a.object("properties.", authFields, properties, nil)
	*p = append(*p, a.problems...)
	issuer, _ := stored["issuer"].(map[string]any)
	audiences, _ := issuer["audiences"].([]any)
	clients, _ := stored["clients"].([]any)
	for _, client := range clients {
		c, _ := client.(map[string]any)
		if id, isText := c["clientId"].(string); isText && !slices.Contains(audiences, any(id)) {
			p.add("properties.clients", "Invalid value: %q: must be one of the audiences of the issuer", id)
		}
	}
}

// missingExternalAuth answers about an external authentication: none exists.
func (f *front) missingExternalAuth(x *exchange) error {
	t, err := parseTarget(x.path, kindCluster)
	if err != nil {
		return err
	}
	return rest.Errorf(http.StatusNotFound, codeResourceNotFound,
		"The resource '%s/%s/%s' under resource group '%s' was not found.", authsType, t.cluster,
		x.path[strings.LastIndex(x.path, "/")+1:], t.group)
}

func (f *front) getExternalAuth(x *exchange) error {
	if _, err := f.parentOf(x); err != nil {
		return err
	}
	return f.missingExternalAuth(x)
}

// listExternalAuths serves the list of a cluster's external authentications, which is empty.
func (f *front) listExternalAuths(x *exchange) error {
	if _, err := f.parentOf(x); err != nil {
		return err
	}
	return x.write(http.StatusOK, map[string]any{"value": []any{}})
}

func (f *front) deleteExternalAuth(x *exchange) error {
	if err := x.subscription.admit(x.r.Method); err != nil {
		return err
	}
	x.w.WriteHeader(http.StatusNoContent)
	return nil
}
