package services

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"atoll.dev/internal/acmecert"
	"atoll.dev/internal/certfile"
	"atoll.dev/internal/rest"
)

// gatewayFlags are the flags of a Platform API behind load balancers: the networks of these, and a certificate that
// clients trust without the region's CA.
type gatewayFlags struct {
	proxies          []string
	certificate, key string // files
	acme             acmecert.Options
}

func (f *gatewayFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.proxies, "proxy-from", nil,
		"networks of load balancers, which send a PROXY protocol header (v1 or v2) before each connection")
	cmd.Flags().StringVar(&f.certificate, "public-certificate", "",
		"PEM file of a certificate and its chain, shown to clients that connect by one of its names; the file is read "+
			"again when it changes (default: the certificate of the region's CA only)")
	cmd.Flags().StringVar(&f.key, "public-key-file", "", "PEM file of the key of --public-certificate")
	cmd.Flags().StringVar(&f.acme.Directory, "acme-directory", "",
		"URL of an ACME server, such as https://acme-v02.api.letsencrypt.org/directory, which issues public certificates "+
			"for --acme-name; you agree to its terms. It connects to port 443 of the names")
	cmd.Flags().StringSliceVar(&f.acme.Names, "acme-name", nil, "public names of the API, with a certificate each")
	cmd.Flags().StringVar(&f.acme.Cache, "acme-cache", "",
		"directory of the keys and certificates of ACME, which all replicas share")
	cmd.Flags().StringVar(&f.acme.Email, "acme-email", "", "address to which the ACME server may write")
	cmd.Flags().StringVar(&f.acme.Roots, "acme-ca", "",
		"PEM file of the CA of the ACME server's own certificate (default: the CAs of the system)")
}

// gateway has the values of gatewayFlags. It is not access.Gateway, which proves identities.
type gateway struct {
	proxies []netip.Prefix
	public  *certfile.Pair         // nil: none
	acme    *acmecert.Certificates // nil: none
}

func (f *gatewayFlags) open(log *slog.Logger, metrics prometheus.Registerer) (g gateway, err error) {
	if g.proxies, err = parseProxies(f.proxies); err != nil {
		return g, err
	}
	if f.acme.Directory != "" {
		if len(f.acme.Names) == 0 || f.acme.Cache == "" {
			return g, errors.New("--acme-directory needs --acme-name and --acme-cache")
		}
		f.acme.Log, f.acme.Metrics = log, metrics
		if g.acme, err = acmecert.New(f.acme); err != nil {
			return g, err
		}
	} else if len(f.acme.Names) > 0 {
		return g, errors.New("--acme-name needs --acme-directory")
	}
	switch {
	case f.certificate == "" && f.key == "":
		return g, nil
	case f.certificate == "" || f.key == "":
		return g, errors.New("--public-certificate and --public-key-file need each other")
	}
	g.public, err = certfile.Open(f.certificate, f.key, log)
	return g, err
}

// withProxyHeaders returns l whose connections have the client's address from a load balancer's PROXY header.
func (g gateway) withProxyHeaders(l net.Listener) net.Listener {
	return rest.WithProxyHeaders(l, g.proxies)
}

// withPublicCertificate returns server, which presents public certificates, too, if there are any: of a name that both
// have, that of the files.
func (g gateway) withPublicCertificate(server *tls.Config) *tls.Config {
	if g.acme != nil {
		server = g.acme.Config(server)
	}
	if g.public != nil {
		server = g.public.Config(server)
	}
	return server
}

// run gets the certificates of ACME until ctx ends, if there is an ACME server.
func (g gateway) run(ctx context.Context) error {
	if g.acme != nil {
		return g.acme.Run(ctx)
	}
	return nil
}
