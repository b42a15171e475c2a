package services

import (
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/front/arm"
)

// azureTokenFlags are the flags of `atoll platform` about the tokens by which Azure Resource
// Manager proves its identity.
type azureTokenFlags struct {
	issuer, tenant                 string
	audiences, applications, hosts []string
	binding                        string
}

func (f *azureTokenFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.issuer, "azure-token-issuer", "", "issuer of the tokens of Azure Resource Manager, such as "+
		"https://sts.windows.net/TENANT/ (default: it proves itself by certificates only)")
	cmd.Flags().StringVar(&f.tenant, "azure-token-tenant", "", "tenant of the tokens (claim tid)")
	cmd.Flags().StringSliceVar(&f.audiences, "azure-token-audience", nil,
		"audiences of the tokens of Azure Resource Manager (claim aud)")
	cmd.Flags().StringSliceVar(&f.applications, "azure-token-application", nil,
		"ids of the applications of Azure Resource Manager (claims appid and azp)")
	cmd.Flags().StringSliceVar(&f.hosts, "azure-token-host", nil, "names of the region to which Azure Resource Manager "+
		"signs requests (claim u), such as rp.us-east-1.example.com; a name without a port permits every port "+
		"(default: the names in the certificate of --azure-listen)")
	cmd.Flags().StringVar(&f.binding, "azure-token-binding", string(arm.BindingRequired),
		"required: a token without proof of possession needs a published certificate, too; optional: it needs none")
}

// check returns an error when flags lack others. listen is --azure-listen.
func (f *azureTokenFlags) check(listen string) error {
	switch isSet := f.issuer != ""; {
	case f.binding != string(arm.BindingRequired) && f.binding != string(arm.BindingOptional):
		return fmt.Errorf("--azure-token-binding %s is neither %s nor %s", f.binding, arm.BindingRequired,
			arm.BindingOptional)
	case isSet && listen == "":
		return errors.New("--azure-token-issuer needs --azure-listen")
	case isSet != (f.tenant != "") || isSet != (len(f.audiences) > 0) || isSet != (len(f.applications) > 0):
		return errors.New("--azure-token-issuer, --azure-token-tenant, --azure-token-audience and " +
			"--azure-token-application need each other")
	case !isSet && len(f.hosts) > 0:
		return errors.New("--azure-token-host needs --azure-token-issuer")
	}
	for flag, values := range map[string][]string{"audience": f.audiences, "application": f.applications,
		"host": f.hosts} {
		if slices.ContainsFunc(values, func(v string) bool { return strings.TrimSpace(v) == "" }) {
			return fmt.Errorf("--azure-token-%s %s has an empty element", flag, strings.Join(values, ","))
		}
	}
	return nil
}

// certificateHosts returns the names of hosts and the addresses in a certificate, without patterns: several
// regions can have the same pattern.
func certificateHosts(certificate *x509.Certificate) []string {
	names := slices.DeleteFunc(slices.Clone(certificate.DNSNames), func(n string) bool { return strings.Contains(n, "*") })
	for _, address := range certificate.IPAddresses {
		names = append(names, address.String())
	}
	return names
}

// newVerifier returns the verifier of the tokens; nil without --azure-token-issuer. certificate is that of
// the listener, whose names are the hosts by default.
func (f *azureTokenFlags) newVerifier(certificate *x509.Certificate, used access.Signatures, log *slog.Logger) (
	*arm.Tokens, error) {
	if f.issuer == "" {
		return nil, nil
	}
	hosts := f.hosts
	if len(hosts) == 0 {
		hosts = certificateHosts(certificate)
	}
	return arm.NewTokens(arm.TokenOptions{Issuer: f.issuer, Tenant: f.tenant, Audiences: f.audiences,
		Applications: f.applications, Hosts: hosts, Binding: arm.Binding(f.binding), Used: used, Log: log})
}
