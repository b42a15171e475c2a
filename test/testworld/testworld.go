// Package testworld starts, inside of a test, the services of a region that the test needs. Start starts a region:
//
//	w := testworld.Start(t, testworld.Options{Entities: entities, Clusters: []work.Consumer{"mc1"},
//		Adapters: []string{"cl-maestro"}})
//	shop := w.Create("clusters", "Cluster", "shop", `{}`, clm.Labels{"atoll.dev/management-cluster": "mc1"})
//	w.AwaitReconciled("clusters", shop.ID, 1)
//
// StartCLM, StartMaestro and StartAgent start one service, for a test that needs no more. The certificates,
// listeners, broker and log come from the test's testsite.Site.
//
// Each service runs until its Stop or the end of the test, also of a failed one. A service that ends with an error
// fails the test. A test that fails shows what the services logged. Options that few tests need are set by a
// function Change, which gets the service's own options as the test world filled them.
//
// Package localtest starts a whole region as processes. A test in the package of a service that
// testworld imports must be an external one (package x_test), or use testsite only.
package testworld

import (
	"context"
	"fmt"

	"atoll.dev/internal/rest"
	"atoll.dev/test/testsite"
)

// awaitReady waits until all readiness checks of a part succeed.
func awaitReady(s *testsite.Site, part string, ops *rest.Ops) {
	s.T.Helper()
	testsite.Eventually(s.T, part+" is ready", func() error {
		if missing := ops.Missing(context.Background()); len(missing) > 0 {
			return fmt.Errorf("not ready: %v", missing)
		}
		return nil
	})
}
