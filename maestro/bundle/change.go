package bundle

import (
	"atoll.dev/store"
)

// decoded are what a bundle's document says.
type decoded struct {
	spec   Spec
	status Status
	err    error
}

// RecordsOf decodes a change of a bundle, at most once for all who follow.
func RecordsOf(c *store.Change) (Spec, Status, error) {
	r := c.Memo(func(d store.Document) any {
		var r decoded
		if r.spec, r.err = SpecOf(d); r.err == nil {
			r.status, r.err = StatusOf(d)
		}
		return &r
	}).(*decoded)
	return r.spec, r.status, r.err
}
