package rosa_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/internal/pgtest"
	"atoll.dev/internal/postgres"
)

// BenchmarkPostWork posts works one after the other, and several at once: signed,
// over TLS, to a database that waits for its disk.
func BenchmarkPostWork(b *testing.B) {
	pg := pgtest.StartServer(b)
	behind := startBehind(b, pg.DSN("postgres", postgres.Superuser))
	endpoint, ca := platformAPI(b, behind.client())
	p, err := client.New(client.Options{
		Endpoint: endpoint, CAFile: ca, Budget: 5 * time.Second,
		Credentials: client.Credentials{AccessKeyID: operator.AccessKeyID, SecretAccessKey: operator.Secret,
			Region: region},
	})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := p.RegisterManagementCluster(b.Context(), platform.ManagementClusterRequest{Name: "m"}); err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	post := func(b *testing.B) {
		if _, err := p.CreateWork(b.Context(), "m", manifestWork(fmt.Sprint("w-", n.Add(1)), "1", 1)); err != nil {
			b.Error(err)
		}
	}
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			post(b)
		}
	})
	b.Run("many", func(b *testing.B) {
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				post(b)
			}
		})
	})
}
