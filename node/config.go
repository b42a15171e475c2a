package node

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Config describes one node. It is the content of the file of `atoll node run --config FILE`.
//
// The provider of the node (hosting, or the person that starts the supervisor) writes the file and chooses everything
// in it. Two nodes of a cluster must not have the same name, home, network.address or network.podCIDR.
type Config struct {
	// Name is the name of the Node object: a DNS label of at most 63 characters.
	Name string `json:"name"`
	// ProviderID is copied to spec.providerID of the Node object. Default: "atoll:///" and the name.
	ProviderID string `json:"providerID,omitempty"`
	// Home is the absolute path of a directory that the supervisor creates. It has everything that the node keeps:
	// certificates, images, volumes, logs. The supervisor removes nothing of it. Unix sockets lie below it, so it has
	// at most 64 bytes.
	Home string `json:"home"`
	// Programs is the path of atoll-node. Its directory also has the directory "node", with containerd, its shim, the CNI
	// plugins and the pause image. Default: atoll-node beside the running program.
	Programs string `json:"programs,omitempty"`

	APIServer APIServer `json:"apiServer"`
	// BootstrapToken is a bearer token. Kubelet uses it to request its client certificate while it has none that is
	// valid; the token may expire after that. Whoever approves CSRs decides whether the node may join.
	BootstrapToken string `json:"bootstrapToken,omitempty"`

	// Labels of the Node object. Kubelet refuses most labels of the domains kubernetes.io and k8s.io; Validate lists
	// the permitted ones.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints that the Node object has when it is created.
	Taints []Taint `json:"taints,omitempty"`

	Network   Network   `json:"network"`
	Resources Resources `json:"resources"`
	Images    Images    `json:"images,omitzero"`
	// Konnectivity makes the node run an agent of konnectivity, through which the plane dials the node and its pods
	// (docs/decisions/109). It uses the address and the server name of APIServer and kubelet's certificate. Without it
	// the plane connects to the node's address, which needs network.gateway.
	Konnectivity bool `json:"konnectivity,omitempty"`
}

// APIServer is the cluster's API server as this node reaches it.
//
// A node has no route to this machine. Its supervisor listens inside the node and forwards each connection to Address.
type APIServer struct {
	// Address is HOST:PORT, dialled on this machine: of the router, or of the plane itself.
	Address string `json:"address"`
	// ServerName is the TLS server name of the API server. The router forwards by it.
	ServerName string `json:"tlsServerName"`
	// UnnamedAddress is HOST:PORT, dialled on this machine for connections to Advertised. The TLS greetings of pods have
	// no server name, or one of the cluster, and the router refuses both, so this is an address of the plane. Default:
	// Address.
	UnnamedAddress string `json:"unnamedAddress,omitempty"`
	// UnnamedPlane is the server name that the router at UnnamedAddress gets before such a connection, by a CONNECT of
	// HTTP/1.1. Default: none, UnnamedAddress is no router.
	UnnamedPlane string `json:"unnamedPlane,omitempty"`
	// CA has the PEM certificates that sign the API server's certificate.
	CA string `json:"ca"`
	// Advertised is the address, IP:PORT, under which pods of this node reach the API server. The supervisor gives the
	// IP to the node's loopback link. The endpoints of the Service kubernetes/default have it. Default: none; pods do
	// not reach the API server.
	Advertised string `json:"advertised,omitempty"`
}

// Taint is one taint of the Node object.
type Taint struct {
	Key    string `json:"key"`
	Value  string `json:"value,omitempty"`
	Effect string `json:"effect"` // NoSchedule, PreferNoSchedule or NoExecute
}

// Network is the node's place in the networks of its cluster.
//
// All nodes of a cluster on this machine are on one bridge, and the bridge has nodes of this cluster only. A node
// answers on the bridge for the addresses of its pods (proxy ARP), so nodes need no routes to each other's pods, and
// adding or removing a node changes nothing on the others.
//
// The provider assigns PodCIDR. It does not come from the plane: a node then has its network before the plane answers,
// and simulated nodes take no share of ClusterCIDR.
type Network struct {
	// ClusterCIDR is the network of all pods of the cluster.
	ClusterCIDR string `json:"clusterCIDR"`
	// ServiceCIDR is the network of the cluster's Services.
	ServiceCIDR string `json:"serviceCIDR"`
	// ClusterDNS is the address of the Service of DNS, within ServiceCIDR. Default: none.
	ClusterDNS string `json:"clusterDNS,omitempty"`
	// PodCIDR is the part of ClusterCIDR for the pods of this node, usually a /24.
	PodCIDR string `json:"podCIDR"`

	// Bridge is the name of the cluster's bridge on this machine, at most 15 characters. The first node creates it, the
	// last node removes it.
	Bridge string `json:"bridge"`
	// Address is the node's InternalIP, with the prefix of the bridge's network: 10.90.3.11/24.
	Address string `json:"address"`
	// Gateway is an address of Address's network that this machine gets on the bridge, so that a plane without
	// konnectivity can connect to the node. Default: none; then nodes and pods cannot reach this machine at all.
	Gateway string `json:"gateway,omitempty"`
}

// Resources is the size of the node. Kubelet reports it as allocatable, as far as the machine has so much. It is also
// the limit of the cgroup of all pods.
type Resources struct {
	CPU    resource.Quantity `json:"cpu"`    // 2, 500m
	Memory resource.Quantity `json:"memory"` // 8Gi
	Pods   int               `json:"pods,omitempty"`
	// Disk is the size of the disk with the node's images, volumes and logs: a file in its home, at most a quarter of the
	// home's file system. It is made at the first start and keeps its size. Default: none; the node uses the file system
	// of its home.
	Disk resource.Quantity `json:"disk,omitzero"`
}

// Images are the sources of the node's images besides `atoll node image load`.
type Images struct {
	// Mirror is an http or https URL of a pull-through cache, dialled from this machine. containerd requests images of
	// all registries there, with the registry as query parameter ns. Default: none; the node pulls nothing.
	Mirror string `json:"mirror,omitempty"`
	// Preload are archives on this machine that the supervisor imports when the node starts, for example
	// demo-image.tar.
	Preload []string `json:"preload,omitempty"`
}

// defaultPods is the number of pods of a node whose config has none, as kubelet's own.
const defaultPods = 110

// ReadConfig reads and validates the config in a file. Other users must not have read access to the file: it has a
// token.
func ReadConfig(file string) (Config, error) {
	f, err := os.Open(file)
	if err != nil {
		return Config{}, fmt.Errorf("reading the config of a node: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Config{}, fmt.Errorf("reading the config of a node: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return Config{}, fmt.Errorf("%s: mode %#o lets other users read the bootstrap token; run chmod 600 %s",
			file, info.Mode().Perm(), file)
	}
	data, err := io.ReadAll(f)
	if err != nil {
		return Config{}, fmt.Errorf("reading the config of a node: %w", err)
	}
	c, err := ParseConfig(data)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// ParseConfig parses and validates a config, and fills in the defaults. It refuses members that Config does not have.
func ParseConfig(data []byte) (Config, error) {
	var c Config
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c); err != nil {
		return Config{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("the file has something after the config")
	}
	if err := c.setDefaults(); err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// setDefaults fills in the members that are empty and have a default.
func (c *Config) setDefaults() error {
	if c.ProviderID == "" {
		c.ProviderID = "atoll:///" + c.Name
	}
	if c.Programs == "" {
		path, err := defaultPrograms()
		if err != nil {
			return err
		}
		c.Programs = path
	}
	if c.APIServer.UnnamedAddress == "" {
		c.APIServer.UnnamedAddress = c.APIServer.Address
	}
	if c.Resources.Pods == 0 {
		c.Resources.Pods = defaultPods
	}
	return nil
}

// IP returns the node's address on the bridge. The config is valid.
func (n Network) IP() netip.Addr { return netip.MustParsePrefix(n.Address).Addr() }

// BridgeName returns the name of the bridge of a node that shares it with no other node, by the node's home.
func BridgeName(home string) string {
	return fmt.Sprintf("atoll-%x", sha256.Sum256([]byte(home)))[:len("atoll-")+8]
}
