package rosa_test

import (
	"testing"

	"atoll.dev/client/maestroclient"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

// behind has the services behind the front: a Maestro with its broker and database, which a test may stop and start.
type behind struct {
	site    *testsite.Site
	broker  *testsite.Broker
	maestro *testworld.Maestro
}

// startMaestro starts a Maestro with a broker and returns a client of it as the front has it.
func startMaestro(t testing.TB) *maestroclient.Client {
	t.Helper()
	return startBehind(t, "").client()
}

// startBehind starts a Maestro with a broker, on this database or, if dsn is "", on a new one.
func startBehind(t testing.TB, dsn string) *behind {
	t.Helper()
	b := &behind{site: testsite.New(t)}
	b.broker = b.site.StartBroker()
	b.maestro = testworld.StartMaestro(b.site, testworld.MaestroOptions{DSN: dsn, Broker: b.broker})
	return b
}

// client returns a client of Maestro as the front has it.
func (b *behind) client() *maestroclient.Client { return b.maestro.Dial("platform", "") }
