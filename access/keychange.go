package access

import (
	"context"
	"encoding/json"
	"fmt"

	"atoll.dev/store"
)

// Disable disables a key pair. This process refuses its signatures when Disable
// returns, other processes within a second; open watches of the key end. It is
// idempotent. The error is store.ErrNotFound when there is no such key pair.
func (k *KeyStore) Disable(ctx context.Context, accessKeyID string) (KeyPair, error) {
	return k.setDisabled(ctx, accessKeyID, func(spec *keyPairSpec) { spec.Disabled = true })
}

// Enable reverses Disable. The error is ErrTooManyKeys when the principal has other
// enabled key pairs, as many as it may have.
func (k *KeyStore) Enable(ctx context.Context, accessKeyID string) (KeyPair, error) {
	return k.setDisabled(ctx, accessKeyID, func(spec *keyPairSpec) { spec.Disabled = false })
}

// setDisabled changes the spec of a key pair, which stays within the bounds of its principal.
func (k *KeyStore) setDisabled(ctx context.Context, accessKeyID string, change func(*keyPairSpec)) (KeyPair, error) {
	if err := checkKeyID(accessKeyID); err != nil {
		return KeyPair{}, err
	}
	var doc store.Document
	err := k.store.Tx(ctx, func(tx *store.Tx) error {
		spec, err := k.lockKeyPair(ctx, tx, accessKeyID)
		if err != nil {
			return err
		}
		change(&spec)
		text, err := json.Marshal(spec)
		if err != nil {
			return err
		}
		doc, _, err = tx.Update(ctx, KindKeyPair, accessKeyID, 0, func(d *store.Document) error {
			d.Spec = text
			return nil
		})
		if err != nil || spec.Disabled {
			return err
		}
		return checkKeys(ctx, tx, spec)
	})
	if err != nil {
		return KeyPair{}, fmt.Errorf("changing key pair: %w", err)
	}
	k.cache.await(ctx, doc)
	return toKeyPair(doc)
}

// lockKeyPair returns the spec of a key pair. Other changes of the keys of its principal wait until the transaction
// ends.
func (k *KeyStore) lockKeyPair(ctx context.Context, tx *store.Tx, accessKeyID string) (keyPairSpec, error) {
	var spec keyPairSpec
	d, err := tx.Get(ctx, KindKeyPair, accessKeyID)
	if err == nil {
		err = json.Unmarshal(d.Spec, &spec)
	}
	if err == nil {
		err = lockPrincipal(ctx, tx, spec.Principal)
	}
	if err == nil { // it may have changed before this transaction locked the principal
		d, err = tx.GetForUpdate(ctx, KindKeyPair, accessKeyID)
	}
	if err == nil {
		err = json.Unmarshal(d.Spec, &spec)
	}
	return spec, err
}

// Delete deletes a key pair, with the same effect as Disable. The error is
// store.ErrNotFound when there is no such key pair.
func (k *KeyStore) Delete(ctx context.Context, accessKeyID string) error {
	if err := checkKeyID(accessKeyID); err != nil {
		return err
	}
	err := k.store.Tx(ctx, func(tx *store.Tx) error {
		if _, err := tx.Exec(ctx, `delete from key_use where access_key_id = $1`, accessKeyID); err != nil {
			return err
		}
		return tx.Remove(ctx, KindKeyPair, accessKeyID, 0)
	})
	if err != nil {
		return fmt.Errorf("deleting key pair: %w", err)
	}
	k.cache.awaitRemoval(ctx, accessKeyID)
	return nil
}
