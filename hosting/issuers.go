package hosting

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/api/hypershift"
	"atoll.dev/cluster"
	"atoll.dev/cluster/document"
	"atoll.dev/hosting/controlplane"
)

// issuersField is the path of the issuers in a HostedCluster.
const issuersField = "spec.configuration.authentication.oidcProviders"

// issuersOf returns the issuers of a spec, without the certificates, which are in ConfigMaps.
func issuersOf(spec hypershift.HostedClusterSpec) (issuers []cluster.Issuer) {
	if spec.Configuration.Authentication.Type != hypershift.AuthenticationOIDC {
		return nil
	}
	for _, p := range spec.Configuration.Authentication.OIDCProviders {
		username, groups := p.ClaimMappings.Username, p.ClaimMappings.Groups
		i := cluster.Issuer{URL: p.Issuer.URL, Audiences: p.Issuer.Audiences, ClaimMappings: cluster.ClaimMappings{
			Username: cluster.UsernameMapping{Claim: username.Claim, Prefix: username.Prefix.PrefixString,
				PrefixPolicy: cluster.PrefixPolicy(username.PrefixPolicy)},
			Groups: cluster.GroupsMapping{Claim: groups.Claim, Prefix: groups.Prefix},
		}}
		for _, r := range p.ClaimValidationRules {
			i.ClaimValidationRules = append(i.ClaimValidationRules, cluster.ClaimRule(r.RequiredClaim))
		}
		issuers = append(issuers, i)
	}
	return issuers
}

// issuerProblems lists the problems of the issuers of a spec. Hosting checks what the region has checked: the plane
// trusts what hosting writes.
func issuerProblems(spec hypershift.HostedClusterSpec) document.Problems {
	issuers := issuersOf(spec)
	found := cluster.CheckIssuers(issuersField, issuers)
	for n, i := range issuers {
		if strings.TrimSuffix(i.URL, "/") == strings.TrimSuffix(spec.IssuerURL, "/") {
			found.Add(fmt.Sprintf("%s[%d].issuer.issuerURL", issuersField, n), "is the issuer of the cluster itself")
		}
		for m, r := range spec.Configuration.Authentication.OIDCProviders[n].ClaimValidationRules {
			if r.Type != "RequiredClaim" {
				found.Add(fmt.Sprintf("%s[%d].claimValidationRules[%d].type", issuersField, n, m),
					"is not RequiredClaim, the only type that this management cluster has")
			}
		}
	}
	return found
}

// applyIssuers makes the issuers of a spec those of its plane, and reports the problems. A plane whose spec is not
// followed keeps its issuers.
func (h *Hosting) applyIssuers(ctx context.Context, c *hostedCluster, hc *hypershift.HostedCluster, r *report) error {
	var missing []string
	if len(r.Problems) == 0 && r.Refused == nil && !r.Paused {
		issuers, problems, err := h.readAuthorities(ctx, c.id, hc.Spec)
		if err != nil {
			return err
		}
		c.issuers, missing = issuers, problems
	}
	r.HasIssuers = len(c.issuers)+len(missing) > 0
	if c.issuers == nil { // hosting began after the spec became invalid: the plane's file stays as it is
		return nil
	}
	problems, err := h.o.Issuers.Apply(c.id, c.issuers)
	r.IssuerProblems = append(missing, problems...)
	return err
}

// readAuthorities returns the issuers of a spec with the certificates of their ConfigMaps, never nil. It leaves out
// issuers whose certificates cannot be read; problems has the reason for each.
func (h *Hosting) readAuthorities(ctx context.Context, id controlplane.ID, spec hypershift.HostedClusterSpec) (
	issuers []cluster.Issuer, problems []string, err error) {
	issuers = []cluster.Issuer{}
	for n, i := range issuersOf(spec) {
		name := spec.Configuration.Authentication.OIDCProviders[n].Issuer.CertificateAuthority.Name
		if name == "" {
			issuers = append(issuers, i)
			continue
		}
		object, err := h.o.Client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).
			Namespace(id.Namespace).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			problems = append(problems, fmt.Sprintf("the ConfigMap %s with the certificates of the issuer %s does not exist",
				name, i.URL))
			continue
		case apierrors.IsForbidden(err):
			problems = append(problems, fmt.Sprintf("hosting may not read the ConfigMap %s with the certificates of the "+
				"issuer %s; `atoll mc bootstrap` gives it the right", name, i.URL))
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("the certificates of the issuer %s: %w", i.URL, err)
		}
		i.CertificateAuthority, _, _ = unstructured.NestedString(object.Object, "data", hypershift.CABundleKey)
		if wrong := cluster.CheckIssuers(issuersField, []cluster.Issuer{i}); i.CertificateAuthority == "" || len(wrong) > 0 {
			problems = append(problems, fmt.Sprintf("the ConfigMap %s has no certificates in PEM for the issuer %s below %s",
				name, i.URL, hypershift.CABundleKey))
			continue
		}
		issuers = append(issuers, i)
	}
	return issuers, problems, nil
}
