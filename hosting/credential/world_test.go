package credential

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
	"errors"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
	"atoll.dev/hosting/process"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

// world is a management cluster with one hosted cluster in it. One plane is
// both.
type world struct {
	t         *testing.T
	mc        *testworld.Cluster
	admin     dynamic.Interface
	planes    *onePlane
	namespace string
}

// onePlane uses the shared plane as the plane of every HostedCluster. The plane cannot be stopped
// while other tests use it: asleep means that no call may reach it.
type onePlane struct {
	config plane.Config

	mu    sync.Mutex
	state planeState
	woken int
}

// planeState is the simulated state of the shared plane.
type planeState int

const (
	serving planeState = iota
	asleep             // Wake wakes it
	broken             // asleep, and Wake fails
)

var _ Planes = (*onePlane)(nil)

func (p *onePlane) Client(cluster controlplane.ID) (controlplane.Admin, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state != serving {
		return controlplane.Admin{}, controlplane.ErrNotServing
	}
	return process.AdminOf(p.config)
}

func (p *onePlane) Sign(_ controlplane.ID, r controlplane.CertificateRequest) (controlplane.Certificate, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return process.Sign(p.config.Dir, r, time.Now())
}

func (p *onePlane) Wake(context.Context, controlplane.ID) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.woken++
	if p.state == broken {
		return errors.New("no disk")
	}
	p.state = serving
	return nil
}

func (p *onePlane) set(s planeState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state, p.woken = s, 0
}

func (p *onePlane) replace(config plane.Config) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.config = config
}

func (p *onePlane) wakes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.woken
}

const clusterName = "hc-0123456789ab"

func newWorld(t *testing.T, namespace string) *world {
	t.Helper()
	mc := testworld.SharedCluster(t)
	hostingConfig := mc.AddHosting()
	namespace += "-" + strings.ToLower(rand.Text()[:8]) // tests may be run more than once on one plane
	w := &world{t: t, mc: mc, admin: mc.Objects, planes: &onePlane{config: mc.Plane}, namespace: namespace}
	mc.CreateNamespace(namespace)
	w.mc.Create(hypershift.HostedClusters(), namespace, map[string]any{
		"apiVersion": hypershift.Group + "/" + hypershift.Version, "kind": "HostedCluster", "metadata": map[string]any{
			"name": clusterName},
		"spec": map[string]any{"release": map[string]any{"image": "atoll.dev/release:1.36.3"},
			"kubeAPIServerDNSName": "localhost", "platform": map[string]any{"type": "AWS"}},
	})
	host, portText, _ := net.SplitHostPort(mc.Plane.Address)
	port, _ := strconv.Atoi(portText)
	status, _ := json.Marshal(map[string]any{"status": map[string]any{"controlPlaneEndpoint": map[string]any{
		"host": host, "port": port}}})
	if _, err := w.admin.Resource(hypershift.HostedClusters()).Namespace(namespace).Patch(t.Context(), clusterName,
		types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}

	testsite.Run(t, "credentials", func(ctx context.Context) error {
		return Run(ctx, Options{Client: client(t, hostingConfig), Planes: w.planes})
	})
	return w
}

func client(t *testing.T, config *rest.Config) dynamic.Interface {
	t.Helper()
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// order makes a Credential and returns its key.
func (w *world) order(id string, change func(spec map[string]any)) *ecdsa.PrivateKey {
	w.t.Helper()
	key, request := request(w.t)
	spec := map[string]any{"clusterName": clusterName, "id": id, "request": request, "expirationSeconds": int64(600),
		"username": "arn:aws:iam::111111111111:user/ann"}
	if change != nil {
		change(spec)
	}
	w.mc.Create(apihosting.Credentials(), w.namespace, map[string]any{
		"apiVersion": apihosting.Group + "/" + apihosting.Version, "kind": "Credential", "metadata": map[string]any{
			"name": apihosting.CredentialName(id)}, "spec": spec,
	})
	return key
}

// request is a certificate request with fields that must not be granted.
func request(t testing.TB) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key, requestOf(t, key)
}

func requestOf(t testing.TB, key crypto.Signer) string {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "kubernetes-admin", Organization: []string{
			"system:masters"}}, DNSNames: []string{"kubernetes"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// await returns the Credential when its condition Issued has a reason.
func (w *world) await(id, reason string) *apihosting.Credential {
	w.t.Helper()
	var c *apihosting.Credential
	w.eventually(id+" being "+reason, func() error {
		object, err := w.admin.Resource(apihosting.Credentials()).Namespace(w.namespace).Get(w.t.Context(),
			apihosting.CredentialName(id), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c, err = loop.Decode[apihosting.Credential](object); err != nil {
			return err
		}
		for _, x := range c.Status.Conditions {
			if x.Type == apihosting.Issued && x.Reason == reason && x.ObservedGeneration == c.Generation {
				return nil
			}
		}
		return errors.New("not yet")
	})
	return c
}

// delete deletes a Credential and waits for its end.
func (w *world) delete(id string) {
	w.t.Helper()
	credentials := w.admin.Resource(apihosting.Credentials()).Namespace(w.namespace)
	if err := credentials.Delete(w.t.Context(), apihosting.CredentialName(id), metav1.DeleteOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.eventually("end of "+id, func() error {
		_, err := credentials.Get(w.t.Context(), apihosting.CredentialName(id), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.New("still there")
	})
}

// bound reports whether a credential's binding is in the plane.
func (w *world) bound(id string) bool {
	w.t.Helper()
	_, err := w.admin.Resource(schema.GroupVersionResource{Group: rbacGroup, Version: "v1",
		Resource: "clusterrolebindings"}).Get(w.t.Context(), apihosting.CredentialGroup(id), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.t.Fatal(err)
	}
	return err == nil
}

func (w *world) eventually(what string, try func() error) {
	w.t.Helper()
	testsite.Eventually(w.t, what, try)
}

// config is how a client uses a Credential.
func config(t *testing.T, c *apihosting.Credential, key *ecdsa.PrivateKey) *rest.Config {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &rest.Config{Host: c.Status.Server, TLSClientConfig: rest.TLSClientConfig{
		ServerName: c.Status.TLSServerName, CAData: []byte(c.Status.CABundle), CertData: []byte(c.Status.Certificate),
		KeyData: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	}}
}
