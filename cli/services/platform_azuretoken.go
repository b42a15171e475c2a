package services

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/cobra"

	"atoll.dev/access"
	"atoll.dev/front/arm"
)

// azureTokenFlags are the flags of `atoll platform` about the tokens by which Azure Resource
// Manager proves its identity.
type azureTokenFlags struct {
	issuer, tenant          string
	audiences, applications []string
	binding                 string
}

func (f *azureTokenFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.issuer, "azure-token-issuer", "", "issuer of the tokens of Azure Resource Manager, such as "+
		"https://sts.windows.net/TENANT/ (default: only certificates prove it)")
	cmd.Flags().StringVar(&f.tenant, "azure-token-tenant", "", "tenant of these tokens (claim tid)")
	cmd.Flags().StringSliceVar(&f.audiences, "azure-token-audience", nil, "audiences of these tokens (claim aud)")
	cmd.Flags().StringSliceVar(&f.applications, "azure-token-application", nil,
		"ids of the applications of Azure Resource Manager (claims appid and azp)")
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
	}
	return nil
}

// open returns what verifies the tokens; it is nil without --azure-token-issuer.
func (f *azureTokenFlags) open(used access.Signatures, log *slog.Logger) (*arm.Tokens, error) {
	if f.issuer == "" {
		return nil, nil
	}
	return arm.NewTokens(arm.TokenOptions{Issuer: f.issuer, Tenant: f.tenant, Audiences: f.audiences,
		Applications: f.applications, Binding: arm.Binding(f.binding), Used: used, Log: log})
}
