// Command platform measures what a signed GET of a cluster through the Platform API costs, and what the lifecycle
// manager's own GET of it costs: processor time of the services and of PostgreSQL for each request, in one run.
//
//	atoll up --detach && eval "$(atoll env)" && go run ./bench/platform
//
// Both are sent to a running region, over TLS and kept connections: the signed ones by a customer's client, the others
// as the Platform API sends them. It makes one cluster and deletes it. The processor time of a region at rest is
// measured, too, and taken off.
//
// Without -rate, each kind is sent as fast as it is answered. The lifecycle manager's own GETs then keep its process
// busy, and a signed GET lets it sleep and wake between requests, which costs it a third more for the same work. With
// -rate all kinds are sent at the same pace.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/bench/bed"
	"atoll.dev/bench/report"
	"atoll.dev/client"
	"atoll.dev/client/clmclient"
	"atoll.dev/pki"
)

var (
	connections = flag.Int("connections", 8, "connections, each with one request at a time")
	duration    = flag.Duration("for", 10*time.Second, "of each measurement")
	rounds      = flag.Int("rounds", 2, "how often both are measured, in turn")
	rate        = flag.Float64("rate", 0, "requests of each kind in a second, 0 for as many as are answered")
	home        = flag.String("home", os.Getenv("ATOLL_HOME"), "the region's home")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "platform:", err)
		os.Exit(1)
	}
}

// credentials returns the credentials in the environment, as `atoll env` prints them.
func credentials() client.Credentials {
	return client.Credentials{AccessKeyID: os.Getenv("AWS_ACCESS_KEY_ID"), Region: os.Getenv("AWS_REGION"),
		SecretAccessKey: os.Getenv("AWS_SECRET_ACCESS_KEY")}
}

func run(ctx context.Context) (err error) {
	region, err := openRegion(*home)
	if err != nil {
		return err
	}
	api, err := client.New(client.Options{Endpoint: os.Getenv("ATOLL_ENDPOINT"), CAFile: os.Getenv("ATOLL_CA"),
		Credentials: credentials()})
	if err != nil {
		return fmt.Errorf("%w; first: eval \"$(atoll env)\"", err)
	}
	defer api.Close()
	me, err := api.WhoAmI(ctx)
	if err != nil {
		return err
	}
	made, err := api.CreateCluster(ctx, platform.ClusterRequest{Name: fmt.Sprintf("bench-%d", time.Now().Unix())})
	if err != nil {
		return err
	}
	defer func() {
		gone := api.DeleteCluster(context.WithoutCancel(ctx), client.ClusterID(made.ID), client.DeleteOptions{})
		err = errors.Join(err, gone)
	}()
	select { // the cluster becomes ready meanwhile
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(*duration):
	}
	callers, err := newCallers(region, string(me.AccountID), made.ID)
	if err != nil {
		return err
	}
	var sums [3]measurement
	for range *rounds {
		for i, c := range callers {
			m, err := c.measure(ctx, region)
			if err != nil {
				return err
			}
			sums[i] = sums[i].plus(m)
		}
	}
	return report.Line(os.Stdout, "platform/get", map[string]any{"connections": *connections,
		"seconds": duration.Seconds(), "rounds": *rounds, "rate": *rate}, figures(sums))
}

// figures are those of the lifecycle manager's own GETs, of those that the Platform API sends, which have the reports
// of adapters, too, and of signed ones.
func figures(of [3]measurement) map[string]any {
	own, reports, signed := of[0], of[1], of[2]
	f := map[string]any{"ratio": signed.perRequest(signed.total()) / own.perRequest(own.total()),
		"ratio_with_reports": signed.perRequest(signed.total()) / reports.perRequest(reports.total())}
	for name, m := range map[string]measurement{"own": own, "reports": reports, "signed": signed} {
		f[name+"_requests_per_second"] = float64(m.requests) / m.elapsed.Seconds()
		f[name+"_cpu_ms_per_request"] = m.perRequest(m.total())
		for i, part := range parts {
			f[name+"_"+part+"_ms"] = m.perRequest(m.used[i])
		}
	}
	return f
}

// caller sends one kind of GET again and again.
type caller struct {
	http *http.Client
	url  string
	sign func(*http.Request) error
}

// newCallers returns the callers of the three kinds of GETs of a cluster that figures compares.
func newCallers(r *region, account, id string) (callers [3]*caller, err error) {
	ca, err := pki.OpenCA(r.home.CADir())
	if err != nil {
		return callers, err
	}
	cert, key, err := bed.Certificate(ca, pki.ServiceName("platform"))
	if err != nil {
		return callers, err
	}
	config, err := bed.ClientTLS(ca.CertPEM(), cert, key, "clm")
	if err != nil {
		return callers, err
	}
	over := func(config *tls.Config) *http.Client {
		return &http.Client{Transport: &http.Transport{TLSClientConfig: config, MaxIdleConnsPerHost: *connections,
			DisableCompression: true}, Timeout: time.Minute}
	}
	by := credentials()
	own := fmt.Sprintf("https://127.0.0.1:%d/api/hyperfleet/v1/clusters/%s", r.state.Ports["clm-http"], id)
	asTenant := func(r *http.Request) error { r.Header.Set(clmclient.TenantHeader, account); return nil }
	return [3]*caller{
		{http: over(config), url: own, sign: asTenant},
		{http: over(config), url: own + "?statuses=true", sign: asTenant},
		{http: over(&tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS13}),
			url:  strings.TrimSuffix(os.Getenv("ATOLL_ENDPOINT"), "/") + "/api/v0/clusters/" + id,
			sign: func(r *http.Request) error { return client.Sign(r, nil, by, time.Now()) }},
	}, nil
}

func (c *caller) get(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url, nil)
	if err != nil {
		return err
	}
	if err := c.sign(r); err != nil {
		return err
	}
	res, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s %.300s", c.url, res.Status, data)
	}
	return err
}

// load sends GETs on all connections for a time, at most at the rate, and returns how many.
func (c *caller) load(ctx context.Context, d time.Duration) (int, error) {
	begun := time.Now()
	var begins, sent atomic.Int64
	err := bed.Many(*connections, *connections, func(int) error {
		for time.Since(begun) < d {
			if *rate > 0 {
				turn := time.Duration(float64(begins.Add(1)) / *rate * float64(time.Second))
				time.Sleep(time.Until(begun.Add(min(turn, d))))
			}
			if err := c.get(ctx); err != nil {
				return err
			}
			sent.Add(1)
		}
		return nil
	})
	return int(sent.Load()), err
}
