package maestro

import (
	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/presence"
	"atoll.dev/maestro/restapi"
)

// SchemaVersion returns the version of the schema of Maestro's tables that this program knows.
func SchemaVersion() int { return len(migrations()) }

// Migrations make the side tables.
func migrations() []string {
	return []string{
		ledger.LedgerSchema,
		ledger.DigestSchema,
		ledger.ForceSchema,
		presenceSchema,
		restapi.SearchStatistics,
		ledger.AcknowledgedSchema,
		ledger.LifeSchema,
		ledger.ComparedSchema,
		ledger.VersionSchema,
		housekeepingSchema,
		presence.Schema,
		ledger.BucketSchema,
		dispatch.SlotsSchema,
	}
}
