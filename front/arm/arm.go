// Package arm is the region's API for Azure: a resource provider of Azure Resource Manager (ARM) for
// hosted clusters, in the shape of Microsoft.RedHatOpenShift. ARM's gateway calls it; Azure's SDKs, az
// and Terraform's azurerm call ARM. A cluster that is made here is a Cluster of the lifecycle manager, as
// one that the Platform API makes: the front translates and decides nothing about it.
//
// Requests for changes are accepted with an operation (package ops) in one transaction of the database
// platform; decision 105 says how the documents there and the lifecycle manager stay equal. The fields of
// bodies, for all api-versions, are in tables (fields.go). docs/azure.md lists what is served.
//
// Package cli composes it. Nothing else imports it.
package arm

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/access"
	"atoll.dev/access/policy"
	"atoll.dev/client/clmclient"
	"atoll.dev/internal/rest"
	"atoll.dev/ops"
	"atoll.dev/release"
	"atoll.dev/store"
)

// Mode is how strictly the front follows ARM's contract for resource providers.
type Mode string

// Modes. The compatible mode answers as ARO HCP does, where that differs from ARM's contract.
const (
	Compatible Mode = "compatible"
	Strict     Mode = "strict"
)

// Options are what the front needs; all but those with a default must be set.
type Options struct {
	Store        *store.Store // of the database platform, opened with StoreKinds too
	Keys         *access.KeyStore
	CLM          *clmclient.Client
	Certificates *Certificates
	Tokens       *Tokens // nil: only certificates prove that a sender is ARM

	Location   string        // the region's name in Azure
	Holder     string        // names this process; unique among processes
	Mode       Mode          // default Compatible
	RetryAfter time.Duration // when a client asks again about an operation; default 10 s
	// Referers are the hosts that a Referer may name: URLs in answers then begin with it.
	Referers []string
	Notifier *ops.Notifier // nil: no notifications
	Limiter  *access.Limiter
	Denials  access.Denials
	Log      *slog.Logger          // default slog.Default()
	Metrics  prometheus.Registerer // gets the metrics of requests
}

// Front is the API, and the work on its operations.
type Front struct {
	f       *front
	handler http.Handler
}

type front struct {
	store        *store.Store
	keys         *access.KeyStore
	clm          *clmclient.Client
	certificates *Certificates
	releases     *release.Cache
	tokens       *Tokens
	engine       *ops.Engine
	orphans      orphanQueue
	notifier     *ops.Notifier
	location     string
	mode         Mode
	retryAfter   time.Duration
	referers     []string
	log          *slog.Logger
}

// New returns the front. It panics when a needed option is missing.
func New(o Options) *Front {
	if o.Store == nil || o.Keys == nil || o.CLM == nil || o.Certificates == nil || o.Location == "" || o.Holder == "" {
		panic("arm: Store, Keys, CLM, Certificates, Location and Holder are needed")
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = retryAfter
	}
	if o.Mode == "" {
		o.Mode = Compatible
	}
	f := &front{store: o.Store, keys: o.Keys, clm: o.CLM, certificates: o.Certificates, tokens: o.Tokens,
		notifier: o.Notifier, releases: release.NewCache(o.CLM), location: o.Location, mode: o.Mode, retryAfter: o.RetryAfter,
		referers: o.Referers, log: o.Log, orphans: make(orphanQueue, maxWaitingCandidates)}
	f.engine = ops.NewEngine(ops.Options{Store: o.Store, Worker: f, RecordEnd: f.recordEnd, Holder: o.Holder,
		Notifier: o.Notifier, NotificationOf: f.notificationOf, Log: o.Log})
	router := access.NewRouter(access.Options{Identifier: f, Policy: decider{o.Keys.Directory()}, Resources: resources{},
		Region: o.Location, Limiter: o.Limiter, Denials: o.Denials, Log: o.Log, Metrics: o.Metrics})
	f.register(router)
	handler := rest.Observe(rest.Options{Log: o.Log, ErrorBody: errorBodyOf, Classify: classify,
		IDHeaders: []string{"X-Ms-Request-Id"}, Metrics: o.Metrics}, router)
	return &Front{f: f, handler: f.prepareRequest(handler)}
}

// ServeHTTP serves the API.
func (a *Front) ServeHTTP(w http.ResponseWriter, r *http.Request) { a.handler.ServeHTTP(w, r) }

// Run works on the operations and follows the lifecycle manager until ctx ends.
func (a *Front) Run(ctx context.Context) error {
	ctx = store.InBackground(store.WithActor(ctx, store.Actor{Principal: "system:platform"}))
	var group sync.WaitGroup
	group.Go(func() { _ = a.f.engine.Run(ctx) }) // it ends with ctx only
	for _, kind := range []store.Kind{kindCluster, kindPool} {
		begun := make(chan struct{}, 1)
		group.Go(func() { a.f.follow(ctx, collectionOf(kind), begun) })
		group.Go(func() { a.f.compareDocuments(ctx, kind, begun) })
	}
	group.Go(func() { a.f.deleteOrphans(ctx) })
	group.Go(func() { a.f.follow(ctx, credentials, nil) })
	group.Go(func() {
		if err := a.f.certificates.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			a.f.log.Warn("reading ARM's certificates ended", "error", err)
		}
	})
	if a.f.tokens != nil {
		group.Go(func() { _ = a.f.tokens.Run(ctx) }) // it ends with ctx only
	}
	group.Wait()
	return context.Cause(ctx)
}

// Paths of the routes, in lower case.
const (
	subscriptionPath = "/subscriptions/{sub}"
	providerPath     = "/providers/microsoft.redhatopenshift"
	groupPath        = subscriptionPath + "/resourcegroups/{rg}" + providerPath
	clustersPath     = "/hcpopenshiftclusters"
	clusterPath      = groupPath + clustersPath + "/{cluster}"
	poolsPath        = clusterPath + "/nodepools"
	poolPath         = poolsPath + "/{pool}"
	classicPath      = "/openshiftclusters"
	authsPath        = clusterPath + "/externalauths"
	rpOperationsPath = providerPath + "/operations"
	locationPath     = subscriptionPath + providerPath + "/locations/{location}"
)

// register registers every route with the action that it takes.
func (f *front) register(router *access.Router) {
	handle := func(method, path string, action access.Action, kind policy.Kind, h rest.Handler) {
		router.Handle(access.Route{Method: method, Path: path, Action: action, Kind: access.ResourceKind(kind),
			Audience: access.Customers}, h)
	}
	v := f.withVersion
	for path, kind := range map[string]store.Kind{clusterPath: kindCluster, poolPath: kindPool} {
		of, what := policy.Cluster, access.Action("Cluster")
		if kind == kindPool {
			of, what = policy.NodePool, "NodePool"
		}
		handle("GET", path, "Describe"+what, of, v(f.observed(f.get(kind))))
		handle("DELETE", path, "Delete"+what, of, v(f.observed(f.delete(kind))))
		handle("PATCH", path, "Update"+what, of, v(f.observed(f.put(kind))))
		// A PUT creates or changes; its handler decides about the change when it has read the resource.
		handle("PUT", path, "List"+what+"s", policy.Account, v(f.observed(f.put(kind))))
	}
	handle("GET", groupPath+clustersPath, "ListClusters", policy.Account, v(f.list(kindCluster)))
	handle("GET", subscriptionPath+providerPath+clustersPath, "ListClusters", policy.Account, v(f.list(kindCluster)))
	handle("GET", poolsPath, "ListNodePools", policy.Account, v(f.list(kindPool)))
	handle("GET", authsPath, "DescribeCluster", policy.Cluster, v(f.list(kindAuth)))
	handle("GET", authsPath+"/{auth}", "DescribeCluster", policy.Cluster, v(f.get(kindAuth)))
	for _, method := range []string{"PUT", "PATCH"} {
		handle(method, authsPath+"/{auth}", "UpdateCluster", policy.Cluster, v(f.put(kindAuth)))
	}
	handle("DELETE", authsPath+"/{auth}", "UpdateCluster", policy.Cluster, v(f.delete(kindAuth)))
	handle("POST", clusterPath+"/requestadmincredential", "CreateCredential", policy.Cluster,
		v(f.requestAdminCredential))
	handle("POST", clusterPath+"/revokecredentials", "ListCredentials", policy.Cluster, v(f.revokeCredentials))
	// The handler decides about each resource of the deployment.
	handle("POST", groupPath+"/deployments/{deployment}/preflight", "ListClusters", policy.Account,
		f.withSubscription(f.preflight))
	for segment, read := range map[string]func(*exchange) ([]map[string]any, error){
		versionsSegment: f.versionResources, roleSetsSegment: f.roleSetResources} {
		path := locationPath + "/" + strings.ToLower(segment)
		handle("GET", path, actionReadOffers, policy.Account, v(f.listOffered(read)))
		handle("GET", path+"/{name}", actionReadOffers, policy.Account, v(f.getOffered(read, segment)))
	}
	f.registerClassic(handle)
	handle("GET", rpOperationsPath, actionListOperations, policy.Account, f.withSubscription(f.listRPOperations))
	handle("GET", locationPath+"/hcpoperationstatuses/{operation}", actionReadOperation, policy.Account,
		v(f.getOperationStatus))
	handle("GET", locationPath+"/hcpoperationresults/{operation}", actionReadOperation, policy.Account,
		v(f.getOperationResult))
	handle("PUT", subscriptionPath, actionPutSubscription, policy.Account, f.withSubscription(f.putSubscription))
	handle("GET", subscriptionPath, actionGetSubscription, policy.Account, f.withSubscription(f.getSubscription))
}

// registerClassic registers the routes of ARO classic.
func (f *front) registerClassic(handle func(method, path string, action access.Action, kind policy.Kind,
	h rest.Handler)) {
	first, path := classic20191231, groupPath+classicPath+"/{cluster}"
	handle("GET", subscriptionPath+providerPath+classicPath, "ListClusters", policy.Account, f.withClassicVersion(first,
		f.listClassic))
	handle("GET", groupPath+classicPath, "ListClusters", policy.Account, f.withClassicVersion(first, f.listClassic))
	handle("GET", path, "ListClusters", policy.Account, f.withClassicVersion(first, f.answerClassicNotFound))
	handle("PUT", path, "ListClusters", policy.Account, f.withClassicVersion(first, f.putClassic)) // it creates nothing
	handle("PATCH", path, "ListClusters", policy.Account, f.withClassicVersion(first, f.answerClassicNotFound))
	handle("DELETE", path, "ListClusters", policy.Account, f.withClassicVersion(first, f.deleteClassic))
	handle("POST", path+"/listcredentials", "ListClusters", policy.Account,
		f.withClassicVersion(first, f.answerClassicNotFound))
	handle("POST", path+"/listadmincredentials", "ListClusters", policy.Account, f.withClassicVersion(classic20210901,
		f.answerClassicNotFound))
	versions := locationPath + "/" + strings.ToLower(classicVersionsSegment)
	handle("GET", versions, actionReadOffers, policy.Account, f.withClassicVersion(classic20220904,
		f.listOffered(f.classicVersionResources)))
	handle("GET", versions+"/{name}", actionReadOffers, policy.Account, f.withClassicVersion(classic20220904,
		f.getOffered(f.classicVersionResources, classicVersionsSegment)))
}

var _ ops.Worker = (*front)(nil)
