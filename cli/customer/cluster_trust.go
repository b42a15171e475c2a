package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"atoll.dev/api/platform"
	"atoll.dev/cli/terminal"
	"atoll.dev/client"
	"atoll.dev/client/remote"
)

// issuerFlags are the flags that describe an issuer of tokens.
type issuerFlags struct {
	url, authority                string
	clients                       []string
	usernameClaim, usernamePrefix string
	groupsClaim, groupsPrefix     string
	required                      map[string]string
}

// addIssuerFlags adds the flags to a command.
func addIssuerFlags(cmd *cobra.Command, f *issuerFlags) {
	fs := cmd.Flags()
	fs.StringVar(&f.url, "oidc-issuer", "", "https URL of an OpenID Connect issuer whose tokens the cluster accepts")
	fs.StringSliceVar(&f.clients, "oidc-client-id", nil, "client id for which the issuer makes the tokens; repeatable")
	fs.StringVar(&f.authority, "oidc-ca", "",
		"file with the certificates that verify the issuer (default: public authorities)")
	fs.StringVar(&f.usernameClaim, "oidc-username-claim", "", "claim with the name of the user (default sub)")
	fs.StringVar(&f.usernamePrefix, "oidc-username-prefix", "",
		`stands before the name of the user (default: the issuer's URL and "#"); "-": none, for the claim email`)
	fs.StringVar(&f.groupsClaim, "oidc-groups-claim", "", "claim with the groups of the user (default: no groups)")
	fs.StringVar(&f.groupsPrefix, "oidc-groups-prefix", "", "stands before each group (default: as before users)")
	fs.StringToStringVar(&f.required, "oidc-required-claim", nil, "claim=value that tokens must have; repeatable")
}

// issuer returns the issuer of the flags, as in a spec; nil when no flag is given.
func (f issuerFlags) issuer(session *terminal.Session) (*platform.TokenIssuer, error) {
	if f.url == "" {
		if f.authority != "" || len(f.clients)+len(f.required) > 0 || f.usernameClaim+f.usernamePrefix != "" ||
			f.groupsClaim+f.groupsPrefix != "" {
			return nil, errors.New("the flags --oidc-... need --oidc-issuer")
		}
		return nil, nil
	}
	if len(f.clients) == 0 {
		return nil, errors.New("--oidc-issuer needs --oidc-client-id: the client whose tokens the cluster accepts")
	}
	issuer := platform.TokenIssuer{URL: f.url, Audiences: f.clients}
	if f.authority != "" {
		data, err := readFile(session, f.authority)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca: %w", err)
		}
		issuer.CertificateAuthority = string(data)
	}
	username := platform.UsernameMapping{Claim: f.usernameClaim, Prefix: f.usernamePrefix}
	if f.usernamePrefix == "-" {
		username.Prefix, username.PrefixPolicy = "", "NoPrefix"
	}
	issuer.ClaimMappings = &platform.ClaimMappings{Username: &username}
	if f.groupsClaim != "" {
		prefix := f.groupsPrefix
		if prefix == "" {
			prefix = username.Prefix
		}
		if prefix == "" {
			prefix = f.url + "#"
		}
		issuer.ClaimMappings.Groups = &platform.GroupsMapping{Claim: f.groupsClaim, Prefix: prefix}
	} else if f.groupsPrefix != "" {
		return nil, errors.New("--oidc-groups-prefix needs --oidc-groups-claim")
	}
	for claim, value := range f.required {
		issuer.ClaimValidationRules = append(issuer.ClaimValidationRules,
			platform.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	slices.SortFunc(issuer.ClaimValidationRules, func(a, b platform.ClaimValidationRule) int {
		return strings.Compare(a.Claim, b.Claim)
	})
	return &issuer, nil
}

func clusterTrust(session *terminal.Session) *cobra.Command {
	var f issuerFlags
	cmd := &cobra.Command{
		Use:   "trust NAME --oidc-issuer URL --oidc-client-id ID",
		Short: "Make a cluster accept the tokens of an OpenID Connect issuer",
		Long: `Makes the cluster accept the tokens of an issuer, in place of what it had for the same URL.
The region reads the issuer's keys; "atoll cluster get NAME -o json" shows in status.message when it
cannot. A token's user has no rights until a binding in the cluster names the user or one of its groups:

  kubectl create clusterrolebinding web --clusterrole edit --group 'https://sso.example.com#web'`,
		Example: `  atoll cluster trust demo --oidc-issuer https://sso.example.com --oidc-client-id kubectl \
    --oidc-groups-claim groups
  kubectl --kubeconfig demo.kubeconfig --token "$(cat token)" get pods`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completion(session, completeClusters),
	}
	addIssuerFlags(cmd, &f)
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		issuer, err := f.issuer(session)
		if err != nil {
			return err
		}
		if issuer == nil {
			return errors.New("name the issuer: --oidc-issuer URL")
		}
		return changeIssuers(session, cmd.Context(), args[0], out, func(all []platform.TokenIssuer) []platform.TokenIssuer {
			at := slices.IndexFunc(all, func(i platform.TokenIssuer) bool { return i.URL == issuer.URL })
			if at < 0 {
				return append(all, *issuer)
			}
			all[at] = *issuer
			return all
		})
	}
	return cmd
}

func clusterDistrust(session *terminal.Session) *cobra.Command {
	var url string
	cmd := &cobra.Command{
		Use: "distrust NAME --oidc-issuer URL", Short: "Stop accepting the tokens of an OpenID Connect issuer",
		Example: "  atoll cluster distrust demo --oidc-issuer https://sso.example.com",
		Args:    cobra.ExactArgs(1), ValidArgsFunction: completion(session, completeClusters),
	}
	cmd.Flags().StringVar(&url, "oidc-issuer", "", "URL of the issuer")
	out := terminal.AddOutputFlag(cmd, "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if url == "" {
			return errors.New("name the issuer: --oidc-issuer URL")
		}
		isKnown := false
		err := changeIssuers(session, cmd.Context(), args[0], out, func(all []platform.TokenIssuer) []platform.TokenIssuer {
			return slices.DeleteFunc(all, func(i platform.TokenIssuer) bool {
				isKnown = isKnown || i.URL == url
				return i.URL == url
			})
		})
		if err == nil && !isKnown {
			return fmt.Errorf("cluster %s does not trust %s; see its issuers: atoll cluster get %s -o json", args[0], url,
				args[0])
		}
		return err
	}
	return cmd
}

// changeIssuers replaces the issuers of a cluster by what change makes of them. It begins again when the cluster has
// changed meanwhile.
func changeIssuers(session *terminal.Session, ctx context.Context, name string, out *terminal.Output,
	change func([]platform.TokenIssuer) []platform.TokenIssuer) error {
	return callRegion(session, ctx, func(ctx context.Context, api *client.Client) error {
		var (
			cluster client.Cluster
			issuers []platform.TokenIssuer
			before  int64
		)
		for attempt := 1; ; attempt++ {
			var err error
			if cluster, err = findCluster(ctx, api, name); err != nil {
				return err
			}
			issuers = nil
			if a := cluster.Spec.Authentication; a != nil {
				issuers = slices.Clone(a.Issuers)
			}
			issuers = change(issuers)
			before = cluster.Generation
			cluster, err = api.UpdateCluster(ctx, client.ClusterID(cluster.ID), issuersPatch(issuers), cluster.ETag)
			// Reports on the cluster change its ETag, too.
			if e, ok := errors.AsType[*remote.Error](err); ok && e.Status == http.StatusPreconditionFailed && attempt < 5 {
				continue
			}
			if err != nil {
				return err
			}
			break
		}
		if cluster.Generation == before {
			fmt.Fprintf(out.Progress(session), "cluster %s has that already: generation %d\n", cluster.Name, before)
		} else {
			fmt.Fprintf(out.Progress(session), "cluster %s trusts %d issuers: generation %d\n", cluster.Name, len(issuers),
				cluster.Generation)
		}
		return out.PrintNamed(session.Out, cluster.Cluster, cluster.Name)
	})
}

// issuersPatch returns the change of a cluster to issuers; none removes the member.
func issuersPatch(issuers []platform.TokenIssuer) []byte {
	var authentication any
	if len(issuers) > 0 {
		authentication = platform.AuthenticationSpec{Issuers: issuers}
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"authentication": authentication}})
	if err != nil {
		panic(err) // texts only
	}
	return patch
}
