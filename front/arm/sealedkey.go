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

// resultKey is the parameter in the URL of a result whose value is the secret that decrypts the private key
// of the operation.
const resultKey = "key"

// sealedKey is a private key that the service made for a caller, encrypted, and the secret that decrypts
// it. The service stores the encrypted key only; the caller gets the secret in the URL of the result.
type sealedKey struct {
	request      string // PEM of the certificate request for the key
	sealed       []byte
	unsealSecret string // in base64; the value of resultKey
}

// newSealedKey makes a private key and its certificate request, and encrypts the key with a new secret.
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
	unsealSecret := make([]byte, 32)
	rand.Read(unsealSecret)
	aead, err := aeadOf(unsealSecret)
	if err != nil {
		return k, err
	}
	return sealedKey{request: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request})),
		sealed:       aead.Seal(nil, nil, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil),
		unsealSecret: base64.RawURLEncoding.EncodeToString(unsealSecret)}, nil
}

func aeadOf(unsealSecret []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(unsealSecret)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// openKey returns the private key in PEM that is sealed in an operation.
func openKey(sealed []byte, unsealSecret string) ([]byte, error) {
	secret, err := base64.RawURLEncoding.DecodeString(unsealSecret)
	if err != nil || len(secret) != 32 {
		return nil, errors.New("the URL does not have what opens the private key")
	}
	aead, err := aeadOf(secret)
	if err != nil {
		return nil, err
	}
	return aead.Open(nil, nil, sealed, nil)
}

// writeCredential answers with the result of requestAdminCredential. If the service made the private key,
// it decrypts the key with the secret in the URL and adds it to the kubeconfig.
func (x *exchange) writeCredential(result json.RawMessage, sealed []byte) error {
	if sealed == nil {
		return x.writeJSON(http.StatusOK, result)
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
	return x.writeJSON(http.StatusOK, shown)
}

// resultQuery returns the query of the URL of an operation's result.
func (x *exchange) resultQuery(unsealSecret string) string {
	q := url.Values{"api-version": {versions[x.version]}}
	if unsealSecret != "" {
		q.Set(resultKey, unsealSecret)
	}
	return q.Encode()
}
