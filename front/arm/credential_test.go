package arm_test

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"atoll.dev/ops"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

func (w *world) testCredentials(t *testing.T) {
	t.Run("18 an action answers 202 and its result 200", func(t *testing.T) {
		path := demo + "/requestAdminCredential"
		body := fmt.Sprintf(`{"certificateSigningRequest":%q}`, testsite.AdminCertificateRequest(t))
		w.do(call{method: "POST", path: path, body: `{}`}).want(t, 400, "Required value")
		w.do(call{method: "POST", path: path, body: `{"certificateSigningRequest":"x"}`}).want(t, 400, "Invalid value")
		a := w.do(call{method: "POST", path: path, body: body}).want(t, 202)
		if a.raw != "" {
			t.Errorf("the answer has a body: %s", a.raw)
		}
		w.succeed(t, a)
		result := w.do(call{method: "GET", path: a.header.Get("Location"), version: "-"}).want(t, 200, "kubeconfig",
			"expirationTimestamp", "client-certificate-data")
		if strings.Contains(result.raw, "client-key-data") {
			t.Error("the result has a private key")
		}
	})
	t.Run("18 an older api-version gets a private key that only the URL of its result opens", func(t *testing.T) {
		a := w.do(call{method: "POST", path: demo + "/requestAdminCredential", version: oldest}).want(t, 202)
		if strings.Contains(a.header.Get("Azure-AsyncOperation"), "key=") {
			t.Errorf("headers %v", a.header)
		}
		w.succeed(t, a)
		link := a.header.Get("Location")
		result := w.do(call{method: "GET", path: link, version: "-"}).want(t, 200, "client-key-data", "expirationTimestamp")
		var config struct {
			Users []struct {
				User struct {
					Certificate []byte `json:"client-certificate-data"`
					Key         []byte `json:"client-key-data"`
				}
			}
		}
		if err := yaml.Unmarshal([]byte(result.body["kubeconfig"].(string)), &config); err != nil || len(config.Users) != 1 {
			t.Fatalf("%v: %s", err, result.raw)
		}
		block, _ := pem.Decode(config.Users[0].User.Key)
		if block == nil {
			t.Fatalf("the kubeconfig has no key: %s", result.raw)
		}
		if _, err := x509.ParseECPrivateKey(block.Bytes); err != nil || len(config.Users[0].User.Certificate) == 0 {
			t.Error(err)
		}
		before, unsealSecret, _ := strings.Cut(link, "key=")
		unsealSecret, _, _ = strings.Cut(unsealSecret, "&")
		for _, wrong := range []string{strings.TrimRight(before, "&?"), before + "key=" + strings.Repeat("A", 43)} {
			w.do(call{method: "GET", path: strings.Replace(wrong, "?", "?api-version="+oldest+"&", 1), version: "-"}).
				want(t, 404, "only the whole URL")
		}
		w.each(t, ops.Kind, func(d store.Document) {
			for _, secret := range []string{unsealSecret, base64.StdEncoding.EncodeToString(config.Users[0].User.Key),
				"PRIVATE KEY"} {
				if strings.Contains(string(d.Spec)+string(d.Status), secret) {
					t.Errorf("the operation %s has a secret", d.ID)
				}
			}
		})
	})
}
