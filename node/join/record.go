package join

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/node"
)

// record is the content of join.json in the home of a machine: all that a join needs to continue after a kill.
type record struct {
	Invitation node.Invitation `json:"invitation"`
	Key        string          `json:"key"`               // PEM; made here, and never sent
	UID        types.UID       `json:"uid,omitempty"`     // of the Node, once the machine has joined
	Removed    string          `json:"removed,omitempty"` // why the machine is no node of the cluster any more
}

func recordFile(home string) string { return filepath.Join(home, "join.json") }

// ConfigFile returns the path of the node's config in the home of a machine that has joined.
func ConfigFile(home string) string { return filepath.Join(home, "config.json") }

// readRecord reads the record from the home; nil when the home has none.
func readRecord(home string) (*record, error) {
	data, err := os.ReadFile(recordFile(home))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of a join: %w", err)
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, fmt.Errorf("%s: %w", recordFile(home), err)
	}
	return r, nil
}

func (r *record) write(home string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(recordFile(home), data, 0o600)
}

// newRecord returns a record with a new key for the machine. It stores nothing.
func newRecord(i node.Invitation) (*record, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the machine's key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("making the machine's key: %w", err)
	}
	return &record{Invitation: i, Key: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))}, nil
}

// certificateRequest returns a certificate request for the machine's key, as PEM, and the name of its object. The name
// depends on the node and the key only, so a repeated request finds the object of the first one.
func (r *record) certificateRequest() (name string, csr []byte, err error) {
	block, _ := pem.Decode([]byte(r.Key))
	if block == nil {
		return "", nil, errors.New("the record of the join has no key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", nil, fmt.Errorf("the record of the join: %w", err)
	}
	private, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return "", nil, errors.New("the record of the join has another kind of key")
	}
	public, err := x509.MarshalPKIXPublicKey(&private.PublicKey)
	if err != nil {
		return "", nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:node:" + r.Invitation.Node(), Organization: []string{"system:nodes"}}}, private)
	if err != nil {
		return "", nil, fmt.Errorf("making the request for a certificate: %w", err)
	}
	hash := fmt.Sprintf("%x", sha256.Sum256(public))
	csr = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return "join-" + r.Invitation.Node() + "-" + hash[:16], csr, nil
}

// certificateFile is where kubelet keeps its certificate and key: a link, which kubelet replaces when it renews them.
func certificateFile(home string) string {
	return filepath.Join(home, "kubelet", "pki", "kubelet-client-current.pem")
}

func hasCertificate(home string) bool {
	_, err := os.Stat(certificateFile(home))
	return err == nil
}

// storeCertificate writes kubelet's first certificate, with the key, where kubelet looks for it. It may be repeated.
func (r *record) storeCertificate(home string, certificate []byte) error {
	link := certificateFile(home)
	if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
		return err
	}
	const first = "kubelet-client-joined.pem"
	both := append(append([]byte{}, certificate...), r.Key...)
	if err := atomicfile.Write(filepath.Join(filepath.Dir(link), first), both, 0o600); err != nil {
		return err
	}
	if err := os.Symlink(first, link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
