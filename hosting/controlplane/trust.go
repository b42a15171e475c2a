package controlplane

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
)

// NodeCAAnnotation of a Node is the CAID of the CA that signed when hosting made the Node: the oldest CA that the
// Node's kubelet has a certificate of. A Node without it is older than this annotation.
const NodeCAAnnotation = "atoll.dev/ca"

// SimulatedLabel of a Node is "true" when no kubelet runs: the Node has no certificate.
const SimulatedLabel = "atoll.dev/simulated"

// CAID names a CA: the first 16 hexadecimal digits of the SHA-256 of its certificate.
type CAID string

// Trust is the CAs that the clients of a control plane trust.
type Trust struct {
	ID         CAID   // of the CA that signs
	PEM        []byte // certificate of that CA alone
	HasEarlier bool   // an earlier CA is trusted, too: a rotation of the CA is between its two steps
}

// ReadTrust reads the certificates of a kubeconfig's CAs. The first one signs.
func ReadTrust(bundle []byte) (Trust, error) {
	block, rest := pem.Decode(bundle)
	if block == nil || block.Type != "CERTIFICATE" {
		return Trust{}, errors.New("a control plane has no CA")
	}
	sum := sha256.Sum256(block.Bytes)
	return Trust{ID: CAID(hex.EncodeToString(sum[:8])), PEM: pem.EncodeToMemory(block),
		HasEarlier: len(bytes.TrimSpace(rest)) > 0}, nil
}

// Trust returns the CAs of the kubeconfig.
func (a Admin) Trust() (Trust, error) {
	config, err := a.RESTConfig()
	if err != nil {
		return Trust{}, err
	}
	return ReadTrust(config.CAData)
}
