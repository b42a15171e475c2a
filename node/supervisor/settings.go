package supervisor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"atoll.dev/node"
)

// proxyMode is how kube-proxy and the port mapping of pods change the kernel's tables.
type proxyMode string

const (
	nftables proxyMode = "nftables"
	iptables proxyMode = "iptables"
)

// Ports within the node.
const (
	apiServerPort = 6443
	mirrorPort    = 5000
)

// Files in a node's root.
const (
	kubeletConfig       = "/etc/kubernetes/kubelet.json"
	proxyConfig         = "/etc/kubernetes/kube-proxy.json"
	bootstrapKubeconfig = "/etc/kubernetes/bootstrap.kubeconfig"
	proxyKubeconfig     = "/etc/kubernetes/kube-proxy.kubeconfig"
	caFile              = "/etc/kubernetes/ca.pem"
	kubeletKubeconfig   = "/var/lib/kubelet/kubeconfig"
	// Kubelet replaces this link when it renews its certificate.
	kubeletCertificate = "/var/lib/kubelet/pki/kubelet-client-current.pem"
	containerdConfig   = "/etc/containerd/config.toml"
	mirrorConfig       = "/etc/containerd/certs.d/_default/hosts.toml"
	networkConfig      = "/etc/cni/net.d/10-atoll.conflist"
)

// evictionThreshold is the available memory, in bytes, below which kubelet evicts pods.
const evictionThreshold = 32 << 20

// machineSize is the size of this machine.
type machineSize struct {
	milliCPU  int64
	memory    int64 // bytes
	processes int64 // processes and threads that the kernel permits
}

// programFiles returns the content of the configuration files of the node's programs, by path in the node's root.
func programFiles(o order, m machineSize) (map[string]string, error) {
	c := o.Config
	files := map[string]string{caFile: c.APIServer.CA, containerdConfig: containerdSettings}
	if c.Images.Mirror != "" {
		mirror, err := url.Parse(c.Images.Mirror)
		if err != nil {
			return nil, err
		}
		files[mirrorConfig] = mirrorSettings(mirror)
	}
	for path, value := range map[string]any{
		kubeletConfig: kubeletSettings(o, m),
		proxyConfig:   proxySettings(c, o.Proxy),
		networkConfig: networkSettings(c.Network, o.Proxy),
		bootstrapKubeconfig: kubeconfig(c, map[string]any{
			"token": c.BootstrapToken,
		}),
		proxyKubeconfig: kubeconfig(c, map[string]any{
			"client-certificate": kubeletCertificate, "client-key": kubeletCertificate,
		}),
	} {
		data, err := json.MarshalIndent(value, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		files[path] = string(data)
	}
	return files, nil
}

// kubeconfig returns a kubeconfig for the listener in the node. /etc/hosts has the server's name, because
// kubelet copies no other server name from its bootstrap kubeconfig.
func kubeconfig(c node.Config, user map[string]any) map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "node",
		"clusters": []any{map[string]any{"name": "cluster", "cluster": map[string]any{
			"server":                fmt.Sprintf("https://%s:%d", c.APIServer.ServerName, apiServerPort),
			"certificate-authority": caFile,
		}}},
		"users": []any{map[string]any{"name": "node", "user": user}},
		"contexts": []any{map[string]any{"name": "node",
			"context": map[string]any{"cluster": "cluster", "user": "node"}}},
	}
}

// nodeArguments returns the arguments of atoll-node, which runs kubelet, kube-proxy and the agent of konnectivity.
func nodeArguments(c node.Config) []string {
	args := []string{"run", "--certificate", kubeletCertificate, "--kube-proxy-config", proxyConfig}
	if c.Konnectivity {
		args = append(args, "--konnectivity-server", fmt.Sprintf("127.0.0.1:%d", apiServerPort),
			"--konnectivity-server-name", c.APIServer.ServerName, "--konnectivity-ca", caFile, "--node", c.Name,
			"--address", c.Network.IP().String())
	}
	args = append(args, "--", "--config", kubeletConfig, "--kubeconfig", kubeletKubeconfig,
		"--bootstrap-kubeconfig", bootstrapKubeconfig, "--hostname-override", c.Name, "--node-ip", c.Network.IP().String())
	if len(c.Labels) > 0 {
		args = append(args, "--node-labels", nodeLabels(c.Labels))
	}
	return args
}

func kubeletSettings(o order, m machineSize) map[string]any {
	c := o.Config
	settings := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"providerID": c.ProviderID,
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false},
			"webhook":   map[string]any{"enabled": true},
			"x509":      map[string]any{"clientCAFile": caFile},
		},
		"authorization":            map[string]any{"mode": "Webhook"},
		"rotateCertificates":       true,
		"serverTLSBootstrap":       true,
		"address":                  c.Network.IP().String(),
		"readOnlyPort":             0,
		"containerRuntimeEndpoint": "unix://" + containerdSocket,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               "/",
		"failCgroupV1":             false, // kubelet refuses version 1 by default
		"clusterDomain":            "cluster.local",
		"resolvConf":               "/etc/resolv.conf",
		"maxPods":                  c.Resources.Pods,
		"podPidsLimit":             processesOfPod,
		"volumePluginDir":          "/var/lib/kubelet/volumeplugins", // the default is below /usr
		"serializeImagePulls":      false,
		"failSwapOn":               false,
		// Nothing can pull an image of `atoll image load` again, so kubelet must not remove it.
		"imageGCHighThresholdPercent": 100,
		"evictionHard": map[string]any{
			"memory.available": fmt.Sprintf("%dMi", evictionThreshold>>20), "nodefs.available": "1%", "imagefs.available": "1%",
			"nodefs.inodesFree": "1%",
		},
		"enforceNodeAllocatable": []string{"pods"},
		"systemReserved": map[string]any{
			"cpu":    fmt.Sprintf("%dm", max(0, m.milliCPU-c.Resources.CPU.MilliValue())),
			"memory": fmt.Sprint(max(0, m.memory-evictionThreshold-c.Resources.Memory.Value())),
			"pid":    fmt.Sprint(max(0, m.processes-processesOfPods)), // kubelet limits the pods together to the rest
		},
	}
	if c.Network.ClusterDNS != "" {
		settings["clusterDNS"] = []string{c.Network.ClusterDNS}
	}
	if o.UserNamespace {
		// Kubelet then goes on without settings of the machine and without the kernel's log.
		settings["featureGates"] = map[string]any{"KubeletInUserNamespace": true}
	}
	if len(c.Taints) > 0 {
		settings["registerWithTaints"] = c.Taints
	}
	return settings
}

// nodeLabels returns the value of kubelet's flag --node-labels.
func nodeLabels(labels map[string]string) string {
	var pairs []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, key+"="+labels[key])
	}
	return strings.Join(pairs, ",")
}

func proxySettings(c node.Config, mode proxyMode) map[string]any {
	return map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"clientConnection":   map[string]any{"kubeconfig": proxyKubeconfig},
		"mode":               mode,
		"clusterCIDR":        c.Network.ClusterCIDR,
		"detectLocalMode":    "ClusterCIDR",
		"hostnameOverride":   c.Name,
		"healthzBindAddress": "127.0.0.1:10256",
		"metricsBindAddress": "127.0.0.1:10249",
		// These are settings of the whole machine.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
}

// networkSettings returns the list of CNI plugins. Each pod has a link of its own to the node, which routes.
func networkSettings(n node.Network, mode proxyMode) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0", "name": "atoll",
		"plugins": []any{
			map[string]any{"type": "ptp", "ipam": map[string]any{
				"type":   "host-local",
				"ranges": []any{[]any{map[string]any{"subnet": netip.MustParsePrefix(n.PodCIDR).String()}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			}},
			map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}, "snat": true,
				"backend": mode},
		},
	}
}

// containerdSettings leaves out the plugins that a node does not use; they cost memory and time at the start.
const containerdSettings = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = -999
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs", "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]

[grpc]
  address = "` + containerdSocket + `"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "` + pauseImage + `"
  [plugins."io.containerd.cri.v1.images".registry]
    config_path = "/etc/containerd/certs.d"

[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true # a machine may forbid lower values

[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["` + programsDir + `/node/cni"]
  conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    runtime_path = "` + programsDir + `/node/containerd-shim-runc-v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
`

// mirrorSettings sends the requests for all registries to the listener in the node. /etc/hosts has the mirror's name.
func mirrorSettings(mirror *url.URL) string {
	at := url.URL{Scheme: mirror.Scheme, Host: net.JoinHostPort(mirror.Hostname(), strconv.Itoa(mirrorPort)),
		Path: mirror.Path}
	if _, err := netip.ParseAddr(mirror.Hostname()); err == nil {
		at.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(mirrorPort))
	}
	return fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", at.String())
}
