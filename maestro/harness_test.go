package maestro

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"atoll.dev/api/cloudevents"
	api "atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// patience bounds every wait of the tests; nothing takes a fraction of it
// unless it is broken.
const patience = 3 * time.Minute

// site is what servers and agents of a test share: certificates, a log, a database, a broker.
type site struct {
	*testsite.Site
	dsn    string
	broker *testsite.Broker
}

func newSite(t testing.TB) *site { return newSiteOn(t, pgtest.DSN(t)) }

func newSiteOn(t testing.TB, dsn string) *site {
	t.Helper()
	s := &site{Site: testsite.New(t), dsn: dsn}
	s.broker = s.StartBroker()
	return s
}

// newMosquittoSite is newSite with a broker that is not ours. maxPacket of 0 is
// MQTT's own limit.
func newMosquittoSite(t testing.TB, maxPacket int) *site {
	t.Helper()
	s := &site{Site: testsite.New(t), dsn: pgtest.DSN(t)}
	s.broker = s.StartMosquitto(maxPacket)
	return s
}

// instance is one running server.
type instance struct {
	t      testing.TB
	site   *site
	server *Server
	url    string
	target string
	http   *http.Client
	end    func()
	reg    *prometheus.Registry
	ops    *rest.Ops
}

// start starts a server and waits until it is ready.
func (s *site) start(change ...func(*Options)) *instance {
	s.T.Helper()
	i := s.startUnready(change...)
	i.awaitReady()
	return i
}

func (s *site) startUnready(change ...func(*Options)) *instance {
	s.T.Helper()
	ops := rest.NewOps()
	o := Options{
		DSN: s.dsn, Adapt: store.Options.Patient,
		Broker: s.broker.Address, BrokerTLS: s.ClientTLS(pki.ServiceName("maestro"), "broker"),
		HTTP: testsite.Listen(s.T), GRPC: testsite.Listen(s.T),
		HTTPTLS: s.ServerTLS("maestro"), GRPCTLS: s.ServerTLS("maestro"),
		MayCall: func(peer string) bool { return strings.HasPrefix(peer, "system:") || peer == "operator" },
		Logger:  s.Log, Metrics: ops.Registry, Ops: ops, ShutdownGrace: 2 * time.Second,
	}
	for _, f := range change {
		f(&o)
	}
	server, err := New(context.Background(), o)
	if err != nil {
		s.T.Fatal(err)
	}
	i := &instance{
		t: s.T, site: s, server: server, url: "https://" + o.HTTP.Addr().String(), target: o.GRPC.Addr().String(),
		http: s.client(pki.ServiceName("platform-api")), reg: ops.Registry, ops: ops,
	}
	i.end = testsite.Run(s.T, "Maestro", server.Run)
	return i
}

func (s *site) client(name pki.Name) *http.Client {
	transport := &http.Transport{TLSClientConfig: s.ClientTLS(name, "maestro"), MaxIdleConnsPerHost: 64}
	s.T.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

func (i *instance) awaitReady() {
	i.t.Helper()
	eventually(i.t, "the server is ready", func() error {
		if missing := i.ops.Missing(context.Background()); len(missing) > 0 {
			return fmt.Errorf("missing: %v", missing)
		}
		return nil
	})
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	testsite.Eventually(t, what, check)
}

// answer is an answer of REST.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
}

func (i *instance) try(method, path, body string, header ...string) (answer, error) {
	req, err := http.NewRequest(method, i.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set(api.ExtensionsHeader, "true")
	for n := 0; n+1 < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	resp, err := i.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, data}, err
}

func (i *instance) call(method, path, body string, header ...string) answer {
	i.t.Helper()
	a, err := i.try(method, path, body, header...)
	if err != nil {
		i.t.Fatalf("%s %s: %v", method, path, err)
	}
	return a
}

// want calls and insists on a status.
func (i *instance) want(status int, method, path, body string, header ...string) answer {
	i.t.Helper()
	a := i.call(method, path, body, header...)
	if a.status != status {
		i.t.Fatalf("%s %s: status %d instead of %d: %s", method, path, a.status, status, a.body)
	}
	return a
}

func (i *instance) consumer(name string) api.Consumer {
	i.t.Helper()
	var c api.Consumer
	i.want(http.StatusCreated, "POST", "/api/maestro/v1/consumers", `{"name":"`+name+`"}`).into(i.t, &c)
	return c
}

func (i *instance) bundle(id work.ID) api.ResourceBundle {
	i.t.Helper()
	var b api.ResourceBundle
	i.want(http.StatusOK, "GET", "/api/maestro/v1/resource-bundles/"+string(id), "").into(i.t, &b)
	return b
}

// dial returns a gRPC client with the certificate of name.
func (i *instance) dial(name pki.Name) cloudevents.CloudEventServiceClient {
	i.t.Helper()
	conn, err := grpc.NewClient(i.target, grpc.WithTransportCredentials(
		credentials.NewTLS(i.site.ClientTLS(name, "maestro"))))
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { conn.Close() })
	return cloudevents.NewCloudEventServiceClient(conn)
}
