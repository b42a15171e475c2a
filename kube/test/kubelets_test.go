package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// kubelet joins a node by a bootstrap token, as a kubelet does it, and serves the log of a pod with the
// certificate that it gets.
func (p *plane) kubelet(t *testing.T) {
	const name, other, address = "joined-0", "joined-1", "127.0.0.1"
	p.bootstrapToken("joinaa", name)
	joining := p.as(rest.TLSClientConfig{}, "joinaa.0123456789abcdef")
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	if _, denied := p.request(joining, certificatesv1.KubeAPIServerClientKubeletSignerName, other, usages); !denied {
		t.Errorf("a token for %s got a certificate of %s", name, other)
	}
	pair, denied := p.request(joining, certificatesv1.KubeAPIServerClientKubeletSignerName, name, usages)
	if denied {
		t.Fatal("the request of the token's own node was denied")
	}

	joined := p.as(rest.TLSClientConfig{CertData: pair.cert, KeyData: pair.key}, "")
	// The taint keeps the daemon sets of the other subtests away.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{
		Taints: []corev1.Taint{{Key: "kubelets-test", Effect: corev1.TaintEffectNoSchedule}}}}
	if _, err := joined.CoreV1().Nodes().Create(background, node, metav1.CreateOptions{}); err != nil {
		t.Fatal("a node cannot register itself:", err)
	}
	foreign := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: other}}
	if _, err := joined.CoreV1().Nodes().Create(background, foreign, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node may register another node: %v", err)
	}
	if _, err := joined.CoreV1().Secrets("default").List(background, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node may read secrets of no pod of its own: %v", err)
	}

	kubelet := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		peer := r.TLS.PeerCertificates
		if len(peer) == 0 || !slices.Equal(peer[0].Subject.Organization, []string{"system:masters"}) {
			t.Error("the API server did not show its certificate to the kubelet")
		}
		fmt.Fprint(w, "the log of ", r.URL.Path)
	}))
	kubelet.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	serveAt := func(at net.Addr) {
		status := fmt.Sprintf(`{"status":{"addresses":[{"type":"Hostname","address":"%s"},`+
			`{"type":"InternalIP","address":"%s"}],"daemonEndpoints":{"kubeletEndpoint":{"Port":%d}}}}`,
			name, address, at.(*net.TCPAddr).Port)
		if _, err := joined.CoreV1().Nodes().Patch(background, name, "application/merge-patch+json", []byte(status),
			metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	serveAt(kubelet.Listener.Addr())
	usages[1] = certificatesv1.UsageServerAuth
	if pair, denied = p.request(joined, certificatesv1.KubeletServingSignerName, name, usages, address); denied {
		t.Fatal("the request for a serving certificate with the node's own address was denied")
	}
	serving, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		t.Fatal(err)
	}
	ns := p.namespace()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "log"}, Spec: *template.Spec.DeepCopy()}
	pod.Spec.NodeName = name
	if _, err := p.client().CoreV1().Pods(ns).Create(background, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubelet.TLS.Certificates = []tls.Certificate{serving}
	kubelet.StartTLS()
	defer kubelet.Close()
	log, err := p.client().CoreV1().Pods(ns).GetLogs("log", &corev1.PodLogOptions{}).DoRaw(background)
	if err != nil || !strings.HasPrefix(string(log), "the log of /containerLogs/"+ns+"/log/") {
		t.Errorf("the log is %q, %v", log, err)
	}
	stranger := httptest.NewTLSServer(kubelet.Config.Handler) // with a certificate of another authority
	defer stranger.Close()
	serveAt(stranger.Listener.Addr())
	log, err = p.client().CoreV1().Pods(ns).GetLogs("log", &corev1.PodLogOptions{}).DoRaw(background)
	if err == nil || !strings.Contains(string(log), "certificate signed by unknown authority") {
		t.Errorf("the log of a stranger is %q, %v", log, err)
	}
}

// pair is a certificate and its key.
type pair struct{ cert, key []byte }

// as returns a client with other credentials than the administrator's.
func (p *plane) as(tls rest.TLSClientConfig, token string) *kubernetes.Clientset {
	p.t.Helper()
	config := rest.AnonymousClientConfig(p.config())
	config.CertData, config.KeyData, config.BearerToken, config.QPS = tls.CertData, tls.KeyData, token, -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// bootstrapToken makes the token ID.0123456789abcdef for one node.
func (p *plane) bootstrapToken(id, node string) {
	p.t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id, Namespace: "kube-system"},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": "system:bootstrappers:atoll:node:" + node,
		},
	}
	_, err := p.client().CoreV1().Secrets("kube-system").Create(background, secret, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-" + id},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole",
			Name: "system:node-bootstrapper"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:bootstrappers"}},
	}
	_, err = p.client().RbacV1().ClusterRoleBindings().Create(background, binding, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.eventually("rights of "+id, func() error {
		client := p.as(rest.TLSClientConfig{}, id+".0123456789abcdef")
		_, err := client.CertificatesV1().CertificateSigningRequests().List(background, metav1.ListOptions{Limit: 1})
		return err
	})
}

// request makes a certificate request for a node, and waits for the certificate or its denial.
func (p *plane) request(client kubernetes.Interface, signer, node string, usages []certificatesv1.KeyUsage,
	addresses ...string) (got pair, denied bool) {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	request := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node,
		Organization: []string{"system:nodes"}}}
	for _, a := range addresses {
		request.IPAddresses = append(request.IPAddresses, net.ParseIP(a))
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, request, key)
	if err != nil {
		p.t.Fatal(err)
	}
	csr := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Usages: usages,
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})},
	}
	csr, err = client.CertificatesV1().CertificateSigningRequests().Create(background, csr, metav1.CreateOptions{})
	if err != nil {
		p.t.Fatal(err)
	}
	p.eventually("certificate of "+node, func() error {
		name := csr.Name
		csr, err = p.client().CertificatesV1().CertificateSigningRequests().Get(background, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range csr.Status.Conditions {
			denied = denied || c.Type == certificatesv1.CertificateDenied
		}
		if !denied && len(csr.Status.Certificate) == 0 {
			return errNotYet
		}
		return nil
	})
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		p.t.Fatal(err)
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	return pair{csr.Status.Certificate, keyPEM}, denied
}
