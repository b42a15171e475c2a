// Package database has the options of Maestro's database: its kinds of documents, their indexes, and the side tables
// of Maestro's packages.
//
// Only package maestro, its packages, and cli, which shows the version of the schema, import it.
package database

import (
	"encoding/json"
	"log/slog"

	"atoll.dev/api/work"
	"atoll.dev/maestro/bundle"
	"atoll.dev/maestro/envelopekeys"
	"atoll.dev/maestro/restapi"
	"atoll.dev/store"
	"atoll.dev/store/keyaudit"
)

// Options returns the options with which Maestro opens its database. maxConns of 0 is the store's default.
func Options(dsn string, maxConns int, log *slog.Logger) store.Options {
	return store.Options{
		DSN: dsn, Logger: log, Migrations: migrations(), MaxConns: maxConns,
		Kinds: []store.KindSpec{
			{Kind: bundle.ConsumerKind, Render: bundle.RenderConsumer, BriefHistory: true},
			{Kind: bundle.Kind, Begin: bundle.Begin, Render: bundle.Render, BriefHistory: true,
				Sensitive: func(spec json.RawMessage) [][2]int { return work.SecretSpans(spec) }, Indexes: []store.Index{
					{Name: "scope", On: "btree (scope, created_at)"},
					{Name: "created", On: "btree (created_at, id)"},
					{Name: "source", On: "btree ((spec->>'source'), id)"},
					restapi.LabelIndex,
				}},
			keyaudit.KindSpec(envelopekeys.Kind),
		},
	}
}
