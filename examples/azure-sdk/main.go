// Command azure-sdk creates a hosted cluster through Azure's SDK for Go and asks it for its version.
//
// It uses the parts of the SDK that every generated client is made of: a credential of azidentity, and
// the pipeline and the pollers of azcore. The types of hosted clusters are generated (package hcp). It
// reads from the file of `atoll up --azure` how to reach the region; with Azure itself only that file
// would differ.
//
//	go run . $ATOLL_HOME/azure/client.json
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"atoll.dev/examples/azure-sdk/hcp"
)

const apiVersion = "2026-09-01-preview"

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: azure-sdk FILE   (client.json of a region that `atoll up --azure` started)")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "azure-sdk:", err)
		os.Exit(1)
	}
}

// account is the file of `atoll up --azure`.
type account struct {
	Tenant       string `json:"tenantId"`
	Subscription string `json:"subscriptionId"`
	Location     string `json:"location"`
	ID           string `json:"clientId"`
	Secret       string `json:"clientSecret"`
	Authority    string `json:"authorityHost"`
	Endpoint     string `json:"resourceManager"`
	CA           string `json:"caFile"`
}

func readAccount(file string) (a account, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(data, &a)
}

// client sends requests through the SDK.
type client struct {
	endpoint string
	pipeline runtime.Pipeline
}

// connect returns what the clients of the SDK need: a credential, and where ARM and Entra are.
func (a account) connect() (azcore.TokenCredential, *arm.ClientOptions, error) {
	ca, err := os.ReadFile(a.CA)
	if err != nil {
		return nil, nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	options := azcore.ClientOptions{
		Transport: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
		Cloud: cloud.Configuration{ActiveDirectoryAuthorityHost: a.Authority,
			Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
				cloud.ResourceManager: {Endpoint: a.Endpoint, Audience: a.Endpoint}}},
	}
	credential, err := azidentity.NewClientSecretCredential(a.Tenant, a.ID, a.Secret,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: options, DisableInstanceDiscovery: true})
	return credential, &arm.ClientOptions{ClientOptions: options, DisableRPRegistration: true}, err
}

func newClient(a account) (*client, error) {
	credential, options, err := a.connect()
	if err != nil {
		return nil, err
	}
	sdk, err := arm.NewClient("example", "v0.1.0", credential, options)
	if err != nil {
		return nil, err
	}
	return &client{endpoint: a.Endpoint, pipeline: sdk.Pipeline()}, nil
}

// send sends a request and returns the answer when it has one of the statuses.
func (c *client) send(ctx context.Context, method, url string, body any, statuses ...int) (*http.Response, error) {
	request, err := runtime.NewRequest(ctx, method, url)
	if err != nil {
		return nil, err
	}
	query := request.Raw().URL.Query()
	if query.Get("api-version") == "" {
		query.Set("api-version", apiVersion)
		request.Raw().URL.RawQuery = query.Encode()
	}
	if body != nil {
		if err := runtime.MarshalAsJSON(request, body); err != nil {
			return nil, err
		}
	}
	answer, err := c.pipeline.Do(request)
	if err != nil {
		return nil, err
	}
	if !runtime.HasStatusCode(answer, statuses...) {
		return nil, runtime.NewResponseError(answer)
	}
	return answer, nil
}

// await polls an operation to its end, with the generic poller of the SDK.
func await[T any](ctx context.Context, c *client, answer *http.Response, final runtime.FinalStateVia) (T, error) {
	poller, err := runtime.NewPoller(answer, c.pipeline, &runtime.NewPollerOptions[T]{FinalStateVia: final})
	if err != nil {
		var none T
		return none, err
	}
	return poller.PollUntilDone(ctx, &runtime.PollUntilDoneOptions{Frequency: time.Second})
}

// newCluster returns the body of the PUT of a cluster in a resource group.
func newCluster(location, group string) hcp.Cluster {
	network := group + "/providers/Microsoft.Network"
	return hcp.Cluster{Location: location, Properties: &hcp.ClusterProperties{Platform: hcp.ClusterPlatform{
		SubnetID:               network + "/virtualNetworks/v/subnets/s",
		NetworkSecurityGroupID: network + "/networkSecurityGroups/g"}}}
}

// valueOf returns what a field of an answer has, the zero value where the answer has no such field.
func valueOf[T any](field *T) (value T) {
	if field != nil {
		value = *field
	}
	return value
}

func run(ctx context.Context, file string) error {
	a, err := readAccount(file)
	if err != nil {
		return err
	}
	c, err := newClient(a)
	if err != nil {
		return err
	}
	group := "/subscriptions/" + a.Subscription + "/resourceGroups/example"
	list := c.endpoint + group + "/providers/Microsoft.RedHatOpenShift/hcpOpenShiftClusters"
	cluster := list + "/demo"
	if err := c.createCluster(ctx, cluster, newCluster(a.Location, group)); err != nil {
		return err
	}
	if err := c.createNodePool(ctx, cluster+"/nodePools/workers", a.Location); err != nil {
		return err
	}
	if err := c.patchTags(ctx, cluster); err != nil {
		return err
	}
	for pager := c.pager(list + "?$top=1"); pager.More(); {
		p, err := pager.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, r := range p.Value {
			step("listed    %s", valueOf(r.ID))
		}
	}

	version, config, err := c.askVersion(ctx, cluster)
	if err != nil {
		return err
	}
	step("asked     its API is Kubernetes %s", version)

	user, err := c.checkEntraTrust(ctx, a, cluster, config)
	if err != nil {
		return err
	}
	step("trusted   its API takes tokens of Entra: the user is %s", user)
	return c.deleteCluster(ctx, cluster)
}

// step prints the line of a step.
func step(format string, args ...any) { fmt.Printf(format+"\n", args...) }

func (c *client) createCluster(ctx context.Context, cluster string, wanted hcp.Cluster) error {
	start := time.Now()
	answer, err := c.send(ctx, http.MethodPut, cluster, wanted, http.StatusCreated, http.StatusOK)
	if err != nil {
		return err
	}
	made, err := await[hcp.Cluster](ctx, c, answer, "")
	if err != nil {
		return err
	}
	properties := valueOf(made.Properties)
	step("created   %s in %.1f s: %s, API at %s", valueOf(made.Name), time.Since(start).Seconds(),
		valueOf(properties.ProvisioningState), valueOf(valueOf(properties.API).URL))
	return nil
}

func (c *client) createNodePool(ctx context.Context, url, location string) error {
	answer, err := c.send(ctx, http.MethodPut, url, hcp.NodePool{Location: location,
		Properties: &hcp.NodePoolProperties{Platform: hcp.NodePoolPlatform{VMSize: "Standard_D4s_v3"}, Replicas: to.Ptr(2)}},
		http.StatusCreated, http.StatusOK)
	if err != nil {
		return err
	}
	pool, err := await[hcp.NodePool](ctx, c, answer, "")
	if err != nil {
		return err
	}
	step("created   node pool %s: %s", valueOf(pool.Name), valueOf(valueOf(pool.Properties).ProvisioningState))
	return nil
}

func (c *client) patchTags(ctx context.Context, cluster string) error {
	answer, err := c.send(ctx, http.MethodPatch, cluster, map[string]any{"tags": map[string]string{"team": "shop"}},
		http.StatusAccepted, http.StatusOK)
	if err != nil {
		return err
	}
	made, err := await[hcp.Cluster](ctx, c, answer, runtime.FinalStateViaLocation)
	if err != nil {
		return err
	}
	step("patched   tags are %v", valueOf(made.Tags))
	return nil
}

// deleteCluster deletes a cluster, and checks that it does not exist any more.
func (c *client) deleteCluster(ctx context.Context, cluster string) error {
	answer, err := c.send(ctx, http.MethodDelete, cluster, nil, http.StatusAccepted, http.StatusNoContent)
	if err != nil {
		return err
	}
	if _, err := await[struct{}](ctx, c, answer, runtime.FinalStateViaLocation); err != nil {
		return err
	}
	_, err = c.send(ctx, http.MethodGet, cluster, nil, http.StatusOK)
	var refused *azcore.ResponseError
	if !errors.As(err, &refused) || refused.ErrorCode != "ResourceNotFound" {
		return fmt.Errorf("the deleted cluster is still there: %v", err)
	}
	step("deleted   %s: %s", path.Base(cluster), refused.ErrorCode)
	return nil
}

// pager follows the links of a list from a URL on.
func (c *client) pager(first string) *runtime.Pager[hcp.ClusterList] {
	return runtime.NewPager(runtime.PagingHandler[hcp.ClusterList]{
		More: func(p hcp.ClusterList) bool { return valueOf(p.NextLink) != "" },
		Fetcher: func(ctx context.Context, last *hcp.ClusterList) (next hcp.ClusterList, err error) {
			url := first
			if last != nil {
				url = valueOf(last.NextLink)
			}
			answer, err := c.send(ctx, http.MethodGet, url, nil, http.StatusOK)
			if err != nil {
				return next, err
			}
			return next, runtime.UnmarshalAsJSON(answer, &next)
		},
	})
}

// askVersion requests a credential for a key that stays here, and asks the cluster's API for its version.
func (c *client) askVersion(ctx context.Context, cluster string) (version string, config kubeconfig, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", config, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:customer-break-glass:system-admin", Organization: []string{"system:masters"}}}, key)
	if err != nil {
		return "", config, err
	}
	answer, err := c.send(ctx, http.MethodPost, cluster+"/requestAdminCredential", hcp.AdminCredentialRequest{
		CertificateSigningRequest: to.Ptr(string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})))},
		http.StatusAccepted)
	if err != nil {
		return "", config, err
	}
	got, err := await[hcp.AdminCredential](ctx, c, answer, runtime.FinalStateViaLocation)
	if err != nil {
		return "", config, err
	}
	config, err = readKubeconfig(valueOf(got.Kubeconfig))
	if err != nil {
		return "", config, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.ca)
	block, _ := pem.Decode(config.certificate)
	if block == nil {
		return "", config, errors.New("the kubeconfig has no certificate")
	}
	api := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: config.serverName,
		Certificates: []tls.Certificate{{Certificate: [][]byte{block.Bytes}, PrivateKey: key}}}}}
	answered, err := api.Get(config.server + "/version")
	if err != nil {
		return "", config, err
	}
	defer answered.Body.Close()
	var v struct{ GitVersion string }
	if err := json.NewDecoder(answered.Body).Decode(&v); err != nil {
		return "", config, err
	}
	nodes, err := api.Get(config.server + "/api/v1/nodes")
	if err != nil {
		return "", config, err
	}
	defer nodes.Body.Close()
	if nodes.StatusCode != http.StatusOK {
		return "", config, fmt.Errorf("the cluster answers %s to a request for its nodes", nodes.Status)
	}
	return v.GitVersion, config, nil
}
