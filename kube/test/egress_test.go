package test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/apiserver-network-proxy/pkg/agent"
)

// trap is a TLS server of this machine that counts its connections.
type trap struct {
	*httptest.Server
	ip          string
	port        int32
	connections atomic.Int32
}

func newTrap(t *testing.T) *trap {
	t.Helper()
	p := &trap{ip: ownAddress(t)}
	p.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "reached", r.URL.Path)
	}))
	l, err := net.Listen("tcp", net.JoinHostPort(p.ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p.Listener.Close()
	p.Listener = l
	p.Config.ErrorLog = log.New(io.Discard, "", 0)
	p.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			p.connections.Add(1)
		}
	}
	p.StartTLS()
	t.Cleanup(p.Close)
	_, port, _ := net.SplitHostPort(p.Listener.Addr().String())
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	p.port = int32(n)
	return p
}

// ownAddress returns an address of this machine. Upstream itself refuses to proxy to loopback.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if ip := a.(*net.IPNet).IP; ip.To4() != nil && ip.IsGlobalUnicast() {
			return ip.String()
		}
	}
	t.Skip("this machine has loopback only")
	return ""
}

// An administrator of the cluster makes the API server connect to this machine by each means that Kubernetes
// has. Nothing arrives. With an agent on a node, the agent makes the same connections.
func TestThePlaneReachesNothingButThroughAgents(t *testing.T) {
	dir := dataDir(t)
	p, _ := startReady(t, dir, address(t), "--egress", "tunnel")
	client := p.client()
	target := newTrap(t)

	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}}
	node, err := client.CoreV1().Nodes().Create(background, node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: target.ip}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = target.port
	if _, err := client.CoreV1().Nodes().UpdateStatus(background, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "here", Namespace: "default"}, Spec: v1.PodSpec{
		NodeName: "here", Containers: []v1.Container{{Name: "c", Image: "i"}},
	}}
	p.eventually("a pod", func() error { // the service account comes a moment later
		_, err := client.CoreV1().Pods("default").Create(background, pod, metav1.CreateOptions{})
		return err
	})
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "here"},
		Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "here.example.com", SideEffects: ptr.To(admissionv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(target.URL), CABundle: pem.EncodeToMemory(&pem.Block{
				Type: "CERTIFICATE", Bytes: target.Certificate().Raw})},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}}}},
		}}}
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(background, hook,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "here", Namespace: "default"},
		Spec: v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "localhost"}}
	if _, err := client.CoreV1().Services("default").Create(background, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	aggregated := fmt.Sprintf(`{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService",
		"metadata":{"name":"v1.here.example.com"},
		"spec":{"group":"here.example.com","version":"v1","groupPriorityMinimum":100,"versionPriority":100,
		"insecureSkipTLSVerify":true,"service":{"namespace":"default","name":"here","port":%d}}}`, target.port)
	if err := client.RESTClient().Post().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").
		SetHeader("Content-Type", "application/json").Body([]byte(aggregated)).Do(background).Error(); err != nil {
		t.Fatal(err)
	}

	refused := "no node of the cluster is connected"
	wants := func(what, text string, err error) error {
		if err == nil || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("%s: %v, want %q", what, err, text)
		}
		return nil
	}
	logs := func() error {
		_, err := client.CoreV1().Pods("default").GetLogs("here", &v1.PodLogOptions{}).DoRaw(background)
		return err
	}
	proxy := func() error {
		body, err := client.RESTClient().Get().AbsPath(fmt.Sprintf("/api/v1/nodes/https:here:%d/proxy/metrics", target.port)).
			DoRaw(background)
		return errors.Join(err, errors.New(string(body)))
	}
	admission := func() error {
		_, err := client.CoreV1().ConfigMaps("default").Create(background,
			&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "x"}}, metav1.CreateOptions{})
		return err
	}
	extension := func() error {
		_, err := client.RESTClient().Get().AbsPath("/apis/here.example.com/v1/things").DoRaw(background)
		return err
	}
	p.eventually("the webhook", func() error { // the API server notices it a moment later
		return wants("a webhook by URL", refused, admission())
	})
	first := wants("a node's proxy", refused, proxy())
	for what, err := range map[string]error{"logs": logs(), "an aggregated API": extension()} {
		if err == nil {
			first = errors.Join(first, fmt.Errorf("%s of this machine are served", what))
		}
	}
	if first != nil {
		t.Error(first)
	}
	if n := target.connections.Load(); n != 0 {
		t.Fatalf("the API server made %d connections to this machine", n)
	}

	startAgent(t, p, "here", "host=here&ipv4="+target.ip)
	p.eventually("the agent's connections", func() error {
		// The kubelet's certificate is verified, so the traps of a stranger end there.
		return errors.Join(wants("logs", "x509", streamed(client)), wants("a node's proxy", "x509", proxy()),
			wants("a webhook by URL", "x509: certificate is valid for", admission()))
	})
	if target.connections.Load() == 0 {
		t.Error("no connection came through the agent")
	}
}

// streamed returns why logs cannot be read, as the API server writes it into the stream.
func streamed(client *kubernetes.Clientset) error {
	path := "/api/v1/namespaces/default/pods/here/log"
	content, err := client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(background)
	return errors.Join(errors.New(string(content)), err)
}

// startAgent runs upstream's agent of konnectivity with the certificate of a node, until the test ends.
func startAgent(t *testing.T, p *plane, node, identifiers string) {
	t.Helper()
	block := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join(p.dir, "pki", name))
		if err != nil {
			t.Fatal(err)
		}
		b, _ := pem.Decode(content)
		return b.Bytes
	}
	ca, err := x509.ParseCertificate(block("ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	caKey, err := x509.ParseECPrivateKey(block("ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		Subject:     pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), caKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	set := (&agent.ClientSetConfig{
		Address: p.listen, AgentID: node, AgentIdentifiers: identifiers, XfrChannelSize: 150,
		SyncInterval: time.Second, SyncIntervalCap: 5 * time.Second, ProbeInterval: time.Second,
		DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
			ServerName: "localhost", RootCAs: roots, NextProtos: []string{"konnectivity"},
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		}))},
	}).NewAgentClientSet(make(chan struct{}), stop)
	set.SetServerCounter(oneServer{})
	set.Serve()
}

type oneServer struct{}

func (oneServer) Count() int { return 1 }
