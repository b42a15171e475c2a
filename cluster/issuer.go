package cluster

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"atoll.dev/cluster/document"
)

// Issuer is an OpenID Connect issuer whose tokens a control plane accepts: an item of spec.authentication.issuers.
type Issuer struct {
	URL       string   `json:"url"`
	Audiences []string `json:"audiences"` // a token has one of them
	// CertificateAuthority has the certificates, in PEM, that verify the issuer's server; "" for public authorities.
	CertificateAuthority string        `json:"certificateAuthority,omitempty"`
	ClaimMappings        ClaimMappings `json:"claimMappings"`
	ClaimValidationRules []ClaimRule   `json:"claimValidationRules,omitempty"`
}

// ClaimMappings make the user and the groups of a token's bearer.
type ClaimMappings struct {
	Username UsernameMapping `json:"username"`
	Groups   GroupsMapping   `json:"groups,omitzero"` // without a claim: tokens bring no groups
}

// UsernameMapping makes the name of a user: Prefix and the value of Claim.
type UsernameMapping struct {
	Claim        string       `json:"claim"`
	PrefixPolicy PrefixPolicy `json:"prefixPolicy,omitempty"`
	Prefix       string       `json:"prefix,omitempty"`
}

// GroupsMapping makes the names of groups: Prefix and each value of Claim.
type GroupsMapping struct {
	Claim  string `json:"claim,omitempty"`
	Prefix string `json:"prefix,omitempty"`
}

// PrefixPolicy decides whether user names have a prefix.
type PrefixPolicy string

// Policies of prefixes. The default is WithPrefix.
const (
	WithPrefix PrefixPolicy = "Prefix"
	NoPrefix   PrefixPolicy = "NoPrefix" // of the claim email only
)

// ClaimRule is a claim that a token must have, with this value.
type ClaimRule struct {
	Claim         string `json:"claim"`
	RequiredValue string `json:"requiredValue"`
}

const (
	// OwnIssuer is the issuer of the tokens of ServiceAccounts in every control plane.
	OwnIssuer = "https://kubernetes.default.svc.cluster.local"

	defaultUsernameClaim = "sub"
	emailClaim           = "email"

	maxIssuers, maxAudiences, maxClaimRules = 10, 10, 16
	maxIssuerURL, maxAuthorityBytes         = 2048, 32 << 10
	maxClaimBytes                           = 256
	maxPrefix                               = maxIssuerURL + maxClaimBytes
)

// reservedNames are the beginnings of users and groups that no token can have.
var reservedNames = []string{"system:", "atoll:"}

// authenticationRule checks the structure of spec.authentication; checkAuthentication checks the rest.
var authenticationRule = document.Object(map[string]document.Rule{
	"issuers": document.List(maxIssuers, document.Object(map[string]document.Rule{
		"url":                  document.Text(maxIssuerURL),
		"audiences":            document.List(maxAudiences, document.Text(maxClaimBytes)),
		"certificateAuthority": document.String(func(string) string { return "" }),
		"claimMappings": document.Object(map[string]document.Rule{
			"username": document.Object(map[string]document.Rule{
				"claim": document.Text(maxClaimBytes), "prefix": document.Text(maxPrefix),
				"prefixPolicy": document.OneOf(string(WithPrefix), string(NoPrefix)),
			}),
			"groups": document.Object(map[string]document.Rule{
				"claim": document.Text(maxClaimBytes), "prefix": document.Text(maxPrefix),
			}),
		}),
		"claimValidationRules": document.List(maxClaimRules, document.Object(map[string]document.Rule{
			"claim": document.Text(maxClaimBytes), "requiredValue": document.Text(maxClaimBytes),
		})),
	})),
})

// completeAuthentication adds the defaults of the issuers of a spec: users have the issuer's URL and # before the
// claim sub. It ignores what is no object or list, which the rules refuse.
func completeAuthentication(spec map[string]any) {
	issuers, _ := document.Lookup(spec, "authentication", "issuers").([]any)
	for _, v := range issuers {
		issuer, isObject := v.(map[string]any)
		if !isObject {
			continue
		}
		at, isText := issuer["url"].(string)
		if mappings, isGiven := issuer["claimMappings"]; isGiven {
			if _, isObject := mappings.(map[string]any); !isObject {
				continue
			}
			if username, isGiven := mappings.(map[string]any)["username"]; isGiven {
				if _, isObject := username.(map[string]any); !isObject {
					continue
				}
			}
		}
		username := document.Ensure(issuer, "claimMappings", "username")
		document.SetDefault(username, "claim", defaultUsernameClaim)
		if isText && username["prefixPolicy"] != string(NoPrefix) {
			document.SetDefault(username, "prefix", at+"#")
		}
	}
}

// checkAuthentication checks the issuers of a spec whose structure is right.
func checkAuthentication(p *document.Problems, spec map[string]any) {
	given := document.Lookup(spec, "authentication", "issuers")
	if given == nil {
		return
	}
	data, err := json.Marshal(given)
	if err != nil {
		return
	}
	var issuers []Issuer
	if json.Unmarshal(data, &issuers) != nil {
		return // the rules have found why
	}
	for _, found := range CheckIssuers("spec.authentication.issuers", issuers) {
		p.Add(found.Field, "%s", found.Message)
	}
}

// CheckIssuers lists the problems of issuers, whose defaults are set. field is the path of the list.
func CheckIssuers(field string, issuers []Issuer) (p document.Problems) {
	if len(issuers) > maxIssuers {
		p.Add(field, "has %d items; %d are possible", len(issuers), maxIssuers)
	}
	seen := map[string]bool{}
	for n, issuer := range issuers {
		at := field + "[" + strconv.Itoa(n) + "]"
		if problem := issuerURLProblem(issuer.URL); problem != "" {
			p.Add(at+".url", "%s", problem)
		} else if seen[issuer.URL] {
			p.Add(at+".url", "is the URL of another issuer, too")
		}
		seen[issuer.URL] = true
		checkAudiences(&p, at+".audiences", issuer.Audiences)
		if problem := authorityProblem(issuer.CertificateAuthority); problem != "" {
			p.Add(at+".certificateAuthority", "%s", problem)
		}
		checkMappings(&p, at+".claimMappings", issuer.ClaimMappings)
		checkClaimRules(&p, at+".claimValidationRules", issuer.ClaimValidationRules)
	}
	return p
}

// issuerURLProblem returns the problem of the URL of an issuer, or "".
func issuerURLProblem(text string) string {
	u, err := url.Parse(text)
	switch {
	case text == "":
		return "is missing"
	case len(text) > maxIssuerURL:
		return "has more than " + strconv.Itoa(maxIssuerURL) + " characters"
	case err != nil:
		return "is not a URL"
	case u.Scheme != "https":
		return "does not begin with https://"
	case u.Hostname() == "" || u.Opaque != "":
		return "has no host"
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || strings.HasSuffix(text, "#"):
		return "has a user, query or fragment, which the URL of an issuer cannot have"
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	if host == "kubernetes" || host == "kubernetes.default" || strings.HasPrefix(host, "kubernetes.default.svc") {
		return "is the issuer of the cluster's own ServiceAccounts"
	}
	return ""
}

func checkAudiences(p *document.Problems, field string, audiences []string) {
	if len(audiences) == 0 || len(audiences) > maxAudiences {
		p.Add(field, "has %d items; 1 to %d are needed: the client ids whose tokens the cluster accepts",
			len(audiences), maxAudiences)
	}
	for n, a := range audiences {
		if a == "" || len(a) > maxClaimBytes || slices.Contains(audiences[:n], a) {
			p.Add(field+"["+strconv.Itoa(n)+"]", "is empty, longer than %d bytes, or there twice", maxClaimBytes)
		}
	}
}

// authorityProblem returns the problem of certificates in PEM, or "".
func authorityProblem(text string) string {
	if text == "" {
		return ""
	}
	if len(text) > maxAuthorityBytes {
		return "has more than 32 KiB"
	}
	certificates := 0
	for rest := []byte(text); len(strings.TrimSpace(string(rest))) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil || block.Type != "CERTIFICATE" {
			return "has something else than certificates in PEM"
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return "has a certificate that cannot be read"
		}
		certificates++
	}
	if certificates == 0 {
		return "has no certificate"
	}
	return ""
}

func checkMappings(p *document.Problems, field string, m ClaimMappings) {
	if problem := claimProblem(m.Username.Claim); problem != "" {
		p.Add(field+".username.claim", "%s", problem)
	}
	switch {
	case m.Username.PrefixPolicy != "" && m.Username.PrefixPolicy != WithPrefix && m.Username.PrefixPolicy != NoPrefix:
		p.Add(field+".username.prefixPolicy", "is neither Prefix nor NoPrefix")
	case m.Username.PrefixPolicy != NoPrefix:
		if problem := prefixProblem(m.Username.Prefix); problem != "" {
			p.Add(field+".username.prefix", "%s", problem)
		}
	case m.Username.Claim != emailClaim:
		p.Add(field+".username.prefixPolicy", "is NoPrefix, which only the claim email can have")
	case m.Username.Prefix != "":
		p.Add(field+".username.prefix", "is set, and prefixPolicy is NoPrefix")
	}
	if m.Groups == (GroupsMapping{}) {
		return
	}
	if problem := claimProblem(m.Groups.Claim); problem != "" {
		p.Add(field+".groups.claim", "%s", problem)
	}
	if problem := prefixProblem(m.Groups.Prefix); problem != "" {
		p.Add(field+".groups.prefix", "%s", problem)
	}
}

func checkClaimRules(p *document.Problems, field string, rules []ClaimRule) {
	if len(rules) > maxClaimRules {
		p.Add(field, "has %d items; %d are possible", len(rules), maxClaimRules)
	}
	seen := map[string]bool{}
	for n, r := range rules {
		at := field + "[" + strconv.Itoa(n) + "]"
		if problem := claimProblem(r.Claim); problem != "" {
			p.Add(at+".claim", "%s", problem)
		} else if seen[r.Claim] {
			p.Add(at+".claim", "is required twice")
		}
		seen[r.Claim] = true
		if r.RequiredValue == "" || len(r.RequiredValue) > maxClaimBytes {
			p.Add(at+".requiredValue", "is empty or longer than %d bytes", maxClaimBytes)
		}
	}
}

// claimProblem returns the problem of the name of a claim, or "".
func claimProblem(claim string) string {
	if claim == "" {
		return "is missing"
	}
	if len(claim) > maxClaimBytes {
		return "has more than 256 bytes"
	}
	return ""
}

// prefixProblem returns the problem of a prefix, or "". With a good prefix no value of a claim makes a reserved name.
func prefixProblem(prefix string) string {
	switch {
	case prefix == "":
		return "is missing: users and groups of an issuer have a prefix, such as oidc:"
	case len(prefix) > maxPrefix:
		return "is too long"
	case strings.ContainsFunc(prefix, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return "has a space or a character that cannot be printed"
	}
	for _, reserved := range reservedNames {
		if strings.HasPrefix(prefix, reserved) || strings.HasPrefix(reserved, prefix) {
			return "is a beginning of " + reserved + " or begins with it; these names are reserved"
		}
	}
	return ""
}
