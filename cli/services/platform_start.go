package services

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"atoll.dev/access"
	"atoll.dev/access/audit"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/front/arm"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/rest"
	"atoll.dev/pki"
	"atoll.dev/store"
)

// start starts the subsystems of the Platform API, each after those that it uses, and runs them until ctx ends.
func (f *platformService) start(ctx context.Context, s *System) error {
	settings, err := f.readSettings()
	if err != nil {
		return err
	}
	s.identity = f.identity
	p, err := s.startOps(ctx)
	if err != nil {
		return err
	}
	ports, err := f.openPorts(s)
	if err != nil {
		return err
	}
	if _, err := s.openIdentity(p, pki.ServiceName("platform")); err != nil {
		return err
	}
	db, err := openPlatformDatabase(p.ctx, settings.dsn, s.Log)
	if err != nil {
		return err
	}
	defer db.Close()
	failures := access.NewFailures(s.Log, s.Ops.Registry)
	if err := f.startKeys(p, s, db, failures); err != nil {
		return err
	}
	limiter, err := f.startLimiter(p, db, failures)
	if err != nil {
		return err
	}
	signatures := startUsedSignatures(p, db, failures)
	p.run(ports.gateway.run)
	defer s.closeClients()
	if err := f.dialServices(s); err != nil {
		return err
	}
	authority, err := remote.New("the CA", s.identity.url, s.Identity.ClientTLS("pki"))
	if err != nil {
		return err
	}
	defer authority.Close()
	trail, err := f.startAudit(p, s, db, authority, settings.export)
	if err != nil {
		return err
	}
	identifier, err := f.startIdentifier(p, s)
	if err != nil {
		return err
	}
	if err := f.serve(p, s, ports, platformAPI{
		db: db, identifier: identifier, limiter: limiter, signatures: signatures, trail: trail,
		providers: settings.providers,
	}); err != nil {
		return err
	}
	return p.wait()
}

// platformSettings are the parsed values of flags that are texts or names of files.
type platformSettings struct {
	dsn       string
	export    *audit.Exporter // nil: audit records are not exported
	providers []cluster.NodeProvider
}

// readSettings checks the flags and reads the files that they name.
func (f *platformService) readSettings() (settings platformSettings, err error) {
	switch rosa.Placement(f.placement) {
	case rosa.PlacementToOperators, rosa.PlacementToCustomers:
	default:
		return settings, fmt.Errorf("--placement-shown-to %s is neither operators nor customers", f.placement)
	}
	if f.retention < 24*time.Hour {
		return settings, fmt.Errorf("--audit-retention %s is less than 24h", f.retention)
	}
	if f.drain < 0 || f.drain > maxDrain {
		return settings, fmt.Errorf("--drain-for %s is not between 0s and %s", f.drain, maxDrain)
	}
	if err := checkCredentialLifetime(f.credentialLifetime); err != nil {
		return settings, err
	}
	if settings.export, err = f.export.open(f.region); err != nil {
		return settings, err
	}
	if settings.providers, err = parseProviders(f.providers); err != nil {
		return settings, err
	}
	settings.dsn, err = f.database.Read()
	return settings, err
}

// platformPorts are the open listeners of the Platform API, and the gateway before them.
type platformPorts struct {
	gateway   gateway
	customers net.Listener
	operators net.Listener // nil: customers serves the routes of operators
	azure     net.Listener // nil: the API of Azure is not served
}

// openPorts opens the listeners. They refuse no connection from then on, and are served by serve.
func (f *platformService) openPorts(s *System) (ports platformPorts, err error) {
	if ports.gateway, err = f.gateway.open(s.Log, s.Ops.Registry); err != nil {
		return ports, err
	}
	if ports.customers, err = f.replica.listen(f.addr); err != nil {
		return ports, err
	}
	if f.operators != "" {
		if ports.operators, err = f.replica.listen(f.operators); err != nil {
			return ports, err
		}
	}
	ports.azure, err = f.azure.open(&f.replica)
	return ports, err
}

// startKeys sets s.Keys and starts its parts: the reading of changes, the record of last uses with the deletion of
// expired credentials and link codes, and the sealing with a new seal key.
func (f *platformService) startKeys(p *parts, s *System, db *store.Store, failures *access.Failures) (err error) {
	if s.Keys, err = newKeys(db, f.sealKey, s.Log); err != nil {
		return err
	}
	s.Ops.Check("keys", s.Keys.Ready)
	p.run(s.Keys.Run)
	p.runToEnd(func(ctx context.Context) error { return s.Keys.Keep(ctx, failures) })
	p.runToEnd(func(ctx context.Context) error {
		return s.Keys.Reseal(ctx, failures, observeReseal(s.Ops.Registry))
	})
	return nil
}

// startLimiter starts the limits of identified callers, which the replicas share through the database.
func (f *platformService) startLimiter(p *parts, db *store.Store, failures *access.Failures) (*access.Limiter, error) {
	limiter, err := f.newLimiter()
	if err != nil {
		return nil, err
	}
	p.runToEnd(func(ctx context.Context) error { return limiter.Run(ctx, access.NewSharedBuckets(db), failures) })
	return limiter, nil
}

// startUsedSignatures starts the record of signatures that were used, which the replicas share through the database.
func startUsedSignatures(p *parts, db *store.Store, failures *access.Failures) *access.UsedSignatures {
	signatures := access.NewUsedSignatures(db)
	p.runToEnd(func(ctx context.Context) error { return signatures.Run(ctx, failures) })
	return signatures
}

// dialServices sets s.Maestro and, with --clm, s.CLM.
func (f *platformService) dialServices(s *System) (err error) {
	f.maestro.TLS = s.Identity.ClientTLS("maestro")
	if s.Maestro, err = maestroclient.New(f.maestro); err != nil || f.clmURL == "" {
		return err
	}
	s.CLM, err = clmclient.New(clmclient.Options{Endpoint: f.clmURL, TLS: s.Identity.ClientTLS("clm"),
		Timeout: 5 * time.Second, Budget: 1900 * time.Millisecond})
	return err
}

// closeClients closes s.CLM and s.Maestro where they are set.
func (s *System) closeClients() {
	if s.CLM != nil {
		s.CLM.Close()
	}
	if s.Maestro != nil {
		s.Maestro.Close()
	}
}

// auditTrail is where the Platform API records requests.
type auditTrail struct {
	chain   *audit.Chain
	denials *audit.Denials
}

// startAudit opens the chain of audit records and starts what writes to it and reads it: the gatherer, which copies the
// records of the other services, the denials and, when export is not nil, the export.
func (f *platformService) startAudit(p *parts, s *System, db *store.Store, authority *remote.Service,
	export *audit.Exporter,
) (auditTrail, error) {
	chain, err := audit.OpenChain(p.ctx, db)
	if err != nil {
		return auditTrail{}, err
	}
	gatherer := &audit.Gatherer{Chain: chain, Retention: f.retention, Log: s.Log, Metrics: s.Ops.Registry,
		Sources: map[string]audit.Source{"platform": audit.Own{Store: db}, "maestro": s.Maestro, "pki": caAudit{authority}}}
	if s.CLM != nil {
		gatherer.Sources["clm"] = s.CLM
	}
	denials := audit.NewDenials(chain, s.Log)
	p.runToEnd(gatherer.Run)
	p.runToEnd(denials.Run)
	if export != nil {
		export.Chain, export.Log, export.Metrics = chain, s.Log, s.Ops.Registry
		p.runToEnd(export.Run)
	}
	return auditTrail{chain, denials}, nil
}

// startIdentifier starts what finds the caller of a request from its signature or its proof.
func (f *platformService) startIdentifier(p *parts, s *System) (access.Identifier, error) {
	identifier, runProofs, err := f.proofs.newIdentifier(f.region, s.Keys, s.Log)
	if err != nil {
		return nil, err
	}
	if runProofs != nil {
		p.runToEnd(runProofs)
	}
	return identifier, nil
}

// platformAPI are the subsystems that the routes of the Platform API use, besides those of System.
type platformAPI struct {
	db         *store.Store
	identifier access.Identifier
	limiter    *access.Limiter
	signatures *access.UsedSignatures
	trail      auditTrail
	providers  []cluster.NodeProvider
}

// serve starts the servers of the open ports.
func (f *platformService) serve(p *parts, s *System, ports platformPorts, api platformAPI) error {
	if f.limits.PerSource <= 0 && f.limits.Total > 0 {
		f.limits.PerSource = max(1, f.limits.Total/4)
	}
	f.limits.Metrics = s.Ops.Registry
	handler := f.newHandler(s, ports, api)
	if ports.operators != nil {
		s.serve(p, ports.gateway.withProxyHeaders(ports.operators), "platform operators",
			ports.gateway.withPublicCertificate(s.Identity.PublicServerTLS()),
			rest.Server{Handler: handler, Limits: f.operatorLimits(s), Drain: f.drain})
		handler = access.WithoutOperators(handler)
	}
	if ports.azure != nil {
		server := rest.Server{Limits: f.limits, Drain: f.drain}
		if err := f.azure.start(p, s, ports.azure, api.db, f.region, api.trail.denials, api.signatures, server,
			s.Identity); err != nil {
			return err
		}
	}
	s.serve(p, ports.gateway.withProxyHeaders(ports.customers), "platform",
		ports.gateway.withPublicCertificate(s.Identity.PublicServerTLS()),
		rest.Server{Handler: handler, Limits: f.limits, Drain: f.drain})
	return nil
}

// newHandler returns the handler of all routes, those of operators included.
func (f *platformService) newHandler(s *System, ports platformPorts, api platformAPI) http.Handler {
	handler := rosa.New(rosa.Options{
		Maestro: s.Maestro, CLM: s.CLM, Identifier: api.identifier, Validity: s.Keys,
		Directory: s.Keys.Directory(), Region: f.region, Signatures: api.signatures, Limiter: api.limiter,
		Audit: api.trail.chain, Denials: api.trail.denials, Placement: rosa.Placement(f.placement), Ops: s.Ops,
		Log: s.Log, Metrics: s.Ops.Registry, CredentialLifetime: f.credentialLifetime,
		NodeProviders: api.providers,
	})
	if ports.azure == nil {
		return handler
	}
	return arm.WithOperatorAPIs(arm.OperatorOptions{Store: api.db, CLM: s.CLM, Identifier: api.identifier,
		Region: f.region, Limiter: api.limiter, Denials: api.trail.denials, Log: s.Log}, handler)
}
