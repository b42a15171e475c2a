package customer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"atoll.dev/cli/terminal"
	"atoll.dev/client/remote"
)

// loginFlags are the flags of `atoll login`.
type loginFlags struct {
	issuer, issuerCA, clientID string
	region, ca                 string
	device                     bool
}

// Login returns the command `atoll login`.
func Login(session *terminal.Session) *cobra.Command {
	var f loginFlags
	cmd := &cobra.Command{
		Use: "login", Args: cobra.NoArgs, Short: "Sign in to a region with an OpenID Connect issuer",
		Long: `Signs in with a browser on this machine, or, with --device, with one on any other. The tokens are in
the file atoll/login.json of your configuration directory, which only you may read; commands use them until
"atoll logout". The region takes them when your identity is linked to an account: see "atoll link".`,
		Example: `  atoll login --issuer https://sso.example.com --client-id atoll-eu-1 --region https://eu-1.example.com
  atoll login --issuer https://sso.example.com --client-id atoll-eu-1 --device`,
	}
	cmd.Flags().StringVar(&f.issuer, "issuer", "", "URL of the issuer (default that of the last login to the region)")
	cmd.Flags().StringVar(&f.clientID, "client-id", "",
		"client of the region at the issuer (default that of the last login to the region)")
	cmd.Flags().StringVar(&f.region, "region", "",
		"URL of the region's API (default ATOLL_ENDPOINT, or that of the last login)")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "url" { // the name of --region in earlier releases
			name = "region"
		}
		return pflag.NormalizedName(name)
	})
	cmd.Flags().StringVar(&f.ca, "ca", "", "PEM file of the region's CA (default ATOLL_CA, or the system's CAs)")
	cmd.Flags().StringVar(&f.issuerCA, "issuer-ca", "", "PEM file of the CA of the issuer (default the system's CAs)")
	cmd.Flags().BoolVar(&f.device, "device", false, "show a code to enter in a browser anywhere, for machines without one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		login, err := f.newLogin()
		if err != nil {
			return err
		}
		ctx, provider, err := login.Discover(cmd.Context())
		if err != nil {
			return err
		}
		signIn := signInByBrowser
		if f.device {
			signIn = signInByDevice
		}
		if err := signIn(ctx, session, &login, provider); err != nil {
			return err
		}
		if err := login.Save(); err != nil {
			return err
		}
		session.Printf("signed in as %s of %s, until %s\n", terminal.OneLine(login.Subject), login.Issuer,
			login.Expires.Format(time.RFC3339))
		return showPrincipal(cmd.Context(), session, login)
	}
	return cmd
}

// newLogin returns a login without tokens, by the flags, the variables and the last login.
func (f *loginFlags) newLogin() (terminal.Login, error) {
	last, err := terminal.ReadLogin()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return terminal.Login{}, err
	}
	login := terminal.Login{
		Endpoint: cmp.Or(f.region, os.Getenv("ATOLL_ENDPOINT"), last.Endpoint), Issuer: f.issuer, ClientID: f.clientID,
		CA: cmp.Or(f.ca, os.Getenv("ATOLL_CA")),
	}
	if login.Endpoint == last.Endpoint { // a token of one region's client must not go to another region
		login.Issuer, login.ClientID = cmp.Or(f.issuer, last.Issuer), cmp.Or(f.clientID, last.ClientID)
		login.CA = cmp.Or(login.CA, last.CA)
	}
	if login.Issuer == last.Issuer {
		login.IssuerCA = last.IssuerCA
	}
	switch {
	case login.Issuer == "" || login.ClientID == "":
		return login, errors.New("--issuer and --client-id are needed; ask an operator of the region for them")
	case login.Endpoint == "":
		return login, errors.New("--region is missing: the region's address, such as https://eu-1.example.com")
	}
	if err := login.CheckAddresses(); err != nil {
		return login, err
	}
	if login.CA != "" {
		if login.CA, err = filepath.Abs(login.CA); err != nil {
			return login, err
		}
	}
	if f.issuerCA != "" {
		pem, err := os.ReadFile(f.issuerCA)
		if err != nil {
			return login, fmt.Errorf("--issuer-ca: %w", err)
		}
		login.IssuerCA = string(pem)
	}
	return login, nil
}

// showPrincipal prints the principal that the region returns for the person.
func showPrincipal(ctx context.Context, session *terminal.Session, login terminal.Login) error {
	api, err := login.Client()
	if err != nil {
		return err
	}
	defer api.Close()
	caller, err := api.WhoAmI(ctx)
	if e, ok := errors.AsType[*remote.Error](err); ok && e.Code == "identity-not-linked" {
		session.Printf("the identity is not linked to an account of the region yet: get a code from an administrator of " +
			"your account, and run: atoll link redeem\n")
		return nil
	}
	if err != nil {
		return fmt.Errorf("signed in, but the region does not return your principal: %w", err)
	}
	session.Printf("principal %s\n", caller.PrincipalArn)
	return nil
}

// Logout returns the command `atoll logout`.
func Logout(session *terminal.Session) *cobra.Command {
	return &cobra.Command{
		Use: "logout", Args: cobra.NoArgs, Short: "Forget the tokens of `atoll login`",
		Long: `Removes the tokens from this machine. It does not end the session of the browser at the issuer, and a
copy of a token stays valid until it expires; an administrator ends it at once with "atoll link delete".`,
		Example: "  atoll logout",
		RunE: func(*cobra.Command, []string) error {
			err := terminal.RemoveLogin()
			if errors.Is(err, fs.ErrNotExist) {
				session.Printf("nobody is signed in\n")
				return nil
			}
			if err == nil {
				session.Printf("signed out\n")
			}
			return err
		},
	}
}
