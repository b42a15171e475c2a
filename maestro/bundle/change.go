package bundle

import (
	"atoll.dev/store"
)

// decoded has the decoded spec and status of a bundle's document.
type decoded struct {
	spec   Spec
	status Status
	err    error
}

// RecordsOf decodes a change of a bundle. The first call keeps the result for all followers of the feed.
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
