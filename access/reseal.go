package access

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// sealMembers are the members of specs that a Sealer has sealed. The sealed text is bound to the id of its document and
// to accountId and principalArn of its spec.
var sealMembers = map[store.Kind]string{KindKeyPair: "sealedSecret", KindLink: "sealed", KindLinkCode: "sealed"}

const (
	sealedWithSQL = `split_part(coalesce(spec->>'sealedSecret', spec->>'sealed'), '.', 2)`

	otherSealSQL = `select kind, id from document where kind = any($1) and removed_at is null and (kind, id) > ($2, $3)
		and ` + sealedWithSQL + ` is distinct from $4 order by kind, id limit $5`
)

func sealedKinds() []string {
	return []string{string(KindKeyPair), string(KindLink), string(KindLinkCode)}
}

// ResealProgress has the counts of a call of Reseal.
type ResealProgress struct {
	Others   int // documents that are sealed with another key than the first one
	Resealed int // by this process
}

// Reseal seals the secrets again that are sealed with another key than the first of the key file, in rounds until ctx
// ends. Each round reads the database, so a kill costs nothing but the round; several processes may do so on one
// database. It calls observe after each round that has read the database. It returns the cause of ctx's end; failures
// counts and logs rounds that fail.
func (k *KeyStore) Reseal(ctx context.Context, failures *Failures, observe func(ResealProgress)) error {
	ctx = store.InBackground(store.WithActor(ctx, store.Actor{Principal: "system:platform"}))
	var p ResealProgress
	for done := ""; ; {
		failures.record(ctx, readSealKeys, k.sealer.Problem())
		keys := k.sealer.keyIDs()
		if len(keys) > 1 || done != keys[0] { // nobody seals with another key when there is one
			var err error
			before := p.Resealed
			p.Others, err = k.reseal(ctx, keys[0], &p.Resealed)
			if n := p.Resealed - before; n > 0 {
				err = errors.Join(err, k.addResealed(ctx, keys[0], n))
			}
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

// reseal seals with the key current the secrets that are sealed with other keys. left is the number of documents whose
// secrets cannot be opened; the cache reports those.
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
