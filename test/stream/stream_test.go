// Package stream runs our agent against our Maestro by gRPC, without a broker:
// a real API server, a real PostgreSQL, TLS as in a region.
package stream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"atoll.dev/agent"
	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/internal/pgtest"
	"atoll.dev/maestro"
	"atoll.dev/pki"
	"atoll.dev/plane/planetest"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const patience = 3 * time.Minute

func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("in vain: %s: %v", what, err)
		case <-tick.C:
		}
	}
}

// region is a CA, a database and the addresses of one Maestro.
type region struct {
	t                  *testing.T
	ca                 *pki.CA
	dsn                string
	http, grpc, agents string
	stop               func()
	rest               *http.Client
	source             cloudevents.CloudEventServiceClient
}

func newRegion(t *testing.T) *region {
	ca, err := pki.OpenCA(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := &region{t: t, ca: ca, dsn: pgtest.DSN(t), http: "127.0.0.1:0", grpc: "127.0.0.1:0", agents: "127.0.0.1:0"}
	r.start()
	t.Cleanup(func() { r.stop() })
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{r.pair("system:platform")},
		RootCAs: ca.Pool(), ServerName: "maestro"}
	r.rest = &http.Client{Transport: &http.Transport{TLSClientConfig: config}}
	conn, err := grpc.NewClient(r.grpc, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r.source = cloudevents.NewCloudEventServiceClient(conn)
	return r
}

func (r *region) certificate(name pki.Name) (cert, key []byte) {
	r.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		r.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		r.t.Fatal(err)
	}
	cert, err = r.ca.Sign(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), name)
	if err != nil {
		r.t.Fatal(err)
	}
	if der, err = x509.MarshalPKCS8PrivateKey(k); err != nil {
		r.t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

func (r *region) pair(name pki.Name) tls.Certificate {
	pair, err := tls.X509KeyPair(r.certificate(name))
	if err != nil {
		r.t.Fatal(err)
	}
	return pair
}

// start starts a server, at the addresses of the one before.
func (r *region) start() {
	r.t.Helper()
	listen := func(addr *string) net.Listener {
		l, err := net.Listen("tcp", *addr)
		if err != nil {
			r.t.Fatal(err)
		}
		*addr = l.Addr().String()
		return l
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{r.pair("system:maestro")},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: r.ca.Pool()}
	server, err := maestro.New(context.Background(), maestro.Options{
		DSN: r.dsn, HTTP: listen(&r.http), GRPC: listen(&r.grpc), Agents: listen(
			&r.agents), HTTPTLS: config, GRPCTLS: config, AgentsTLS: config,
		MayCall: func(peer string) bool { return peer == "system:platform" }, ShutdownGrace: time.Second,
		Logger: slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("maestro: %v", err)
		}
	})
}

func (r *region) call(method, path, body string) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequest(method, "https://"+r.http+"/api/maestro/v1"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.rest.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, data
}

func (r *region) publish(kind, id, value string) {
	r.t.Helper()
	e := bus.Event{
		ID: uuid.NewString(), Source: "fleet", Type: kind, Time: time.Now(), DataContentType: "application/json",
		Extensions: map[string]string{work.ExtClusterName: "mc1", work.ExtResourceID: id, work.ExtResourceVersion: "0",
			work.ExtMetadata: `{"name":"` + id + `"}`},
		Data: []byte(`{"manifests":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + id +
			`","namespace":"default"},"data":{"value":"` + value + `"}}]}`),
	}
	if kind == work.SpecDelete {
		e.Extensions[work.ExtDeletionTimestamp] = time.Now().UTC().Format(time.RFC3339)
	}
	eventually(r.t, "the event is taken", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_, err := r.source.Publish(ctx, &cloudevents.PublishRequest{Event: e.Proto()})
		return err
	})
}

// applied waits until the agent has said that it applied a version.
func (r *region) applied(id string, version int64) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("%s is applied at %d", id, version), func() error {
		code, data := r.call("GET", "/resource-bundles/"+id, "")
		var b struct {
			Version int64
			Status  struct {
				ObservedVersion int64
				Conditions      []metav1.Condition
			}
		}
		if err := json.Unmarshal(data, &b); err != nil || code != 200 {
			return fmt.Errorf("%d %s", code, data)
		}
		if b.Version != version || b.Status.ObservedVersion != version {
			return fmt.Errorf("version %d, observed %d", b.Version, b.Status.ObservedVersion)
		}
		for _, c := range b.Status.Conditions {
			if c.Type == "Applied" && c.Status == "True" {
				return nil
			}
		}
		return fmt.Errorf("conditions %v", b.Status.Conditions)
	})
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// TestI6OurAgentByGRPC takes an agent with its file of --workload-source-config
// through works, an outage of the server, and a restart of its own.
func TestI6OurAgentByGRPC(t *testing.T) {
	r := newRegion(t)
	if code, body := r.call("POST", "/consumers", `{"name":"mc1"}`); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	p := planetest.Shared(t)
	admin, err := p.Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := agent.Bootstrap(t.Context(), admin, agent.BootstrapOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := dynamic.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key := r.certificate("mc1")
	for name, data := range map[string][]byte{"ca.pem": r.ca.CertPEM(), "tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := agent.ParseGRPCConfig(fmt.Appendf(
		nil, "url: %s\ncaFile: %s/ca.pem\nclientCertFile: %[2]s/tls.crt\nclientKeyFile: "+
			"%[2]s/tls.key\nkeepAliveConfig: {enable: true, time: 10s}\n", r.agents, dir))
	if err != nil {
		t.Fatal(err)
	}
	runAgent := func() (stop func()) {
		options, err := config.Options(nil)
		if err != nil {
			t.Fatal(err)
		}
		options.MaxBackoff = 200 * time.Millisecond
		a, err := agent.New(agent.Options{
			Consumer: "mc1", Kube: kube, GRPC: &options, BrokerHost: config.URL, DataDir: filepath.Join(dir, "store"),
			Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		eventually(t, "the agent is ready", func() error { return a.ReadyBus(ctx) })
		return sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("agent: %v", err)
			}
		})
	}
	stop := runAgent()
	defer func() { stop() }()
	value := func(name string) string {
		t.Helper()
		o, err := cluster.Resource(configMaps).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		data, _ := o.Object["data"].(map[string]any)
		v, _ := data["value"].(string)
		return v
	}

	begun := time.Now()
	r.publish(work.SpecCreate, "one", "1")
	r.applied("one", 1)
	t.Logf("create to applied: %s", time.Since(begun))
	r.publish(work.SpecUpdate, "one", "2")
	r.applied("one", 2)
	if v := value("one"); v != "2" {
		t.Errorf("the cluster has %s", v)
	}

	// The server is away: what is ordered when it is back arrives.
	r.stop()
	r.start()
	begun = time.Now()
	r.publish(work.SpecUpdate, "one", "3")
	r.publish(work.SpecCreate, "two", "1")
	r.applied("one", 3)
	r.applied("two", 1)
	t.Logf("server's start to applied: %s", time.Since(begun))

	// The agent is away: it gets what is new, and its deletions.
	stop()
	r.publish(work.SpecDelete, "two", "")
	r.publish(work.SpecUpdate, "one", "4")
	stop = runAgent()
	r.applied("one", 4)
	eventually(t, "two is gone", func() error {
		if code, _ := r.call("GET", "/resource-bundles/two", ""); code != http.StatusNotFound {
			return fmt.Errorf("status %d", code)
		}
		return nil
	})
	if v := value("two"); !strings.Contains(v, "not found") {
		t.Errorf("the cluster still has %s", v)
	}
	if v := value("one"); v != "4" {
		t.Errorf("the cluster has %s", v)
	}
}
