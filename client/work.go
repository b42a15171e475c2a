package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
)

// Work is a work with the ETag of the answer that it was read from.
type Work struct {
	platform.Work
	ETag string `json:"-"`
}

// CreateWork creates a work on a management cluster from a ManifestWork in JSON. The error has status
// 409 when another work there has the name.
func (p *Client) CreateWork(ctx context.Context, cluster ManagementClusterName,
	manifestWork json.RawMessage) (platform.WorkCreated, error) {
	var w platform.WorkCreated
	body, err := json.Marshal(platform.WorkRequest{ClusterID: string(cluster), Data: manifestWork})
	if err != nil {
		return w, fmt.Errorf("the ManifestWork: %w", err)
	}
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: pathWork, Body: body})
	if err != nil {
		return w, err
	}
	err = decode(doc, &w)
	return w, err
}

// Work returns one work.
func (p *Client) Work(ctx context.Context, id WorkID) (Work, error) {
	return p.work(ctx, remote.Request{Method: http.MethodGet, Path: pathWork + "/" + url.PathEscape(string(id))})
}

// Works returns all works of a management cluster, or of the region when cluster is empty.
func (p *Client) Works(ctx context.Context, cluster ManagementClusterName) ([]platform.Work, error) {
	return allByPage(ctx, 500, func(ctx context.Context, page, size int) ([]platform.Work, error) {
		q := url.Values{"page": {strconv.Itoa(page)}, "size": {strconv.Itoa(size)}}
		remote.SetNonEmpty(q, "cluster_id", string(cluster))
		doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: pathWork, Query: q})
		if err != nil {
			return nil, err
		}
		var list platform.WorkList
		err = decode(doc, &list)
		return list.Items, err
	})
}

// ReplaceWork replaces a work's spec and metadata. With an etag, the error has status 412 when the
// work has changed since.
func (p *Client) ReplaceWork(ctx context.Context, id WorkID, cluster ManagementClusterName,
	manifestWork json.RawMessage, etag string) (Work, error) {
	body, err := json.Marshal(platform.WorkRequest{ClusterID: string(cluster), Data: manifestWork})
	if err != nil {
		return Work{}, fmt.Errorf("the ManifestWork: %w", err)
	}
	return p.work(ctx, remote.Request{Method: http.MethodPut, Path: pathWork + "/" + url.PathEscape(string(id)),
		Header: remote.IfMatchHeader(etag),
		Body:   body})
}

// DeleteWork requests the deletion of a work. The deletion is complete when Work returns an error with
// status 404.
func (p *Client) DeleteWork(ctx context.Context, id WorkID, etag string) error {
	_, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodDelete,
		Path: pathWork + "/" + url.PathEscape(string(id)), Header: remote.IfMatchHeader(etag)})
	return err
}

func (p *Client) work(ctx context.Context, r remote.Request) (Work, error) {
	doc, _, err := p.http.Do(ctx, r)
	if err != nil {
		return Work{}, err
	}
	w := Work{ETag: doc.ETag}
	err = decode(doc, &w.Work)
	return w, err
}

// Outcome is the change that ApplyWork made.
type Outcome string

// The outcomes of ApplyWork.
const (
	Created   Outcome = "created"
	Changed   Outcome = "changed"
	Unchanged Outcome = "unchanged"
)

// ApplyWork creates a work, or replaces the work of the same name on the management cluster. It
// retries after a concurrent write, while the region is unavailable, and while a work of that name
// is being deleted, until the client's budget is spent or ctx ends.
func (p *Client) ApplyWork(ctx context.Context, cluster ManagementClusterName, manifestWork json.RawMessage) (Work,
	Outcome, error) {
	var named struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(manifestWork, &named); err != nil {
		return Work{}, "", fmt.Errorf("the ManifestWork: %w", err)
	}
	id := work.BundleID(work.SourcePlatform, work.Consumer(cluster), named.Metadata.Name)
	deadline := time.Now().Add(p.http.Budget)
	outcome := Outcome("")
	for attempt := 0; ; attempt++ {
		w, o, raced, err := p.tryApply(ctx, id, cluster, manifestWork)
		if outcome == "" || o == Created {
			outcome = o // of the first attempt whose write the region may have executed
		}
		if err == nil {
			return w, outcome, nil
		}
		e, _ := errors.AsType[*remote.Error](err)
		wait := remote.Backoff(attempt)
		if !raced && (e == nil || !e.IsRetryable(remote.Repeatable)) || time.Now().Add(wait).After(deadline) {
			return Work{}, "", err
		}
		select {
		case <-ctx.Done():
			return Work{}, "", err
		case <-time.After(wait):
		}
	}
}

// tryApply is one attempt of ApplyWork: it reads the work and then writes it. raced is true when a concurrent
// change of the work caused the error, so that another attempt may succeed.
func (p *Client) tryApply(ctx context.Context, id WorkID, cluster ManagementClusterName,
	manifestWork json.RawMessage) (w Work, o Outcome, raced bool, err error) {
	before, err := p.Work(ctx, id)
	if remote.StatusOf(err) == http.StatusNotFound {
		if _, err := p.CreateWork(ctx, cluster, manifestWork); err != nil {
			return w, "", remote.StatusOf(err) == http.StatusConflict, err
		}
		w, err := p.Work(ctx, id)
		return w, Created, remote.StatusOf(err) == http.StatusNotFound, err
	}
	if err != nil {
		return w, "", false, err
	}
	if before.DeletedAt != nil {
		return w, "", true, &remote.Error{
			Status: http.StatusConflict, Code: "being-deleted",
			Reason: fmt.Sprintf("the work %s is being deleted on %s since %s; apply it again when it is gone",
				before.Name, before.ClusterID, before.DeletedAt.Format(time.RFC3339)),
		}
	}
	after, err := p.ReplaceWork(ctx, id, cluster, manifestWork, before.ETag)
	switch remote.StatusOf(err) {
	case http.StatusNotFound, http.StatusConflict, http.StatusPreconditionFailed:
		return w, "", true, err
	}
	if err != nil {
		return w, "", false, err
	}
	if after.Generation == before.Generation && bytes.Equal(after.Data, before.Data) {
		return after, Unchanged, false, nil
	}
	return after, Changed, false, nil
}
