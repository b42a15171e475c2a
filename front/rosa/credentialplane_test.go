package rosa_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	apiclm "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// plane has the CA of a control plane.
type plane struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPlane(t *testing.T) *plane {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "plane"}, IsCA: true,
		BasicConstraintsValid: true, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &plane{t, cert, key}
}

// sign returns the data that the adapter reports after hosting has signed a
// Credential.
func (p *plane) sign(id, request, username string, lifetime time.Duration, key crypto.PublicKey) string {
	block, _ := pem.Decode([]byte(request))
	csr, err := x509.ParseCertificateRequest(block.Bytes)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		p.t.Error(err)
		return ""
	}
	if key == nil {
		key = csr.PublicKey
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: username, Organization: []string{
			"atoll:credential:" + id}}, NotAfter: time.Now().Add(lifetime),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, key, p.key)
	if err != nil {
		p.t.Error(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// serve signs as the adapter credential and hosting do, until the test ends.
// answer may change a report.
func (p *plane) serve(l *lifecycle, answer func(r clmclient.Resource, data map[string]any, available *string)) {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.cert.Raw}))
	go func() {
		defer close(done)
		_ = l.system.Follow(ctx, "credentials", remote.WatchOptions{}, func(e remote.Event) error {
			if e.Type != rest.Added {
				return nil
			}
			r, err := clmclient.ResourceOf(e.Object)
			if err != nil || r.DeletedTime != nil {
				return err
			}
			var s struct {
				Request, Username string
				Expiration        int64     `json:"expiration_seconds"`
				ExpiresAt         time.Time `json:"expires_at"`
			}
			if err := json.Unmarshal(r.Spec, &s); err != nil {
				return err
			}
			data := map[string]any{
				"certificate": p.sign(r.ID, s.Request, s.Username, time.Duration(s.Expiration)*time.Second, nil),
				"ca_bundle":   ca,
				"server":      "https://127.0.0.1:30001", "tls_server_name": "hc-1.hosted.test-1.atoll.internal",
				"expires_at": s.ExpiresAt.Format(time.RFC3339),
			}
			available := "True:Issued"
			if answer != nil {
				answer(r, data, &available)
			}
			text, err := json.Marshal(data)
			if err != nil {
				return err
			}
			parts := strings.SplitN(available+"::", ":", 3)
			_, err = l.system.Report(ctx, "credentials", r.ID, apiclm.AdapterStatusCreate{
				Adapter: "credential", ObservedGeneration: r.Generation, ObservedTime: time.Now(), Data: text,
				Conditions: []apiclm.ReportedCondition{
					{Type: "Available", Status: parts[0], Reason: optional(parts[1]),
						Message: optional(strings.TrimRight(parts[2], ":"))},
					{Type: "Applied", Status: "True"}, {Type: "Health", Status: "True"},
				},
			})
			return err
		})
	}()
	l.t.Cleanup(func() { stop(); <-done })
}

// login has the parts of a kubeconfig.
type login struct {
	CurrentContext string `json:"current-context"`
	Clusters       []struct {
		Name    string
		Cluster struct {
			Server, TLSServerName string
			Name                  string `json:"tls-server-name"`
			CA                    []byte `json:"certificate-authority-data"`
		}
	}
	Users []struct {
		Name string
		User struct {
			Certificate []byte `json:"client-certificate-data"`
			Key         []byte `json:"client-key-data"`
		}
	}
	Contexts []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
}

func loginOf(t *testing.T, kubeconfig string) login {
	t.Helper()
	var k login
	if err := yaml.Unmarshal([]byte(kubeconfig), &k); err != nil {
		t.Fatalf("%s: %v", kubeconfig, err)
	}
	if len(k.Clusters) != 1 || len(k.Users) != 1 || len(k.Contexts) != 1 || k.CurrentContext != k.Contexts[0].Name ||
		k.Contexts[0].Context.Cluster != k.Clusters[0].Name || k.Contexts[0].Context.User != k.Users[0].Name {
		t.Fatalf("the kubeconfig does not hang together:\n%s", kubeconfig)
	}
	return k
}
