// Package controllers runs the upstream kube-controller-manager inside this process, without its server and its
// leader election.
package controllers

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"atoll.dev/kube/credentials"
)

// idle are the controllers that have nothing to do in a plane, where nobody attaches disks, hosting
// assigns networks to nodes and kubelets get the plane's authority from hosting, or that cost more than they give.
var idle = []string{
	names.TTLController,
	names.NodeIpamController,
	names.PersistentVolumeAttachDetachController,
	names.PersistentVolumeExpanderController,
	names.BootstrapSignerController,
	names.LegacyServiceAccountTokenCleanerController,
	names.StorageVersionGarbageCollectorController,
	// Reports type errors of admission policies, which work without it, and keeps every schema in memory for that.
	names.ValidatingAdmissionPolicyStatusController,
}

// Run runs the controllers until ctx is done. client configures their client of the API server.
func Run(ctx context.Context, files credentials.Files, client *rest.Config) error {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return fmt.Errorf("the controller manager's options: %w", err)
	}
	o.Master = client.Host
	o.Generic.ClientConnection.QPS, o.Generic.ClientConnection.Burst = 200, 400
	o.Generic.LeaderElection.LeaderElect = false
	o.Generic.Controllers = []string{"*"}
	for _, name := range idle {
		o.Generic.Controllers = append(o.Generic.Controllers, "-"+name)
	}
	o.Generic.Debugging.EnableProfiling = false
	o.SecureServing.BindPort = 0 // no server
	o.KubeCloudShared.UseServiceAccountCredentials = false
	o.KubeCloudShared.AllocateNodeCIDRs = false
	o.SAController.ServiceAccountKeyFile = files.ServiceAccountKey
	o.SAController.RootCAFile = files.CABundle
	o.CSRSigningController.ClusterSigningCertFile = files.CA
	o.CSRSigningController.ClusterSigningKeyFile = files.CAKey

	config, err := o.Config(ctx, app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	if err != nil {
		return fmt.Errorf("configuring the controller manager: %w", err)
	}
	// Upstream has made a client without credentials for the same host. Nothing has used it yet.
	client = rest.CopyConfig(client)
	client.ContentConfig = config.Kubeconfig.ContentConfig
	client.QPS, client.Burst = config.Kubeconfig.QPS, config.Kubeconfig.Burst
	config.Kubeconfig = client
	config.Client, err = kubernetes.NewForConfig(rest.AddUserAgent(client, options.KubeControllerManagerUserAgent))
	if err != nil {
		return fmt.Errorf("the controller manager's client: %w", err)
	}
	return app.Run(ctx, config.Complete())
}
