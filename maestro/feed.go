package maestro

import (
	"atoll.dev/store"
)

// records are what a bundle's document says.
type records struct {
	spec   specRecord
	status statusRecord
	err    error
}

// recordsOf decodes a change of a bundle, at most once for all who follow.
func recordsOf(c *store.Change) (specRecord, statusRecord, error) {
	r := c.Memo(func(d store.Document) any {
		var r records
		if r.spec, r.err = specOf(d); r.err == nil {
			r.status, r.err = statusOf(d)
		}
		return &r
	}).(*records)
	return r.spec, r.status, r.err
}
