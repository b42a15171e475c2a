package local

import (
	"path/filepath"

	"atoll.dev/local/azure"
	"atoll.dev/pki"
)

const (
	azureGatewayName = "azure-gateway"
	azurePort        = "azure" // of the platform process
)

// AzureClient returns the file with the credentials that programs of Azure's SDKs need, "" when the
// region does not serve Azure.
func (h Home) AzureClient() string {
	st, err := h.State()
	if err != nil || !st.Azure {
		return ""
	}
	return filepath.Join(h.azureDir(), azure.ClientFile)
}

func (h Home) azureDir() string { return h.Path("azure") }

// azureGateway returns the process of the stand-in for Azure. It makes the certificate that the platform
// process reads at its start.
func (t topology) azureGateway() Spec {
	return t.withIdentity(t.completeService(Spec{
		Name: azureGatewayName, Address: t.url(azureGatewayName), Phase: phaseEdges, After: []string{pkiName},
		Args: []string{"azure-gateway", "--listen", t.address(azureGatewayName), "--endpoint", t.url(azureGatewayName),
			"--backend", t.url(azurePort), "--location", t.st.Region, "--dir", t.home.azureDir()},
	}, azureGatewayName, azureGatewayName+"-ops"), pki.ServiceName(azureGatewayName),
		t.home.Path("identities", azureGatewayName))
}

// azureArgs are the arguments of the platform process for Azure.
func (t topology) azureArgs() []string {
	return []string{"--azure-listen", t.address(azurePort), "--azure-metadata", filepath.Join(t.home.azureDir(),
		azure.MetadataFile), "--azure-referer", t.address(azureGatewayName), "--azure-retry-after", "1s"}
}
