package rosa

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"

	"atoll.dev/cluster"
)

// signedCredential is the report of the adapter credential. All of it is public.
type signedCredential struct{ cluster.CredentialData }

// check returns an error when the report lacks something that a kubeconfig needs,
// or when its certificate is for another key.
func (s signedCredential) check(key crypto.PublicKey) error {
	block, _ := pem.Decode([]byte(s.Certificate))
	if block == nil {
		return errors.New("the certificate is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the certificate: %w", err)
	}
	if have, ok := cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !have.Equal(key) {
		return errors.New("the certificate is about another key")
	}
	if s.Server == "" || s.CABundle == "" {
		return errors.New("the report has no address of the control plane, or no CA of its certificate")
	}
	return nil
}

// kubeconfig makes a kubeconfig with one cluster, one user and one context. key is
// PEM; it is empty when the client made the key, and adds it as client-key.
func kubeconfig(cluster, user string, s signedCredential, key []byte) ([]byte, error) {
	type named map[string]any
	login := named{"client-certificate-data": []byte(s.Certificate)}
	if len(key) > 0 {
		login["client-key-data"] = key
	}
	where := named{"server": s.Server, "certificate-authority-data": []byte(s.CABundle)}
	if s.TLSServerName != "" {
		where["tls-server-name"] = s.TLSServerName
	}
	out, err := yaml.Marshal(named{
		"apiVersion": "v1", "kind": "Config", "current-context": cluster,
		"clusters": []named{{"name": cluster, "cluster": where}},
		"users":    []named{{"name": user, "user": login}},
		"contexts": []named{{"name": cluster, "context": named{"cluster": cluster, "user": user}}},
	})
	if err != nil {
		return nil, fmt.Errorf("making a kubeconfig: %w", err)
	}
	return out, nil
}
