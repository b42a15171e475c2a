package database

import (
	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/housekeeping"
	"atoll.dev/maestro/ledger"
	"atoll.dev/maestro/peers"
	"atoll.dev/maestro/presence"
	"atoll.dev/maestro/restapi"
)

// SchemaVersion returns the version of the schema of Maestro's tables that this program knows.
func SchemaVersion() int { return len(migrations()) }

// migrations make the side tables, in this order.
func migrations() []string {
	return []string{
		ledger.LedgerSchema,
		ledger.DigestSchema,
		ledger.ForceSchema,
		peers.Schema,
		restapi.SearchStatistics,
		ledger.AcknowledgedSchema,
		ledger.LifeSchema,
		ledger.ComparedSchema,
		ledger.VersionSchema,
		housekeeping.Schema,
		presence.Schema,
		ledger.BucketSchema,
		dispatch.SlotsSchema,
		presence.HostingSchema,
	}
}
