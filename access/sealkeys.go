package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"atoll.dev/store"
	"atoll.dev/store/keyaudit"
)

// KindSealKey is the kind of the documents about keys of the key file; a document's id is the key's id. A document does
// not contain the key. It records for the audit who changed the file, and how many documents were sealed again.
const KindSealKey store.Kind = "SealKey"

type sealKeyStatus struct {
	Resealed int `json:"resealed"` // documents that were sealed again with the key
}

const (
	countSealedSQL = `select ` + sealedWithSQL + `, count(*) from document
		where kind = any($1) and removed_at is null group by 1`

	resealedSQL = `select id, coalesce((status->>'resealed')::int, 0) from document where kind = $1 and removed_at is null`
)

// SealKeyUse is a key of the key file, and the number of documents that it has sealed.
type SealKeyUse struct {
	ID        string `json:"id"`
	Seals     bool   `json:"seals"`     // new secrets are sealed with it
	IsMissing bool   `json:"isMissing"` // the key file does not have it: its documents cannot be read
	Documents int    `json:"documents"` // key pairs, links and link codes
	// Place is where the key is: "file", or the endpoint of the KMS plugin that unwraps it.
	Place KeyPlace `json:"place,omitempty"`
	// Resealed is how many documents were sealed again with the key, because another one had sealed them before.
	Resealed int `json:"resealed"`
}

// SealKeys returns the keys of the key file in its order, and then the missing keys: keys that have sealed documents
// and are not in the file.
func (k *KeyStore) SealKeys(ctx context.Context) ([]SealKeyUse, error) {
	counts, resealed := map[string]int{}, map[string]int{}
	err := k.store.Tx(ctx, func(tx *store.Tx) error {
		clear(counts)
		clear(resealed)
		rows, err := tx.Query(ctx, countSealedSQL, sealedKinds())
		if err != nil {
			return err
		}
		var id *string
		var n int
		if _, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			if id != nil {
				counts[*id] += n
			} else {
				counts[""] += n
			}
			return nil
		}); err != nil {
			return err
		}
		if rows, err = tx.Query(ctx, resealedSQL, string(KindSealKey)); err != nil {
			return err
		}
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error { resealed[*id] = n; return nil })
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counting what is sealed: %w", err)
	}
	var uses []SealKeyUse
	keys, _ := k.sealer.current(sealReread)
	for i, key := range keys {
		uses = append(uses, SealKeyUse{ID: key.id, Seals: i == 0, Documents: counts[key.id], Place: key.place(),
			Resealed: resealed[key.id]})
		delete(counts, key.id)
	}
	known := len(uses)
	for id, n := range counts {
		uses = append(uses, SealKeyUse{ID: id, IsMissing: true, Documents: n, Resealed: resealed[id]})
	}
	slices.SortFunc(uses[known:], func(a, b SealKeyUse) int { return b.Documents - a.Documents })
	return uses, nil
}

// AddSealKey adds a new key to the key file, behind the one key that it has, and returns its id. Processes that have
// read the file open with the new key; PromoteSealKey makes them seal with it. It leaves an audit record. The error is
// ErrRotating when the file has several keys, and kms.ErrUnavailable when the plugin of the place does not wrap the
// key.
func (k *KeyStore) AddSealKey(ctx context.Context, place KeyPlace) (id string, err error) {
	added, err := newSealKeyAt(ctx, k.sealer.path, place)
	if err != nil {
		return "", err
	}
	return added.id, k.changeSealKey(ctx, added.id, keyaudit.Opens, func() error {
		return addSealKey(k.sealer.path, added)
	})
}

// PromoteSealKey makes a key of the key file the first, which seals. It is idempotent. It leaves an audit record. The
// error is ErrNoSealKey.
func (k *KeyStore) PromoteSealKey(ctx context.Context, id string) error {
	return k.changeSealKey(ctx, id, keyaudit.Seals, func() error { return promoteSealKey(k.sealer.path, id) })
}

// DropSealKey removes a key from the key file, which must have been in its present state for as long as processes take
// to read it, so that none seals with the key any more. It leaves an audit record. The errors are ErrNoSealKey,
// ErrSeals, and ErrSealKeyUsed while something is sealed with the key.
func (k *KeyStore) DropSealKey(ctx context.Context, id string) error {
	uses, err := k.SealKeys(ctx)
	if err != nil {
		return err
	}
	for _, u := range uses {
		if u.ID == id && !u.IsMissing && !u.Seals && u.Documents > 0 {
			return fmt.Errorf("key %s: %w: %d key pairs, links and link codes; the Platform API seals them again in the "+
				"background, and what stays is damaged: see its log", id, ErrSealKeyUsed, u.Documents)
		}
	}
	return k.changeSealKey(ctx, id, keyaudit.Dropped, func() error { return dropSealKey(k.sealer.path, id) })
}

// ErrSealKeyUsed: something is sealed with the key.
var ErrSealKeyUsed = errors.New("the key is used")

// changeSealKey records an operator's change of a key and makes it, as keyaudit.Change does. When only the commit
// fails, a second promote succeeds and records; a second add returns ErrRotating (drop the added key first), a second
// drop ErrNoSealKey.
func (k *KeyStore) changeSealKey(ctx context.Context, id string, state keyaudit.State, changeFile func() error) error {
	return keyaudit.Change(ctx, k.store, KindSealKey, id, state, changeFile)
}

// addResealed counts documents that were sealed again with a key.
func (k *KeyStore) addResealed(ctx context.Context, id string, n int) error {
	return k.store.Tx(ctx, func(tx *store.Tx) error {
		return keyaudit.Put(ctx, tx, KindSealKey, id, func(d *store.Document) (err error) {
			var status sealKeyStatus
			if len(d.Status) > 0 {
				err = json.Unmarshal(d.Status, &status)
			}
			if err != nil {
				return err
			}
			status.Resealed += n
			d.Status, err = json.Marshal(status)
			return err
		})
	})
}
