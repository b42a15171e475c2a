// Package stream runs our agent against our Maestro by gRPC, without a broker:
// a real API server, a real PostgreSQL, TLS as in a region.
package stream

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"atoll.dev/agent"
	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/bus"
	"atoll.dev/pki"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

// region is a Maestro without a broker, and its callers.
type region struct {
	t       *testing.T
	site    *testsite.Site
	maestro *testworld.Maestro
	rest    *http.Client
	source  cloudevents.CloudEventServiceClient
}

func newRegion(t *testing.T) *region {
	r := &region{t: t, site: testsite.New(t)}
	r.maestro = testworld.StartMaestro(r.site, testworld.MaestroOptions{})
	config := r.site.ClientTLS(pki.ServiceName("platform"), "maestro")
	transport := &http.Transport{TLSClientConfig: config}
	t.Cleanup(transport.CloseIdleConnections)
	r.rest = &http.Client{Transport: transport}
	conn, err := grpc.NewClient(r.maestro.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	r.source = cloudevents.NewCloudEventServiceClient(conn)
	return r
}

func (r *region) call(method, path, body string) (int, []byte) {
	r.t.Helper()
	req, err := http.NewRequest(method, "https://"+r.maestro.HTTP+"/api/maestro/v1"+path, strings.NewReader(body))
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
	testsite.Eventually(r.t, "Maestro accepts the event", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), testsite.HangLimit)
		defer cancel()
		_, err := r.source.Publish(ctx, &cloudevents.PublishRequest{Event: e.Proto()})
		return err
	})
}

// awaitApplied waits until the agent has reported that it applied a version.
func (r *region) awaitApplied(id string, version int64) {
	r.t.Helper()
	testsite.Eventually(r.t, fmt.Sprintf("%s is applied at %d", id, version), func() error {
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
// through works, a restart of the server, and a restart of its own.
func TestI6OurAgentByGRPC(t *testing.T) {
	r := newRegion(t)
	if code, body := r.call("POST", "/consumers", `{"name":"mc1"}`); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	cluster := testworld.SharedCluster(t)
	dir := t.TempDir()
	cert, key := r.site.CertificatePEM("mc1")
	for name, data := range map[string][]byte{"ca.pem": r.site.CA.CertPEM(), "tls.crt": cert, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config, err := agent.ParseGRPCConfig(fmt.Appendf(
		nil, "url: %s\ncaFile: %s/ca.pem\nclientCertFile: %[2]s/tls.crt\nclientKeyFile: "+
			"%[2]s/tls.key\nkeepAliveConfig: {enable: true, time: 10s}\n", r.maestro.Agents, dir))
	if err != nil {
		t.Fatal(err)
	}
	options, err := config.Options(nil)
	if err != nil {
		t.Fatal(err)
	}
	a := testworld.StartAgent(r.site, testworld.AgentOptions{Consumer: "mc1", Admin: cluster.Admin, GRPC: &options})
	value := func(name string) string {
		t.Helper()
		o, err := cluster.Object(configMaps, "default", name)
		if err != nil {
			return err.Error()
		}
		data, _ := o.Object["data"].(map[string]any)
		v, _ := data["value"].(string)
		return v
	}

	begun := time.Now()
	r.publish(work.SpecCreate, "one", "1")
	r.awaitApplied("one", 1)
	t.Logf("create to applied: %s", time.Since(begun))
	r.publish(work.SpecUpdate, "one", "2")
	r.awaitApplied("one", 2)
	if v := value("one"); v != "2" {
		t.Errorf("the cluster has %s", v)
	}

	// After a restart of the server, new works reach the agent.
	r.maestro.Stop()
	r.maestro.Start()
	begun = time.Now()
	r.publish(work.SpecUpdate, "one", "3")
	r.publish(work.SpecCreate, "two", "1")
	r.awaitApplied("one", 3)
	r.awaitApplied("two", 1)
	t.Logf("server's start to applied: %s", time.Since(begun))

	// An agent that was away gets the changes and deletions.
	a.Stop()
	r.publish(work.SpecDelete, "two", "")
	r.publish(work.SpecUpdate, "one", "4")
	a.Start()
	r.awaitApplied("one", 4)
	testsite.Eventually(t, "work two is deleted", func() error {
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
