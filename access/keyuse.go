package access

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/store"
)

const keyUseTable = `
create table key_use (
	access_key_id text primary key,
	used_at timestamptz not null
);`

const (
	keepPeriod  = time.Minute
	keepTimeout = 3 * time.Second
	keepExpired = 24 * time.Hour // expired sessions stay in lists for so long
	keepBatch   = 500

	writeUsesSQL = `insert into key_use as u (access_key_id, used_at)
		select used.id, used.at from unnest($1::text[], $2::timestamptz[]) as used (id, at)
		where exists (select from document where kind = 'KeyPair' and id = used.id and removed_at is null)
		on conflict (access_key_id) do update set used_at = greatest(u.used_at, excluded.used_at)`
	readUsesSQL    = `select access_key_id, used_at from key_use`
	expiredKeysSQL = `select kind, id from document where kind in ('KeyPair', 'LinkCode') and removed_at is null
		and (spec->>'expiresAt')::timestamptz < now() - $1::interval limit $2`
)

// keyUses are the uses of key pairs that are not in the database yet. Several goroutines may use it.
type keyUses struct {
	mu sync.Mutex
	at map[string]time.Time
}

// take returns the uses and forgets them.
func (u *keyUses) take() map[string]time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	at := u.at
	u.at = nil
	return at
}

// add remembers a use, unless a later one is known.
func (u *keyUses) add(accessKeyID string, at time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = map[string]time.Time{}
	}
	if u.at[accessKeyID].Before(at) {
		u.at[accessKeyID] = at
	}
}

// RecordUse remembers that a key pair has signed a request. Keep writes it to the database.
func (k *KeyStore) RecordUse(accessKeyID string, at time.Time) { k.uses.add(accessKeyID, at) }

// Keep writes the last uses of key pairs each minute, and deletes temporary credentials and link codes a day after they
// expired, until ctx ends. It returns the cause of ctx's end. It counts and logs rounds that fail; the
// next round tries again.
func (k *KeyStore) Keep(ctx context.Context, failures *Failures) error {
	tick := time.NewTicker(keepPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_ = k.writeUses(context.WithoutCancel(ctx))
			return context.Cause(ctx)
		case <-tick.C:
			failures.record(ctx, keepKeys, errors.Join(k.writeUses(ctx), k.deleteExpired(ctx)))
		}
	}
}

// writeUses writes the remembered uses to the database. They stay remembered when that fails.
func (k *KeyStore) writeUses(ctx context.Context) error {
	uses := k.uses.take()
	if len(uses) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, keepTimeout)
	defer cancel()
	ids := slices.Sorted(maps.Keys(uses)) // in one order, so that replicas do not deadlock
	var at []time.Time
	for _, id := range ids {
		at = append(at, uses[id])
	}
	err := k.store.Tx(ctx, func(tx *store.Tx) error {
		_, err := tx.Exec(ctx, writeUsesSQL, ids, at)
		return err
	})
	if err != nil {
		for id, at := range uses {
			k.uses.add(id, at)
		}
		return fmt.Errorf("writing the last uses of key pairs: %w", err)
	}
	return nil
}

// deleteExpired deletes temporary credentials and link codes that expired long ago.
func (k *KeyStore) deleteExpired(ctx context.Context) error {
	type document struct {
		Kind store.Kind
		ID   string
	}
	var expired []document
	err := k.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, expiredKeysSQL, keepExpired, keepBatch)
		if err != nil {
			return err
		}
		expired, err = pgx.CollectRows(rows, pgx.RowToStructByPos[document])
		return err
	})
	for _, d := range expired {
		switch {
		case err != nil:
		case d.Kind == KindKeyPair:
			err = k.Delete(ctx, d.ID)
		default:
			err = k.store.Remove(ctx, d.Kind, d.ID, 0)
		}
		if errors.Is(err, store.ErrNotFound) {
			err = nil // another replica was first
		}
	}
	if err != nil {
		return fmt.Errorf("deleting expired sessions and link codes: %w", err)
	}
	return nil
}

// lastUses returns the last use of each key pair that was used.
func (k *KeyStore) lastUses(ctx context.Context) (map[string]time.Time, error) {
	var uses map[string]time.Time
	err := k.store.Read(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		uses = map[string]time.Time{} // a read may run again
		rows, err := conn.Query(ctx, readUsesSQL)
		if err != nil {
			return err
		}
		var id string
		var at time.Time
		_, err = pgx.ForEachRow(rows, []any{&id, &at}, func() error {
			uses[id] = at
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the last uses of key pairs: %w", err)
	}
	return uses, nil
}
