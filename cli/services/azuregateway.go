package services

import (
	"context"

	"github.com/spf13/cobra"

	"atoll.dev/internal/rest"
	"atoll.dev/local/azure"
	"atoll.dev/pki"
)

// azureGatewayService is `atoll azure-gateway`.
type azureGatewayService struct {
	addr     string
	endpoint string
	backend  string
	location string
	dir      string
	identity identityFlags
}

// AzureGateway returns the command of the stand-in for Azure.
func AzureGateway() *cobra.Command {
	f := &azureGatewayService{}
	cmd := serviceCommand("azure-gateway", "A stand-in for Azure on one machine: ARM's gateway and Entra",
		`Gives tokens to one application and forwards its requests to the region's API
for Azure Resource Manager, to which it proves itself with a client certificate.
"atoll up --azure" starts it. It is for one machine and not for production.`, f)
	addIdentityFlags(cmd, &f.identity)
	cmd.Flags().StringVar(&f.addr, "listen", "127.0.0.1:8445", "address for programs of Azure's SDKs")
	cmd.Flags().StringVar(&f.endpoint, "endpoint", "", "URL at which programs reach the address of --listen")
	cmd.Flags().StringVar(&f.backend, "backend", "", "URL of --azure-listen of atoll platform")
	cmd.Flags().StringVar(&f.location, "location", "", "the region's name in Azure, for client.json")
	cmd.Flags().StringVar(&f.dir, "dir", "", "directory of client.json, metadata.json and the keys; made on first use")
	for _, name := range []string{"endpoint", "backend", "dir"} {
		cmd.MarkFlagRequired(name)
	}
	return cmd
}

func (f *azureGatewayService) start(ctx context.Context, s *System) error {
	s.identity = f.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	l, err := listen(f.addr)
	if err != nil {
		return err
	}
	identity, err := s.openIdentity(p, pki.ServiceName("azure-gateway"))
	if err != nil {
		return err
	}
	gateway, err := azure.New(azure.Options{Dir: f.dir, Endpoint: f.endpoint, Location: f.location,
		CA: f.identity.caFile, Backend: f.backend,
		TLS: identity.ClientTLS("platform"), Log: s.Log})
	if err != nil {
		return err
	}
	p.run(gateway.Run)
	s.serve(p, l, "azure", identity.ServerTLS(pki.CertificateOptional), rest.Server{Handler: gateway})
	return p.wait()
}
