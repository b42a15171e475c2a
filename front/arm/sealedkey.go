package arm

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"sigs.k8s.io/yaml"

	"atoll.dev/internal/rest"
)

// resultKey is the parameter of a URL of a result whose value opens the private key in the operation.
const resultKey = "key"

// sealedKey is a private key that the service has made for a caller, and what opens it. The service stores the sealed
// key; only the caller gets what opens it, in the URL of the result.
type sealedKey struct {
	request string // PEM of the certificate request for the key
	sealed  []byte
	opener  string // a value of resultKey
}

// newSealedKey makes a private key and seals it.
func newSealedKey() (k sealedKey, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return k, err
	}
	der, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		return k, err
	}
	request, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: "system:customer-break-glass:system-admin", Organization: []string{"system:masters"}}}, private)
	if err != nil {
		return k, err
	}
	opener := make([]byte, 32)
	rand.Read(opener)
	aead, err := aeadOf(opener)
	if err != nil {
		return k, err
	}
	return sealedKey{request: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})),
		sealed: aead.Seal(nil, nil, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil),
		opener: base64.RawURLEncoding.EncodeToString(opener)}, nil
}

func aeadOf(opener []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(opener)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// openKey returns the private key in PEM that is sealed in an operation.
func openKey(sealed []byte, opener string) ([]byte, error) {
	secret, err := base64.RawURLEncoding.DecodeString(opener)
	if err != nil || len(secret) != 32 {
		return nil, errors.New("the URL does not have what opens the private key")
	}
	aead, err := aeadOf(secret)
	if err != nil {
		return nil, err
	}
	return aead.Open(nil, nil, sealed, nil)
}

// showCredential answers with the result of requestAdminCredential. If the service has made the private key, the
// kubeconfig gets it, and the URL must have what opens the key.
func (x *exchange) showCredential(result json.RawMessage, sealed []byte) error {
	if sealed == nil {
		return x.write(http.StatusOK, result)
	}
	private, err := openKey(sealed, x.r.URL.Query().Get(resultKey))
	if err != nil {
		return rest.Errorf(http.StatusNotFound, codeResourceNotFound,
			"The result has a private key, which only the whole URL of the header 'Location' opens.").Because(err)
	}
	var shown map[string]string
	if err := json.Unmarshal(result, &shown); err != nil {
		return fmt.Errorf("reading the result of an operation: %w", err)
	}
	var config struct {
		Kind    string           `json:"kind"`
		Version string           `json:"apiVersion"`
		Current string           `json:"current-context"`
		Cluster []any            `json:"clusters"`
		Context []any            `json:"contexts"`
		Users   []map[string]any `json:"users"`
	}
	if err := yaml.Unmarshal([]byte(shown["kubeconfig"]), &config); err != nil {
		return fmt.Errorf("reading the kubeconfig of an operation: %w", err)
	}
	for _, user := range config.Users {
		if of, isObject := user["user"].(map[string]any); isObject {
			of["client-key-data"] = private
		}
	}
	text, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	shown["kubeconfig"] = string(text)
	x.w.Header().Set("Cache-Control", "no-store")
	return x.write(http.StatusOK, shown)
}

// resultQuery returns the query of the URL of an operation's result.
func (x *exchange) resultQuery(opener string) string {
	q := url.Values{"api-version": {versions[x.version]}}
	if opener != "" {
		q.Set(resultKey, opener)
	}
	return q.Encode()
}
