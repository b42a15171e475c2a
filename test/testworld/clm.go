package testworld

import (
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/clm"
	"atoll.dev/fleet"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/sentinel"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// CLMOptions select the lifecycle manager that StartCLM starts.
type CLMOptions struct {
	DSN      string             // default: a new database
	Entities string             // YAML; default clm.DefaultEntities
	Fleet    bool               // it places clusters, as in a region
	Tenancy  clm.Tenancy        // with it, the plain listener believes the tenant that a caller names
	Change   func(*clm.Options) // last, before the server starts; may be nil
	Tracer   pgx.QueryTracer    // gets each statement of the database; may be nil
}

// CLM is a lifecycle manager without a sentinel.
type CLM struct {
	URL      string // plain, without identity
	Secure   string // host:port of the listener that asks for certificates
	Database *clm.Database

	site *testsite.Site
}

// StartCLM starts a lifecycle manager. It answers when StartCLM returns.
func StartCLM(s *testsite.Site, o CLMOptions) *CLM {
	s.T.Helper()
	if o.DSN == "" {
		o.DSN = pgtest.DSN(s.T)
	}
	entities := []byte(o.Entities)
	if o.Entities == "" {
		entities = clm.DefaultEntities
	}
	registry, err := clm.ParseRegistry(entities)
	if err != nil {
		s.T.Fatal(err)
	}
	log := s.Log.With("part", "CLM")
	opening := clm.DatabaseOptions{DSN: o.DSN, Registry: registry, Logger: log,
		Adapt: func(options store.Options) store.Options {
			options.Tracer = o.Tracer
			return options.Patient()
		}}
	if o.Fleet {
		opening.Kinds = fleet.Kinds()
	}
	db, err := clm.Open(s.T.Context(), opening)
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(db.Close)
	plain, secure := testsite.Listen(s.T), testsite.Listen(s.T)
	identity := &clm.Identity{MayCall: func(peer string) bool { return access.MayCall(access.CLM, pki.Name(peer)) },
		Open: true, Trusting: o.Tenancy.Enabled, Tenancy: o.Tenancy}
	options := clm.Options{Database: db, Identify: identity.Identify, Plain: plain, HTTP: secure,
		HTTPTLS: s.ServerTLS("clm"), Logger: log, ShutdownGrace: time.Second}
	if o.Fleet {
		f, err := fleet.New(s.T.Context(), fleet.Options{Store: db.Store, Feed: db.Feed, Logger: log})
		if err != nil {
			s.T.Fatal(err)
		}
		options.Extension = f
		testsite.Run(s.T, "fleet", f.Run)
	}
	if o.Change != nil {
		o.Change(&options)
	}
	server, err := clm.New(options)
	if err != nil {
		s.T.Fatal(err)
	}
	testsite.Run(s.T, "CLM", server.Run)
	return &CLM{URL: "http://" + plain.Addr().String(), Secure: secure.Addr().String(), Database: db, site: s}
}

// Dial returns a client of the plain listener, which needs no identity.
func (c *CLM) Dial() *clmclient.Client {
	c.site.T.Helper()
	return c.dial(clmclient.Options{Endpoint: c.URL})
}

// DialAs returns a client with the certificate of one of the region's services.
func (c *CLM) DialAs(service string) *clmclient.Client {
	c.site.T.Helper()
	return c.dial(clmclient.Options{Endpoint: "https://" + c.Secure,
		TLS: c.site.ClientTLS(pki.ServiceName(service), "clm")})
}

func (c *CLM) dial(o clmclient.Options) *clmclient.Client {
	c.site.T.Helper()
	client, err := clmclient.New(o)
	if err != nil {
		c.site.T.Fatal(err)
	}
	c.site.T.Cleanup(client.Close)
	return client
}

// startSentinel starts a sentinel for all kinds of the lifecycle manager that have required adapters, and waits until
// it is ready.
func (c *CLM) startSentinel(broker *testsite.Broker) {
	s := c.site
	s.T.Helper()
	ops := rest.NewOps()
	o := sentinel.Options{
		Store: c.Database.Store, Feed: c.Database.Feed, Kinds: SentinelKinds(c.Database.Registry),
		Requests: clm.RequestKind, Name: "s1", Logger: s.Log.With("part", "sentinel"), Ops: ops,
		Bus: broker.ClientOptions(pki.ServiceName("clm")),
	}
	run, err := sentinel.New(s.T.Context(), o)
	if err != nil {
		s.T.Fatal(err)
	}
	testsite.Run(s.T, "the sentinel", run.Run)
	awaitReady(s, "the sentinel", ops)
}

// SentinelKinds returns the kinds of a registry that have required adapters.
func SentinelKinds(registry *clm.Registry) (kinds []sentinel.Kind) {
	for _, e := range registry.Entities() {
		if len(e.RequiredAdapters) > 0 {
			kinds = append(kinds, sentinel.Kind{Kind: store.Kind(e.Kind), Plural: e.Plural,
				Parent: store.Kind(e.ParentKind)})
		}
	}
	return kinds
}
