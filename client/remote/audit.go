package remote

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"atoll.dev/api/audit"
)

// ReadAudit reads the feed of audit records at a path, after a cursor. The service waits for a record,
// up to wait. There is one attempt. The error has status 410 after a restore of the service's database.
func (c *Service) ReadAudit(ctx context.Context, path, after string, limit int, wait time.Duration) (
	audit.Page, error) {
	resp, err := c.Open(ctx, Request{Method: http.MethodGet, Path: path, Query: url.Values{
		"after": {after}, "limit": {strconv.Itoa(limit)}, "wait": {strconv.Itoa(int(wait / time.Second))},
	}}, wait+c.AnswerTimeout)
	if err != nil {
		return audit.Page{}, err
	}
	defer resp.Body.Close()
	var page audit.Page
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, maxAnswer)).Decode(&page); err != nil {
		return audit.Page{}, fmt.Errorf("reading the audit records of %s: %w", c.Name, err)
	}
	return page, nil
}
