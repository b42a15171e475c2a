package credentials

import (
	"encoding/pem"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfig leaves in path a kubeconfig with everything embedded, readable by its owner only. A file that already
// says so is left alone.
func writeKubeconfig(path string, o Options, ca, pair []byte) error {
	cert, key := splitPair(pair)
	config := clientcmdapi.NewConfig()
	config.Clusters[o.Name] = &clientcmdapi.Cluster{Server: o.Server, CertificateAuthorityData: ca}
	config.AuthInfos[o.Name] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts[o.Name] = &clientcmdapi.Context{Cluster: o.Name, AuthInfo: o.Name}
	config.CurrentContext = o.Name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return replaceFile(path, content, 0o600)
}

// splitPair divides a PEM text into its certificates and its keys.
func splitPair(pair []byte) (cert, key []byte) {
	for block, rest := pem.Decode(pair); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			cert = append(cert, pem.EncodeToMemory(block)...)
			continue
		}
		key = append(key, pem.EncodeToMemory(block)...)
	}
	return cert, key
}
