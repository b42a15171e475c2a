package main

import (
	"context"
	"time"

	"encoding/hex"

	"atoll.dev/api/work"
	"atoll.dev/bench/bed"
)

// prepareByCopy makes all works by copies of a sample's rows, while the server is stopped, and begins with agents that
// hold them.
func (f *fleet) prepareByCopy(ctx context.Context) error {
	begun := time.Now()
	if err := f.register(); err != nil {
		return err
	}
	s, err := makeSample(ctx, f.bed, f.size)
	if err != nil {
		return err
	}
	f.bed.Server.Kill()
	if err := s.store(ctx, f.bed.DSN, len(f.want), f.textsOf); err != nil {
		return err
	}
	stored := time.Since(begun)
	for i := range f.want {
		f.want[i] = 1
	}
	if err := f.bed.Server.Start(); err != nil {
		return err
	}
	if err := f.makeAgents(); err != nil {
		return err
	}
	for _, a := range f.agents {
		a.hold(s.life)
	}
	begun = time.Now()
	if err := f.connect(ctx); err != nil {
		return err
	}
	figures := map[string]any{"stored_s": round(stored.Seconds()), "connected_after_s": seconds(begun)}
	if err := f.awaitAgreement(ctx, begun, begun, nil, figures); err != nil {
		return err
	}
	return f.report("begin", figures)
}

// textsOf returns the texts of a copied work.
func (f *fleet) textsOf(i int) rowTexts {
	id := bed.ID(i)
	hash := appliedHash(id, 1)
	return rowTexts{id: id, consumer: bed.Consumer(i % f.clusters), filler: f.bed.Filler(f.size),
		hash: hex.EncodeToString(hash[:])}
}

// prepareByAPI connects agents without works, and makes all works by the API.
func (f *fleet) prepareByAPI(ctx context.Context) error {
	if err := f.register(); err != nil {
		return err
	}
	if err := f.makeAgents(); err != nil {
		return err
	}
	if err := f.connect(ctx); err != nil {
		return err
	}
	begun := time.Now()
	n := len(f.want)
	if err := bed.Many(n, *concurrency, func(i int) error { return f.order(ctx, work.SpecCreate, i) }); err != nil {
		return err
	}
	accepted := time.Since(begun)
	if err := bed.AwaitFor(ctx, *limit, 500*time.Millisecond, func() error { return f.compareAll(ctx) }); err != nil {
		return err
	}
	return f.report("begin", map[string]any{"accepted_per_second": round(float64(n) / accepted.Seconds()),
		"applied_per_second": round(float64(n) / time.Since(begun).Seconds())})
}
