package services

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"

	"github.com/spf13/cobra"

	"atoll.dev/internal/certfile"
	"atoll.dev/internal/rest"
)

// gatewayFlags are the flags of a Platform API behind load balancers: the networks of these, and a certificate that
// clients trust without the region's CA.
type gatewayFlags struct {
	proxies          []string
	certificate, key string // files
}

func (f *gatewayFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.proxies, "proxy-from", nil,
		"networks of load balancers, which send a PROXY protocol header (v1 or v2) before each connection")
	cmd.Flags().StringVar(&f.certificate, "public-certificate", "",
		"PEM file of a certificate and its chain, shown to clients that connect by one of its names; the file is read "+
			"again when it changes (default: the certificate of the region's CA only)")
	cmd.Flags().StringVar(&f.key, "public-key-file", "", "PEM file of the key of --public-certificate")
}

// gateway has the values of gatewayFlags. It is not access.Gateway, which proves identities.
type gateway struct {
	proxies []netip.Prefix
	public  *certfile.Pair // nil: none
}

func (f *gatewayFlags) open(log *slog.Logger) (g gateway, err error) {
	if g.proxies, err = parseProxies(f.proxies); err != nil {
		return g, err
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

// withPublicCertificate returns server, which presents the public certificate, too, if there is one.
func (g gateway) withPublicCertificate(server *tls.Config) *tls.Config {
	if g.public == nil {
		return server
	}
	return g.public.Config(server)
}
