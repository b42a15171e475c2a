package main

import (
	"errors"
	"net/http"
	"os"
	"slices"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/redhatopenshift/armredhatopenshift"

	"atoll.dev/examples/azure-sdk/hcp"
)

// clientFile returns client.json of the region that the tests use. test/e2e starts one and runs these tests.
func clientFile(t *testing.T) string {
	t.Helper()
	file := os.Getenv("ATOLL_AZURE_CLIENT")
	if file == "" {
		t.Fatal("start a region with `atoll up --azure --detach`, and set ATOLL_AZURE_CLIENT to its azure/client.json")
	}
	return file
}

func openAccount(t *testing.T) account {
	t.Helper()
	a, err := readAccount(clientFile(t))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// TestTheProgram runs the program: create, poll, list, patch, a kubeconfig that the cluster's API
// server takes, delete.
func TestTheProgram(t *testing.T) {
	if err := run(t.Context(), clientFile(t)); err != nil {
		t.Fatal(err)
	}
}

// TestPagesAndCancellation lists two clusters page by page, and deletes a third one while it is
// created, which cancels the creation.
func TestPagesAndCancellation(t *testing.T) {
	ctx, a := t.Context(), openAccount(t)
	c, err := newClient(a)
	if err != nil {
		t.Fatal(err)
	}
	group := "/subscriptions/" + a.Subscription + "/resourceGroups/pages"
	list := c.endpoint + group + "/providers/Microsoft.RedHatOpenShift/hcpOpenShiftClusters"
	create := func(name string) *http.Response {
		t.Helper()
		creation, err := c.send(ctx, http.MethodPut, list+"/"+name, newCluster(a.Location, group), http.StatusCreated)
		if err != nil {
			t.Fatal(err)
		}
		return creation
	}
	remove := func(name string) *http.Response {
		t.Helper()
		deletion, err := c.send(ctx, http.MethodDelete, list+"/"+name, nil, http.StatusAccepted)
		if err != nil {
			t.Fatal(err)
		}
		return deletion
	}
	names := []string{"first", "second"}
	for _, name := range names {
		create(name)
	}
	var listed []string
	pages := 0
	for pager := c.pager(list + "?$top=1"); pager.More(); pages++ {
		p, err := pager.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Value {
			listed = append(listed, valueOf(r.Name))
		}
	}
	slices.Sort(listed)
	if pages < 2 || !slices.Equal(listed, names) {
		t.Errorf("%d pages list %v", pages, listed)
	}
	creation := create("canceled")
	deletions := []*http.Response{remove("canceled"), remove("first"), remove("second")}
	var canceled *azcore.ResponseError
	if _, err := await[hcp.Cluster](ctx, c, creation, ""); !errors.As(err, &canceled) || canceled.ErrorCode != "Canceled" {
		t.Errorf("the creation ended with %v", err)
	}
	for _, deletion := range deletions {
		if _, err := await[struct{}](ctx, c, deletion, runtime.FinalStateViaLocation); err != nil {
			t.Errorf("a deletion: %v", err)
		}
	}
}

// TestClassicClient uses the generated client of ARO classic. The region has no installer, so it
// answers a creation with 501, and the other requests as a region without clusters.
func TestClassicClient(t *testing.T) {
	ctx, a := t.Context(), openAccount(t)
	credential, options, err := a.connect()
	if err != nil {
		t.Fatal(err)
	}
	factory, err := armredhatopenshift.NewClientFactory(a.Subscription, credential, options)
	if err != nil {
		t.Fatal(err)
	}
	clusters := factory.NewOpenShiftClustersClient()
	subnet := func(name string) *string {
		return to.Ptr("/subscriptions/" + a.Subscription + "/resourceGroups/net/providers/Microsoft.Network/" +
			"virtualNetworks/v/subnets/" + name)
	}
	wanted := armredhatopenshift.OpenShiftCluster{Location: to.Ptr(a.Location),
		Properties: &armredhatopenshift.OpenShiftClusterProperties{
			ClusterProfile: &armredhatopenshift.ClusterProfile{Domain: to.Ptr("shop"),
				ResourceGroupID: to.Ptr("/subscriptions/" + a.Subscription + "/resourceGroups/managed")},
			ServicePrincipalProfile: &armredhatopenshift.ServicePrincipalProfile{ClientID: to.Ptr(a.ID),
				ClientSecret: to.Ptr("secret")},
			NetworkProfile: &armredhatopenshift.NetworkProfile{PodCidr: to.Ptr("10.128.0.0/14"),
				ServiceCidr: to.Ptr("172.30.0.0/16")},
			MasterProfile: &armredhatopenshift.MasterProfile{VMSize: to.Ptr("Standard_D8s_v3"), SubnetID: subnet("master")},
			WorkerProfiles: []*armredhatopenshift.WorkerProfile{{Name: to.Ptr("worker"), Count: to.Ptr[int32](3),
				VMSize: to.Ptr("Standard_D4s_v3"), DiskSizeGB: to.Ptr[int32](128), SubnetID: subnet("worker")}},
			ApiserverProfile: &armredhatopenshift.APIServerProfile{
				Visibility: to.Ptr(armredhatopenshift.VisibilityPublic)},
			IngressProfiles: []*armredhatopenshift.IngressProfile{{Name: to.Ptr("default"),
				Visibility: to.Ptr(armredhatopenshift.VisibilityPublic)}},
		}}
	_, err = clusters.BeginCreateOrUpdate(ctx, "classic", "shop", wanted, nil)
	wantRefusal(t, "a creation", err, http.StatusNotImplemented, "NotImplemented")
	wanted.Properties.NetworkProfile.PodCidr = to.Ptr("10.128.0.0/30")
	_, err = clusters.BeginCreateOrUpdate(ctx, "classic", "shop", wanted, nil)
	wantRefusal(t, "a creation with a small network", err, http.StatusBadRequest, "InvalidRequestContent")
	_, err = clusters.Get(ctx, "classic", "shop", nil)
	wantRefusal(t, "a read", err, http.StatusNotFound, "ResourceNotFound")
	_, err = clusters.BeginUpdate(ctx, "classic", "shop", armredhatopenshift.OpenShiftClusterUpdate{}, nil)
	wantRefusal(t, "an update", err, http.StatusNotFound, "ResourceNotFound")
	_, err = clusters.ListCredentials(ctx, "classic", "shop", nil)
	wantRefusal(t, "ListCredentials", err, http.StatusNotFound, "ResourceNotFound")
	_, err = clusters.ListAdminCredentials(ctx, "classic", "shop", nil)
	wantRefusal(t, "ListAdminCredentials", err, http.StatusNotFound, "ResourceNotFound")
	deletion, err := clusters.BeginDelete(ctx, "classic", "shop", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := deletion.PollUntilDone(ctx, nil); err != nil {
		t.Errorf("a deletion: %v", err)
	}
	for pager := clusters.NewListPager(nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil || len(page.Value) != 0 {
			t.Fatalf("the list has %d clusters: %v", len(page.Value), err)
		}
	}
	var versions, operations int
	for pager := factory.NewOpenShiftVersionsClient().NewListPager(a.Location, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		versions += len(page.Value)
	}
	for pager := factory.NewOperationsClient().NewListPager(nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			t.Fatal(err)
		}
		operations += len(page.Value)
	}
	if versions == 0 || operations == 0 {
		t.Errorf("the region lists %d versions and %d operations", versions, operations)
	}
}

func wantRefusal(t *testing.T, what string, err error, status int, code string) {
	t.Helper()
	var refused *azcore.ResponseError
	if !errors.As(err, &refused) || refused.StatusCode != status || refused.ErrorCode != code {
		t.Errorf("%s: %v; the test wants %d %s", what, err, status, code)
	}
}
