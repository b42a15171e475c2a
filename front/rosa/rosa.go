// Package rosa is the Platform API: the region's public API in the shape that
// the clients of the ROSA regional platform speak. It serves clusters, node
// pools and credentials to customers, and management clusters, works and
// resource bundles to operators. The contract is package api/platform.
//
// The front translates and decides nothing. Package access identifies the
// caller before a handler runs. The lifecycle manager and Maestro carry out or
// refuse the request. Package front/rosa/request reads the bodies of customers'
// requests by the rules of package cluster; package cluster/progress computes
// phases and events.
//
// The contract's first server had defects that are not repeated: an error of the
// caller stays 4xx, identity is never read from headers, and one work has GET,
// PUT and DELETE.
//
// Package cli composes it. Nothing else imports it.
package rosa

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	"atoll.dev/api/platform"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// Options are what the front needs.
type Options struct {
	// Maestro has the region's management clusters and works. Its source is the
	// source of the works.
	Maestro *maestroclient.Client

	// CLM is the lifecycle manager. It stores clusters, node pools, credentials
	// and management clusters, and must have accounts as tenants. Nil: the region
	// has none; requests for clusters are answered 503.
	CLM *clmclient.Client

	// Identifier proves who sends a request: access.Verifier in a region.
	Identifier access.Identifier

	// Policy decides what identified callers may do; default
	// access.PrivilegedOnly.
	Policy access.Policy

	// Directory has the accounts with their policies, and decides unless there is a Policy. Nil:
	// requests for accounts and policies are answered 503.
	Directory *access.Directory

	// Audit has the region's audit records. Nil: requests for them are answered 503.
	Audit *audit.Chain

	// Denials gets refused requests, for the audit; nil: the log alone has them.
	Denials access.Denials

	// NodeProviders that the region offers, as in cluster.NodePoolRules.
	NodeProviders []cluster.NodeProvider

	// Region is the region's name, as policies may depend on it.
	Region string

	// Signatures make each signature good for one change; nil: a change may be sent
	// again with the same signature.
	Signatures access.Signatures

	// Validity ends the watches of a credential that is disabled; nil: they last until it expires.
	Validity access.Validity

	// Limiter limits identified callers; nil: they have no limits.
	Limiter *access.Limiter

	// Ops answers live and ready. New adds the checks "maestro" and, with a CLM,
	// "clm".
	Ops *rest.Ops

	// Patience is how long a request waits for the certificate of a credential;
	// default 15 s.
	Patience time.Duration

	// CredentialLifetime is the longest lifetime of a credential; default
	// cluster.MaxCredentialLifetime.
	CredentialLifetime time.Duration

	// Placement decides who reads which management cluster hosts a cluster;
	// default PlacementToOperators.
	Placement Placement

	Log     *slog.Logger          // default slog.Default()
	Metrics prometheus.Registerer // gets the metrics of rest.Observe
}

// Placement says which callers read the name of the management cluster that hosts a cluster. No caller reads the names
// or the free capacity of other management clusters with a cluster.
type Placement string

const (
	PlacementToOperators Placement = "operators" // privileged accounts
	PlacementToCustomers Placement = "customers" // the cluster's own account, too
)

// maxBody bounds a request's body.
const maxBody = 4 << 20

// front has the handlers of the API. Those of customers' routes are in
// customerAPI.
type front struct {
	maestro   *maestroclient.Client
	clm       *clmclient.Client
	customers *customerAPI
	directory *access.Directory
	audit     *audit.Chain
	region    string
	ops       *rest.Ops
	openapi   struct{ yaml, json []byte }
}

// New returns the whole API as one handler. It panics when Maestro, Identifier or
// Ops is missing.
func New(o Options) http.Handler {
	if o.Maestro == nil || o.Identifier == nil || o.Ops == nil {
		panic("rosa: Maestro, Identifier and Ops are needed")
	}
	f := newFront(o.Maestro, o.Ops)
	f.clm, f.customers = o.CLM, newCustomerAPI(o.CLM)
	f.customers.placement, f.customers.providers = o.Placement, o.NodeProviders
	f.directory, f.region, f.audit = o.Directory, o.Region, o.Audit
	if o.Policy == nil && o.Directory != nil {
		o.Policy = o.Directory
	}
	if o.CLM != nil {
		o.Ops.Check("clm", (&readiness{check: func(ctx context.Context) error {
			return o.CLM.Ready(ctx, versions)
		}}).ready)
	}
	if o.Patience > 0 {
		f.customers.patience = o.Patience
	}
	if o.CredentialLifetime > 0 {
		f.customers.credentialLifetime = o.CredentialLifetime
	}
	router := access.NewRouter(access.Options{
		Identifier: o.Identifier, Policy: o.Policy, Resources: f, Region: o.Region, Log: o.Log, Metrics: o.Metrics,
		Signatures: o.Signatures, Validity: o.Validity, Limiter: o.Limiter, Denials: o.Denials,
	})
	f.register(router)
	return rest.SecurityHeaders(rest.Observe(rest.Options{
		Log:       o.Log,
		ErrorBody: rest.PlatformError,
		Classify:  classify,
		// AWS's clients show the second; an API gateway sets the third.
		IDHeaders: []string{"X-Operation-Id", "X-Amzn-Requestid", "X-Amz-Apigw-Id"},
		Metrics:   o.Metrics,
	}, rest.Compress(withReadAhead(router))))
}

func newFront(m *maestroclient.Client, ops *rest.Ops) *front {
	f := &front{maestro: m, customers: newCustomerAPI(nil), ops: ops}
	f.openapi.yaml = platform.OpenAPI
	doc, err := yaml.YAMLToJSON(platform.OpenAPI)
	if err != nil {
		panic("rosa: the OpenAPI document is not YAML: " + err.Error())
	}
	f.openapi.json = doc
	if m != nil {
		ops.Check("maestro", (&readiness{check: m.Ready}).ready)
	}
	return f
}

// getOpenAPI serves the document as YAML, or as JSON when the client prefers JSON.
func (f *front) getOpenAPI(w http.ResponseWriter, r *http.Request) error {
	accept := r.Header.Get("Accept")
	w.Header().Set("Vary", "Accept")
	asJSON, asYAML := strings.Index(accept, "application/json"), strings.Index(accept, "yaml")
	if asJSON >= 0 && (asYAML < 0 || asJSON < asYAML) {
		return rest.WriteJSON(w, http.StatusOK, f.openapi.json)
	}
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(f.openapi.yaml)
	return err
}

// readiness checks a dependency at most every 250 ms, because a request for
// readiness needs no identity. Its error does not contain the address of the dependency.
type readiness struct {
	check func(context.Context) error

	mu   sync.Mutex
	at   time.Time
	last error
}

func (c *readiness) ready(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < 250*time.Millisecond {
		return c.last
	}
	err := c.check(ctx)
	if e, ok := errors.AsType[*remote.Error](err); ok {
		err = errors.New(e.Reason)
	}
	if ctx.Err() == nil { // a cancelled check proves nothing
		c.at, c.last = time.Now(), err
	}
	return err
}
