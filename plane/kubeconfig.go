package plane

import (
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/internal/beneath"
)

const (
	kubeconfigName  = "admin.kubeconfig"
	kubeconfigLimit = 64 << 10 // bytes; a plane writes 4 KiB
)

// ErrKubeconfig is the error of a plane's kubeconfig that has more, or other things, than a plane writes.
var ErrKubeconfig = errors.New("the plane's kubeconfig is not as a plane writes it")

// Kubeconfig returns the administrator's kubeconfig. The plane wrote the file, and its reader may have more rights than
// the plane. So the kubeconfig is made anew from four fields: the server, which must be that of the configuration when
// it has an address, and the bytes of authority, certificate and key. A file with anything else, such as a command, a
// path, a proxy or a token, is ErrKubeconfig. Cluster, user and context get the configuration's name: the plane may
// have been started with another one.
func (c Config) Kubeconfig() ([]byte, error) {
	content, err := beneath.Read(c.Dir, kubeconfigName, kubeconfigLimit)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w", c.Dir, err)
	}
	got, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("plane %s: %w: it cannot be parsed", c.Dir, ErrKubeconfig) // the error may have the key
	}
	name := got.CurrentContext
	cluster, user := got.Clusters[name], got.AuthInfos[name]
	if cluster == nil || user == nil {
		return nil, fmt.Errorf("plane %s: %w: no cluster or user", c.Dir, ErrKubeconfig)
	}
	if server := c.server(); server != "" && cluster.Server != server {
		return nil, fmt.Errorf("plane %s: %w: the server is not %s", c.Dir, ErrKubeconfig, server)
	}
	if !hasOnly(cluster.CertificateAuthorityData, "CERTIFICATE") || !hasOnly(user.ClientCertificateData, "CERTIFICATE") ||
		!hasOnly(user.ClientKeyData, "EC PRIVATE KEY") {
		return nil, fmt.Errorf("plane %s: %w: certificates or key are missing", c.Dir, ErrKubeconfig)
	}
	made := clientcmdapi.NewConfig()
	made.Clusters[name] = &clientcmdapi.Cluster{Server: cluster.Server,
		CertificateAuthorityData: cluster.CertificateAuthorityData}
	made.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: user.ClientCertificateData,
		ClientKeyData: user.ClientKeyData}
	made.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	made.CurrentContext = name
	if !isSame(got, made) {
		return nil, fmt.Errorf("plane %s: %w: it has further fields", c.Dir, ErrKubeconfig)
	}
	if c.Name != "" && c.Name != name {
		made.Clusters = map[string]*clientcmdapi.Cluster{c.Name: made.Clusters[name]}
		made.AuthInfos = map[string]*clientcmdapi.AuthInfo{c.Name: made.AuthInfos[name]}
		made.Contexts = map[string]*clientcmdapi.Context{c.Name: {Cluster: c.Name, AuthInfo: c.Name}}
		made.CurrentContext = c.Name
	}
	return clientcmd.Write(*made)
}

// server returns the URL at which this machine reaches the plane; "" when the configuration has no address.
func (c Config) server() string {
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		return "" // a plane that listens on all addresses chooses one
	}
	return "https://" + c.Address
}

// hasOnly reports whether a text has blocks of PEM of one kind, at least one, and nothing else.
func hasOnly(text []byte, kind string) bool {
	n := 0
	for ; len(text) > 0; n++ {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil || block.Type != kind {
			return false
		}
	}
	return n > 0
}

// isSame reports whether two kubeconfigs have the same meaning.
func isSame(a, b *clientcmdapi.Config) bool {
	plain := func(c *clientcmdapi.Config) *clientcmdapi.Config {
		c = c.DeepCopy()
		for cluster := range maps.Values(c.Clusters) {
			cluster.LocationOfOrigin, cluster.Extensions = "", emptyToNil(cluster.Extensions)
		}
		for user := range maps.Values(c.AuthInfos) {
			user.LocationOfOrigin, user.Extensions = "", emptyToNil(user.Extensions)
			user.ImpersonateUserExtra = emptyToNil(user.ImpersonateUserExtra)
		}
		for context := range maps.Values(c.Contexts) {
			context.LocationOfOrigin, context.Extensions = "", emptyToNil(context.Extensions)
		}
		c.Extensions, c.Preferences.Extensions = emptyToNil(c.Extensions), emptyToNil(c.Preferences.Extensions)
		c.Kind, c.APIVersion = "", ""
		return c
	}
	return reflect.DeepEqual(plain(a), plain(b))
}

func emptyToNil[M ~map[K]V, K comparable, V any](m M) M {
	if len(m) == 0 {
		return nil
	}
	return m
}
