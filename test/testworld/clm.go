package testworld

import (
	"crypto/tls"
	"net"
	"testing"

	"atoll.dev/access"
	"atoll.dev/client/clmclient"
	"atoll.dev/clm"
	"atoll.dev/internal/pgtest"
	"atoll.dev/pki"
)

// CLMOptions say which lifecycle manager StartCLM starts.
type CLMOptions struct {
	Entities string      // YAML; default clm.DefaultEntities
	Tenancy  clm.Tenancy // with it, the plain listener believes the tenant that a caller names
	CA       *pki.CA     // serves with certificates, too; nil: the plain listener only
}

// CLM is a lifecycle manager with a database of its own.
type CLM struct {
	URL    string // plain, without identity
	Secure string // host:port of the listener that asks for certificates; "" without a CA
}

// StartCLM starts a lifecycle manager without a sentinel.
func StartCLM(t testing.TB, o CLMOptions) CLM {
	t.Helper()
	entities := []byte(o.Entities)
	if o.Entities == "" {
		entities = clm.DefaultEntities
	}
	registry, err := clm.ParseRegistry(entities)
	if err != nil {
		t.Fatal(err)
	}
	db, err := clm.Open(t.Context(), clm.DatabaseOptions{DSN: pgtest.DSN(t), Registry: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	plain := Listen(t)
	identity := &clm.Identity{MayCall: func(peer string) bool { return access.MayCall(access.CLM, pki.Name(peer)) },
		Open: true, Trusting: o.Tenancy.Enabled, Tenancy: o.Tenancy}
	options := clm.Options{Database: db, Identify: identity.Identify, Plain: plain}
	started := CLM{URL: "http://" + plain.Addr().String()}
	if o.CA != nil {
		var secure net.Listener = Listen(t)
		started.Secure = secure.Addr().String()
		options.HTTP = secure
		options.HTTPTLS = &tls.Config{
			MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: o.CA.Pool(),
			Certificates: []tls.Certificate{Certificate(t, o.CA, pki.ServiceName("clm"))},
		}
	}
	server, err := clm.New(options)
	if err != nil {
		t.Fatal(err)
	}
	Run(t, "CLM", server.Run)
	return started
}

// Dial returns a client of the plain listener.
func (c CLM) Dial(t testing.TB) *clmclient.Client {
	t.Helper()
	client, err := clmclient.New(clmclient.Options{Endpoint: c.URL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}
