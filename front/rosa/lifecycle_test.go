package rosa_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"atoll.dev/access"
	apiclm "atoll.dev/api/clm"
	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/clm"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/pgtest"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

// lifecycle is a front with a real lifecycle manager that has a region's kinds and
// tenancy. The test reports as the adapters do.
type lifecycle struct {
	t            *testing.T
	dsn          string
	endpoint, ca string
	system       *clmclient.Client // as adapters call
	front        *clmclient.Client // as the front calls
	maestro      *maestroclient.Client
	log          *logged
	work         *workLog // of the lifecycle manager, for each request
}

// watchesPerCaller is the lifecycle manager's limit of open watches.
const watchesPerCaller = 8

func startLifecycle(t *testing.T) *lifecycle {
	t.Helper()
	l := &lifecycle{t: t, dsn: pgtest.DSN(t), log: &logged{}, work: newWorkLog()}
	manager := testworld.StartCLM(testsite.New(t), testworld.CLMOptions{
		DSN: l.dsn, Tracer: l.work,
		Tenancy: clm.Tenancy{Enabled: true, Dimensions: []clm.Dimension{{Header: clmclient.TenantHeader,
			Key: "account", Required: true}}},
		Change: func(o *clm.Options) { o.WatchesPerCaller = watchesPerCaller },
	})
	l.system = manager.DialAs("adapter")
	l.createReleases("1.36.2", "1.36.3")
	l.front = manager.DialAs("platform")
	var err error
	if l.maestro, err = maestroclient.New(maestroclient.Options{HTTP: "http://127.0.0.1:1",
		GRPC: "127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.maestro.Close() })
	l.endpoint, l.ca = platformOver(t, rosa.Options{Maestro: l.maestro, CLM: l.front,
		Log: slog.New(slog.NewJSONHandler(l.log, nil))})
	return l
}

// logged is a log that several goroutines write.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (g *logged) Write(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.Write(p)
}

func (g *logged) String() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.text.String()
}

func (l *lifecycle) as(key access.Key) *client.Client {
	l.t.Helper()
	return clientOf(l.t, l.endpoint, l.ca, key)
}

// once returns a client that sends each request once.
func (l *lifecycle) once(key access.Key) *client.Client {
	l.t.Helper()
	p, err := client.New(client.Options{
		Endpoint: l.endpoint, CAFile: l.ca, Budget: time.Millisecond,
		Credentials: client.Credentials{AccessKeyID: key.AccessKeyID, SecretAccessKey: key.Secret, Region: region},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(p.Close)
	return p
}

// createReleases creates the Versions of the region.
func (l *lifecycle) createReleases(versions ...string) {
	l.t.Helper()
	ctx := l.t.Context()
	channel, err := l.system.Create(ctx, "channels", apiclm.ResourceCreate{Kind: "Channel", Name: "stable",
		Spec: json.RawMessage(`{}`)}, "")
	if err != nil {
		l.t.Fatal(err)
	}
	for _, v := range versions {
		_, err := l.system.Create(ctx, clmclient.Collection("channels").Below(channel.ID, "versions"),
			apiclm.ResourceCreate{
				Kind: "Version", Name: strings.ReplaceAll(v, ".", "-"), Spec: fmt.Appendf(
					nil, `{"version":%q,"image":"atoll.dev/release:%s"}`, v, v),
			}, "")
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// report sends an adapter's report on a resource. Conditions are
// "Type=Status:Reason:message".
func (l *lifecycle) report(in clmclient.Collection, id, adapter, data string, conditions ...string) {
	l.t.Helper()
	ctx := l.t.Context()
	r, err := l.system.Get(ctx, in, id, "")
	if err != nil {
		l.t.Fatal(err)
	}
	report := apiclm.AdapterStatusCreate{Adapter: adapter, ObservedGeneration: r.Generation, ObservedTime: time.Now(),
		Data: json.RawMessage(data)}
	given := map[string]bool{}
	for _, c := range conditions {
		kind, value, _ := strings.Cut(c, "=")
		parts := strings.SplitN(value+"::", ":", 3)
		given[kind] = true
		report.Conditions = append(report.Conditions, apiclm.ReportedCondition{Type: kind, Status: parts[0],
			Reason: optional(parts[1]), Message: optional(strings.TrimRight(parts[2], ":"))})
	}
	for _, kind := range []string{"Available", "Applied", "Health"} {
		if !given[kind] {
			report.Conditions = append(report.Conditions, apiclm.ReportedCondition{Type: kind, Status: "True"})
		}
	}
	if taken, err := l.system.Report(ctx, in, id, report); err != nil || !taken {
		l.t.Fatalf("the report of %s was taken: %v, %v", adapter, taken, err)
	}
}

// up sends the reports that make a cluster Ready.
func (l *lifecycle) up(id string) {
	l.t.Helper()
	l.report("clusters", id, "placement", `{"state":"Placed","management_cluster":"management-01"}`,
		"Available=True:Placed:on management cluster management-01")
	l.report("clusters", id, "pull-secret", `{}`)
	l.report("clusters", id, "hosted-cluster", fmt.Sprintf(
		`{"target_cluster":"management-01","endpoint":{"host":"127.0.0.1","port":30001},"version":"1.36.3","power":"Awake",
		"stages":{"ordered":%[1]q,"plane_starting":%[1]q,"api_serving":%[1]q,"ready":%[1]q}}`, time.Now().UTC().Format(time.RFC3339Nano)), "Available=True:AsExpected:the control plane serves")
}

// gone sends the reports that finalize a deleted resource.
func (l *lifecycle) gone(in clmclient.Collection, id string, adapters ...string) {
	l.t.Helper()
	for _, a := range adapters {
		l.report(in, id, a, `{}`, "Available=False:Deleting", "Finalized=True:Gone")
	}
}

func named(name string, spec string) platform.ClusterRequest {
	r := platform.ClusterRequest{Name: name}
	if spec != "" {
		r.Spec = &platform.ClusterSpec{}
		if err := json.Unmarshal([]byte(spec), r.Spec); err != nil {
			panic(err)
		}
	}
	return r
}
