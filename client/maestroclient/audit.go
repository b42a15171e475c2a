package maestroclient

import (
	"context"
	"time"

	"atoll.dev/api/audit"
)

// ReadAudit returns audit records after a cursor; see remote.Service.ReadAudit. Only the Platform API may read them.
func (m *Client) ReadAudit(ctx context.Context, after string, limit int, wait time.Duration) (audit.Page, error) {
	return m.rest.ReadAudit(ctx, "/api/maestro/v1"+audit.Path, after, limit, wait)
}
