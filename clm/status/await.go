package status

import (
	"slices"
	"time"
)

// Await is one adapter that a resource waits for.
type Await struct {
	Adapter string    `json:"adapter"`
	Since   time.Time `json:"since"`
	// Reported is what the adapter says of the present generation, "" when it
	// has not reported on it.
	Reported Value `json:"reported,omitempty"`
}

// Awaited are the adapters for which Reconciled is False, by name. One that has
// not answered is awaited since the generation was made; one that answered
// since its condition became what it is.
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
