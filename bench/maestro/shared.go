package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/bench/bed"
)

// deliverAtRate is deliver at servers that a broker's quota bounds, once they share the consumers. Works are accepted
// by the first server alone, so only delivery has more servers.
func deliverAtRate(ctx context.Context, b *bed.Bed) (params, figures map[string]any, err error) {
	conn, err := pgx.Connect(ctx, b.DSN)
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close(ctx)
	servers := b.Servers()
	if err := bed.Await(ctx, 50*time.Millisecond, func() error {
		var holders int
		err := conn.QueryRow(ctx, `select count(distinct holder) from delivery_slot where holder <> 0`).Scan(&holders)
		if err != nil || holders != servers {
			return fmt.Errorf("%d of %d servers have consumers: %w", holders, servers, err)
		}
		return nil
	}); err != nil {
		return nil, nil, err
	}
	params, figures, err = deliver(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	params["servers"], params["publish_rate"] = servers, *publishRate
	params["broker_latency_ms"] = ms(*brokerLatency)
	return params, figures, nil
}
