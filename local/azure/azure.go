// Package azure stands in, on one machine, for what a region needs of Azure: the gateway of Azure Resource
// Manager (ARM), which proves itself to the region with a client certificate, and Entra, which gives tokens
// to one application. With it unchanged programs of Azure's SDKs, `az` and Terraform work with a region on this
// machine.
//
// The certificates, the keys and the secret of the application are made at the first start, in the
// directory of the stand-in. It is for one machine: everybody with the secret acts as the one customer.
//
// Command `atoll azure-gateway` runs it. It imports no service, and no service imports it.
package azure

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"

	"atoll.dev/internal/atomicfile"
)

// Files in the directory of the stand-in.
const (
	MetadataFile = "metadata.json" // the certificate of the gateway, as ARM publishes its own
	ClientFile   = "client.json"   // the application of the customer, with its secret
	gatewayFile  = "gateway.pem"   // key and certificate of the gateway
	tokenFile    = "token.pem"     // the key that signs tokens
)

// Client has the settings that a program needs to use Azure's SDKs with the stand-in.
type Client struct {
	Tenant       string `json:"tenantId"`
	Subscription string `json:"subscriptionId"`
	Location     string `json:"location"` // the region's name in Azure
	ID           string `json:"clientId"`
	Secret       string `json:"clientSecret"`
	Authority    string `json:"authorityHost"`   // of Entra
	Endpoint     string `json:"resourceManager"` // of ARM
	CA           string `json:"caFile"`          // signs the certificate of both
}

// certificateLifetime is how long the client certificate of the gateway is valid.
const certificateLifetime = 10 * 365 * 24 * time.Hour

// secrets are the files of the stand-in, read.
type secrets struct {
	client   Client
	gateway  tls.Certificate
	tokenKey *ecdsa.PrivateKey
}

// openSecrets reads the files of the stand-in, and makes those that are missing. It writes endpoint, location and CA
// into the file of the client.
func openSecrets(o Options) (s secrets, err error) {
	dir := o.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return s, err
	}
	if s.tokenKey, err = openKey(filepath.Join(dir, tokenFile)); err != nil {
		return s, err
	}
	if s.gateway, err = openGateway(filepath.Join(dir, gatewayFile)); err != nil {
		return s, err
	}
	data, err := os.ReadFile(filepath.Join(dir, ClientFile))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.client = Client{Tenant: uuid.NewString(), Subscription: uuid.NewString(), ID: uuid.NewString(),
			Secret: rand.Text()}
	case err != nil:
		return s, err
	default:
		if err := json.Unmarshal(data, &s.client); err != nil {
			return s, fmt.Errorf("reading %s: %w", ClientFile, err)
		}
	}
	s.client.Authority, s.client.Endpoint, s.client.Location, s.client.CA = o.Endpoint, o.Endpoint, o.Location, o.CA
	if err := writeJSON(filepath.Join(dir, ClientFile), s.client); err != nil {
		return s, err
	}
	return s, writeJSON(filepath.Join(dir, MetadataFile), map[string]any{"clientCertificates": []map[string]string{{
		"certificate": base64.StdEncoding.EncodeToString(s.gateway.Certificate[0])}}})
}

func writeJSON(file string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(file, append(data, '\n'), 0o600)
}

// openKey reads a private key, and makes it when the file is missing.
func openKey(file string) (*ecdsa.PrivateKey, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			return nil, err
		}
		return key, atomicfile.Write(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
	}
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s has no key in PEM; delete it, and it is made again", file)
	}
	return x509.ParseECPrivateKey(block.Bytes)
}

// openGateway reads key and certificate of the gateway, and makes them when the file is missing.
func openGateway(file string) (c tls.Certificate, err error) {
	data, err := os.ReadFile(file)
	if err == nil {
		return tls.X509KeyPair(data, data)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return c, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(certificateLifetime), Subject: pkix.Name{CommonName: "stand-in of ARM's gateway"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return c, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return c, err
	}
	data = append(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	if err := atomicfile.Write(file, data, 0o600); err != nil {
		return c, err
	}
	return tls.X509KeyPair(data, data)
}
