// Package keyaudit changes key files so that the audit records who changed them.
//
// A service that encrypts with the keys of a file has, in its database, a document for each key that a command has
// changed. A document's id is the key's name; the document does not contain the key. The transaction that writes the
// document and its audit record changes the file before it commits.
//
// Services import it. It depends on no service, and on no format of a key file.
package keyaudit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"atoll.dev/store"
)

// State says whether a process encrypts with a key of a key file, only decrypts, or has it no more.
type State string

// The states of a key.
const (
	Opens   State = "opens"   // decrypts
	Seals   State = "seals"   // encrypts and decrypts
	Dropped State = "dropped" // is not in the file any more
)

// spec is the spec of a key's document.
type spec struct {
	State State `json:"state,omitempty"` // as the last command of an operator left it
}

// KindSpec returns the specification of a kind of documents about keys.
func KindSpec(kind store.Kind) store.KindSpec { return store.KindSpec{Kind: kind, History: true} }

// Change records that the context's actor brings a key into a state, and calls changeFile before the transaction
// commits: a failed change leaves no record. Once changeFile has succeeded it is not called again, also when the
// transaction is repeated. When the transaction fails after changeFile has succeeded, the file has changed without a
// record; a repeated call of Change then records, if changeFile is idempotent.
func Change(ctx context.Context, s *store.Store, kind store.Kind, key string, state State,
	changeFile func() error) error {
	isChanged := false
	return s.Tx(ctx, func(tx *store.Tx) error {
		err := Put(ctx, tx, kind, key, func(d *store.Document) (err error) {
			d.Spec, err = json.Marshal(spec{State: state})
			return err
		})
		if err != nil {
			return fmt.Errorf("recording the change of key %s: %w", key, err)
		}
		if isChanged { // the transaction is repeated
			return nil
		}
		err = changeFile()
		isChanged = err == nil
		return err
	})
}

// Put changes the document of a key, and makes it first when there is none: a key that no command has changed has none.
func Put(ctx context.Context, tx *store.Tx, kind store.Kind, key string, change func(*store.Document) error) error {
	_, _, err := tx.Update(ctx, kind, key, 0, change)
	if !errors.Is(err, store.ErrNotFound) {
		return err
	}
	doc := store.Document{Kind: kind, ID: key}
	if err := change(&doc); err != nil {
		return err
	}
	_, err = tx.Create(ctx, doc)
	return err
}
