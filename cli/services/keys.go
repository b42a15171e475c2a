package services

import (
	"context"
	"fmt"
	"log/slog"

	"atoll.dev/access"
	"atoll.dev/store"
)

// OpenKeys opens the platform database and the keys in it.
func OpenKeys(ctx context.Context, dsn, sealKey string, log *slog.Logger) (*access.KeyStore, func(), error) {
	st, err := store.Open(ctx, store.Options{DSN: dsn, Kinds: access.StoreKinds(), Logger: log})
	if err != nil {
		return nil, nil, fmt.Errorf("platform database: %w", err)
	}
	sealer, err := access.OpenSealer(sealKey)
	if err != nil {
		st.Close()
		return nil, nil, err
	}
	keys := access.NewKeyStore(st, sealer, access.CacheObserver{Unusable: func(id string, err error) {
		log.Warn("key pair unusable", "access_key_id", id, "error", err)
	}})
	return keys, st.Close, nil
}
