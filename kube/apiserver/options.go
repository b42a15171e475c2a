package apiserver

import (
	"net"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	auditoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"atoll.dev/kube/etcd"
)

// Issuer is the issuer of service account tokens. Every plane has the same; what tells them apart is the key.
const Issuer = "https://kubernetes.default.svc.cluster.local"

func runOptions(o Options) *options.ServerRunOptions {
	s := options.NewServerRunOptions()

	s.SecureServing.Listener = o.Listener
	address := o.Listener.Addr().(*net.TCPAddr)
	s.SecureServing.BindAddress, s.SecureServing.BindPort = address.IP, address.Port
	s.SecureServing.ServerCert.CertKey.CertFile = o.Files.Serving
	s.SecureServing.ServerCert.CertKey.KeyFile = o.Files.Serving
	s.SecureServing.MinTLSVersion = "VersionTLS12"
	s.GenericServerRunOptions.ExternalHost = o.External
	// Without it upstream looks for the machine's default route, which a network namespace of its own has not. Nothing
	// advertises it, see EndpointReconcilerType.
	s.GenericServerRunOptions.AdvertiseAddress = address.IP
	s.ServiceClusterIPRanges = o.ServiceCIDR
	s.AllowPrivileged = true

	// One server, which nothing inside the cluster reaches: the Service kubernetes/default gets no endpoints, and no
	// lease has to be renewed every few seconds to say that the server is alive.
	s.EndpointReconcilerType = string(reconcilers.NoneEndpointReconcilerType)

	s.Etcd.StorageConfig.Transport.ServerList = []string{etcd.Endpoint} // upstream wants one; see useEtcd
	s.Etcd.EncryptionProviderConfigFilepath = o.Files.Encryption
	s.Etcd.StorageConfig.DBMetricPollInterval = 0
	// CountMetricPollPeriod stays a minute: by these counts priority and fairness knows what a list reads. A count of more
	// than three minutes ago is stale, and every list then takes the most seats. Without counts each list takes one seat,
	// and hundreds of large lists run at once.

	s.Authentication.ClientCert.ClientCA = o.Files.CABundle
	s.Authentication.Anonymous.Allow = false // openHealth lets anonymous requests in where they may go
	s.Authentication.RequestHeader.ClientCAFile = o.Files.FrontProxyCA
	s.Authentication.RequestHeader.AllowedNames = []string{"front-proxy-client"}
	s.Authentication.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
	s.Authentication.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	s.Authentication.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	s.Authentication.ServiceAccounts.Issuers = []string{Issuer}
	s.Authentication.ServiceAccounts.KeyFiles = []string{o.Files.ServiceAccountKey}
	s.ServiceAccountSigningKeyFile = o.Files.ServiceAccountKey
	s.ProxyClientCertFile, s.ProxyClientKeyFile = o.Files.FrontProxyClient, o.Files.FrontProxyClient
	s.KubeletConfig.TLSClientConfig.CertFile = o.Files.KubeletClient
	s.KubeletConfig.TLSClientConfig.KeyFile = o.Files.KubeletClient
	// Package kubelets approves what the authority signs for kubelets.
	s.KubeletConfig.TLSClientConfig.CAFile = o.Files.CABundle
	// A node's name means nothing to this process. Its address is the one in the kubelet's serving certificate.
	s.KubeletConfig.PreferredAddressTypes = []string{string(corev1.NodeInternalIP)}
	s.Authentication.BootstrapToken.Enable = true

	s.Authorization.Modes = []string{"Node", "RBAC"}
	s.Admission.GenericAdmission.EnablePlugins = []string{"NodeRestriction"}

	s.Audit.PolicyFile = filepath.Join(o.AuditDir, auditPolicyFile)
	s.Audit.LogOptions.Path = filepath.Join(o.AuditDir, auditLogFile)
	s.Audit.LogOptions.MaxSize, s.Audit.LogOptions.MaxBackups = auditFileMiB, auditOldFiles
	s.Audit.LogOptions.MaxAge = auditDays
	// A write waits for no disk; a crash loses what the last second brought.
	s.Audit.LogOptions.BatchOptions.Mode = auditoptions.ModeBatch
	s.Audit.LogOptions.BatchOptions.BatchConfig.BufferSize = 2000

	// Priority and fairness divides the sum among its levels; which of the two is larger has no effect.
	writes := o.MaxRequests / 3
	s.GenericServerRunOptions.MaxMutatingRequestsInFlight = writes
	s.GenericServerRunOptions.MaxRequestsInFlight = o.MaxRequests - writes

	s.Features.EnableProfiling = false
	s.EventTTL = time.Hour
	return s
}
