package services

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"atoll.dev/access"
	"atoll.dev/front/arm"
	"atoll.dev/store"
)

// openPlatformDatabase opens the platform database, which the fronts share.
func openPlatformDatabase(ctx context.Context, dsn string, log *slog.Logger) (*store.Store, error) {
	st, err := store.Open(ctx, store.Options{DSN: dsn, Kinds: append(access.StoreKinds(), arm.StoreKinds()...),
		Migrations: access.Migrations(), Logger: log})
	if err != nil {
		return nil, fmt.Errorf("platform database: %w", err)
	}
	return st, nil
}

// OpenKeys opens the platform database and the keys in it.
func OpenKeys(ctx context.Context, dsn, sealKey string, log *slog.Logger) (*access.KeyStore, func(), error) {
	st, err := openPlatformDatabase(ctx, dsn, log)
	if err != nil {
		return nil, nil, err
	}
	keys, err := newKeys(st, sealKey, log)
	if err != nil {
		st.Close()
		return nil, nil, err
	}
	return keys, st.Close, nil
}

// newKeys returns the keys in the platform database.
func newKeys(st *store.Store, sealKey string, log *slog.Logger) (*access.KeyStore, error) {
	sealer, err := access.OpenSealer(sealKey)
	if err != nil {
		return nil, err
	}
	return access.NewKeyStore(st, sealer, access.CacheObserver{Unusable: func(id string, err error) {
		log.Warn("key pair unusable", "access_key_id", id, "error", err)
	}}), nil
}

// observeReseal returns an observer that shows as metrics what Reseal has done.
func observeReseal(metrics prometheus.Registerer) func(access.ResealProgress) {
	others := prometheus.NewGauge(prometheus.GaugeOpts{Name: "platform_seal_other_keys",
		Help: "Key pairs, links and link codes that are sealed with another key than the first of --seal-key."})
	resealed := prometheus.NewCounter(prometheus.CounterOpts{Name: "platform_seal_resealed_total",
		Help: "Key pairs, links and link codes that this process has sealed again with the first key of --seal-key."})
	metrics.MustRegister(others, resealed)
	before := 0
	return func(p access.ResealProgress) {
		others.Set(float64(p.Others))
		resealed.Add(float64(p.Resealed - before))
		before = p.Resealed
	}
}
