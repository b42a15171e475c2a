// Package envelopekeys changes the key file of Maestro, whose keys encrypt the contents of Secrets in Maestro's
// database, and records each change there for the audit.
//
// The command of operators imports it, and package maestro/database, which has the kind of its documents.
package envelopekeys

import (
	"context"

	"atoll.dev/envelope"
	"atoll.dev/store"
	"atoll.dev/store/keyaudit"
)

// Kind is the kind of the documents about keys of the key file. See package keyaudit.
const Kind store.Kind = "EnvelopeKey"

// Add adds a new key to the key file at path, behind the others, and returns the key's name. Processes that have read
// the file open with the new key; Promote makes them seal with it. It leaves an audit record. An error means that the
// file has not changed, or that only the commit failed.
func Add(ctx context.Context, s *store.Store, path string) (name string, err error) {
	name = envelope.NewKeyName()
	return name, keyaudit.Change(ctx, s, Kind, name, keyaudit.Opens, func() error { return envelope.AddKey(path, name) })
}

// Promote makes a key of the key file at path the first, which seals. It is idempotent, and writes an audit record. The
// errors are those of Add, and one when the file does not have the key.
func Promote(ctx context.Context, s *store.Store, path, name string) error {
	return keyaudit.Change(ctx, s, Kind, name, keyaudit.Seals, func() error { return envelope.Promote(path, name) })
}
