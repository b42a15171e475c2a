package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/pause"
	"atoll.dev/store"
)

const (
	resealPeriod = 10 * time.Second
	resealBatch  = 100 // documents that one statement looks for
)

// sealMembers are the members of specs that a Sealer has sealed. The specs have accountId and principalArn, too, which
// with the id of the document are what the sealed text is bound to.
var sealMembers = map[store.Kind]string{KindKeyPair: "sealedSecret", KindLink: "sealed", KindLinkCode: "sealed"}

const (
	sealedWithSQL = `split_part(coalesce(spec->>'sealedSecret', spec->>'sealed'), '.', 2)`

	countSealedSQL = `select ` + sealedWithSQL + `, count(*) from document
		where kind = any($1) and removed_at is null group by 1`

	otherSealSQL = `select kind, id from document where kind = any($1) and removed_at is null and (kind, id) > ($2, $3)
		and ` + sealedWithSQL + ` is distinct from $4 order by kind, id limit $5`
)

func sealedKinds() []string {
	return []string{string(KindKeyPair), string(KindLink), string(KindLinkCode)}
}

// SealKeyUse is a key of the key file, and what it has sealed.
type SealKeyUse struct {
	ID        string `json:"id"`
	Seals     bool   `json:"seals"`     // new secrets are sealed with it
	IsMissing bool   `json:"isMissing"` // the key file does not have it: what it has sealed cannot be read
	Documents int    `json:"documents"` // key pairs, links and link codes
}

// SealKeys returns the keys of the key file in its order, and after them the keys that it lacks.
func (k *KeyStore) SealKeys(ctx context.Context) ([]SealKeyUse, error) {
	counts := map[string]int{}
	err := k.store.Tx(ctx, func(tx *store.Tx) error {
		clear(counts)
		rows, err := tx.Query(ctx, countSealedSQL, sealedKinds())
		if err != nil {
			return err
		}
		var id *string
		var n int
		_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
			if id != nil {
				counts[*id] += n
			} else {
				counts[""] += n
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("counting what is sealed: %w", err)
	}
	var uses []SealKeyUse
	for i, id := range k.sealer.KeyIDs() {
		uses = append(uses, SealKeyUse{ID: id, Seals: i == 0, Documents: counts[id]})
		delete(counts, id)
	}
	known := len(uses)
	for id, n := range counts {
		uses = append(uses, SealKeyUse{ID: id, IsMissing: true, Documents: n})
	}
	slices.SortFunc(uses[known:], func(a, b SealKeyUse) int { return b.Documents - a.Documents })
	return uses, nil
}

// DropSealKey removes a key from the key file, which must have been in its present state for as long as processes take
// to read it, so that none seals with the key any more. The errors are ErrNoSealKey, ErrSeals, and ErrSealKeyUsed while
// something is sealed with the key.
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
	return dropSealKey(k.sealer.path, id)
}

// ErrSealKeyUsed: something is sealed with the key.
var ErrSealKeyUsed = errors.New("the key is used")

// ResealProgress is what Reseal has done.
type ResealProgress struct {
	Others   int // documents that are sealed with another key than the first one
	Resealed int // by this process
}

// Reseal seals again, until ctx ends, what is sealed with another key than the first of the key file. A round looks at
// the database, so a kill costs nothing but the round; several processes may do so on one database. It calls observe
// after each round that looked. It returns the cause of ctx's end; failures counts and logs rounds that fail.
func (k *KeyStore) Reseal(ctx context.Context, failures *Failures, observe func(ResealProgress)) error {
	ctx = store.InBackground(store.WithActor(ctx, store.Actor{Principal: "system:platform"}))
	var p ResealProgress
	for done := ""; ; {
		keys := k.sealer.KeyIDs()
		if len(keys) > 1 || done != keys[0] { // nobody seals with another key when there is one
			var err error
			p.Others, err = k.reseal(ctx, keys[0], &p.Resealed)
			failures.record(ctx, resealKeys, err)
			if err == nil {
				done = keys[0]
				observe(p)
			}
		}
		if !pause.For(ctx, resealPeriod) {
			return context.Cause(ctx)
		}
	}
}

// reseal seals with the key current what is sealed with others, and returns how many documents cannot be. The cache
// reports those.
func (k *KeyStore) reseal(ctx context.Context, current string, resealed *int) (left int, err error) {
	type place struct{ Kind, ID string }
	for at := (place{}); ; {
		var batch []place
		err := k.store.Tx(ctx, func(tx *store.Tx) error {
			rows, err := tx.Query(ctx, otherSealSQL, sealedKinds(), at.Kind, at.ID, current, resealBatch)
			if err == nil {
				batch, err = pgx.CollectRows(rows, pgx.RowToStructByPos[place])
			}
			return err
		})
		if err != nil || len(batch) == 0 {
			return left, err
		}
		for _, at = range batch {
			_, changed, err := k.store.Update(ctx, store.Kind(at.Kind), at.ID, 0, k.resealDocument)
			switch {
			case errors.Is(err, ErrSealBroken), errors.Is(err, ErrOtherKeyFile):
				left++
			case errors.Is(err, store.ErrNotFound): // it was deleted meanwhile
			case err != nil:
				return left, fmt.Errorf("sealing %s %s again: %w", at.Kind, at.ID, err)
			case changed:
				*resealed++
			}
		}
	}
}

// resealDocument seals the member of a spec with the first key of the key file. The errors are those of Open.
func (k *KeyStore) resealDocument(d *store.Document) error {
	member := sealMembers[d.Kind]
	var spec map[string]json.RawMessage
	var of struct {
		Account   cluster.Account  `json:"accountId"`
		Principal policy.Principal `json:"principalArn"`
	}
	var sealed string
	if errors.Join(json.Unmarshal(d.Spec, &spec), json.Unmarshal(d.Spec, &of)) != nil ||
		json.Unmarshal(spec[member], &sealed) != nil {
		return fmt.Errorf("%s %s: %w", d.Kind, d.ID, ErrSealBroken)
	}
	bound := Bound{d.ID, of.Account, of.Principal}
	secret, err := k.sealer.Open(sealed, bound)
	if err == nil {
		sealed, err = k.sealer.Seal(secret, bound)
	}
	if err == nil {
		spec[member], err = json.Marshal(sealed)
	}
	if err == nil {
		d.Spec, err = json.Marshal(spec)
	}
	return err
}
