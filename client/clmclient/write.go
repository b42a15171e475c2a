package clmclient

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"atoll.dev/api/clm"
	"atoll.dev/client/remote"
)

// Create makes a resource. With a key, which the caller makes up once for what
// it wants, a create whose answer was lost is repeated and makes one resource.
func (c *Client) Create(ctx context.Context, in Collection, r clm.ResourceCreate, key string) (Resource, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Resource{}, err
	}
	var header http.Header
	if key != "" {
		header = http.Header{"Idempotency-Key": {key}}
	}
	return c.one(ctx, remote.Request{Method: http.MethodPost, Path: in.path(), Header: header, Body: body})
}

// Replace replaces each of spec, labels and references that body, a JSON
// object, has. etag may be ""; a stale one is 412.
func (c *Client) Replace(ctx context.Context, in Collection, id string, body json.RawMessage, etag string) (Resource,
	error) {
	return c.one(ctx, remote.Request{Method: http.MethodPatch, Path: in.path(id), Header: remote.IfMatch(etag),
		Body: body})
}

// Merge applies a JSON merge patch (RFC 7396) of spec, labels and references.
func (c *Client) Merge(ctx context.Context, in Collection, id string, patch json.RawMessage, etag string) (Resource,
	error) {
	return c.one(ctx, remote.Request{Method: http.MethodPatch, Path: in.path(id), Header: remote.MergePatch(etag),
		Body: patch})
}

// Delete asks for the deletion of a resource and returns it as it is then. It
// may be gone at once: then a repeated call is 404.
func (c *Client) Delete(ctx context.Context, in Collection, id, etag string) (Resource, error) {
	return c.one(ctx, remote.Request{Method: http.MethodDelete, Path: in.path(id), Header: remote.IfMatch(etag)})
}

// ForceDelete removes a resource whose deletion does not end, with all below
// it; what adapters made for them may stay behind. reason is for the record.
func (c *Client) ForceDelete(ctx context.Context, in Collection, id, reason string) error {
	body, err := json.Marshal(clm.ForceDelete{Reason: reason})
	if err != nil {
		return err
	}
	_, _, err = c.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: in.path(id, "force-delete"), Body: body})
	return err
}

// Statuses are the reports of a resource's adapters.
func (c *Client) Statuses(ctx context.Context, in Collection, id string) ([]clm.AdapterStatus, error) {
	all := []clm.AdapterStatus{}
	for page := 1; ; page++ {
		var list clm.AdapterStatusList
		q := url.Values{"page": {strconv.Itoa(page)}, "size": {"100"}}
		if err := c.into(ctx, remote.Request{Method: http.MethodGet, Path: in.path(id, "statuses"), Query: q},
			&list); err != nil {
			return nil, err
		}
		if all = append(all, list.Items...); len(list.Items) == 0 || len(all) >= list.Total {
			return all, nil
		}
	}
}

// Report sends an adapter's report. It is false when the server knows better
// already and has dropped it.
func (c *Client) Report(ctx context.Context, in Collection, id string, report clm.AdapterStatusCreate) (taken bool,
	err error) {
	body, err := json.Marshal(report)
	if err != nil {
		return false, err
	}
	doc, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodPut, Path: in.path(id, "statuses"), Body: body})
	return err == nil && len(doc.JSON) > 0, err
}

// History returns at most limit records of a resource, the latest first, that
// are older than the record before, unless that is 0. With the plural of its
// kind, a resource that is gone has its history, too. Without id they are those
// of all resources of the kind.
func (c *Client) History(ctx context.Context, of Collection, id string, before int64, limit int) ([]clm.HistoryRecord,
	error) {
	records := []clm.HistoryRecord{}
	for len(records) < limit {
		size := min(limit-len(records), 100)
		q := url.Values{"size": {strconv.Itoa(size)}}
		if before > 0 {
			q.Set("before", strconv.FormatInt(before, 10))
		}
		var h clm.History
		path := of.path("history")
		if id != "" {
			path = of.path(id, "history")
		}
		if err := c.into(ctx, remote.Request{Method: http.MethodGet, Path: path, Query: q}, &h); err != nil {
			return nil, err
		}
		if records = append(records, h.Items...); len(h.Items) < size {
			break
		}
		before = h.Items[len(h.Items)-1].Seq
	}
	return records, nil
}

// Reconcile asks for work on one resource, whatever its state.
func (c *Client) Reconcile(ctx context.Context, in Collection, id, reason string) error {
	return c.reconcile(ctx, in.path(id, "reconcile"), "", reason)
}

// ReconcileAll asks for work on all resources of a kind, or with "" of all
// kinds.
func (c *Client) ReconcileAll(ctx context.Context, kind, reason string) error {
	return c.reconcile(ctx, AllKinds.path("reconcile"), kind, reason)
}

func (c *Client) reconcile(ctx context.Context, path, kind, reason string) error {
	body, err := json.Marshal(struct {
		Kind   string `json:"kind,omitempty"`
		Reason string `json:"reason,omitempty"`
	}{kind, reason})
	if err != nil {
		return fmt.Errorf("asking for work: %w", err)
	}
	_, _, err = c.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: path, Body: body})
	return err
}

// Watch opens one stream of changes. Its objects are read by ResourceOf. A
// resource that a search does not find any more is DELETED in it.
func (c *Client) Watch(ctx context.Context, from Collection, o remote.WatchOptions) (*remote.Watch, error) {
	return c.http.Watch(ctx, from.path(), o)
}

// Follow calls apply with every event until ctx ends or apply fails, and
// returns why. It continues streams that break.
func (c *Client) Follow(ctx context.Context, from Collection, o remote.WatchOptions,
	apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, func(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
		return c.Watch(ctx, from, o)
	},
		apply)
}

// RenewMember renews the lease of a replica of an adapter, which still works in
// the slots keep.
func (c *Client) RenewMember(ctx context.Context, adapter, member string, renewal clm.AdapterMemberRenewal) (
	clm.AdapterMember, error) {
	var answer clm.AdapterMember
	body, err := json.Marshal(renewal)
	if err != nil {
		return answer, err
	}
	err = c.into(ctx, remote.Request{Method: http.MethodPut, Path: memberPath(adapter, member), Body: body}, &answer)
	return answer, err
}

// RemoveMember ends the lease of a replica of an adapter.
func (c *Client) RemoveMember(ctx context.Context, adapter, member string) error {
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: memberPath(adapter, member)})
	return err
}

func memberPath(adapter, member string) string {
	return pathCLM + "adapters/" + url.PathEscape(adapter) + "/members/" + url.PathEscape(member)
}
