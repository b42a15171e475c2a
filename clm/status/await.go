package status

import (
	"slices"
	"time"

	"atoll.dev/cluster"
)

// Await is one adapter whose report a resource waits for.
type Await struct {
	Adapter cluster.Adapter `json:"adapter"`
	Since   time.Time       `json:"since"`
	// Reported is the adapter's value for the present generation, "" if it has not
	// reported on it.
	Reported Value `json:"reported,omitempty"`
}

// Awaited returns the adapters for which Reconciled is False, sorted by name. An adapter
// that has not reported on the present generation is awaited since the generation was
// made; another one since the last transition of its condition.
func Awaited(r Resource, reports []Report) (awaited []Await) {
	wanted := Available
	if r.Deleting {
		wanted = Finalized
	}
	names := slices.Clone(r.Required)
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		await := Await{Adapter: name, Since: r.UpdatedAt}
		i := slices.IndexFunc(reports, func(report Report) bool { return report.Adapter == name })
		if i >= 0 && reports[i].Generation == r.Generation {
			if c, ok := reports[i].reported(wanted); ok {
				await.Reported = c.Status
				if c.LastTransitionTime.After(await.Since) {
					await.Since = c.LastTransitionTime
				}
			}
			if await.Reported == True && reports[i].condition(Available) != Unknown {
				continue
			}
		}
		awaited = append(awaited, await)
	}
	return awaited
}
