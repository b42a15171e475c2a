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
	"atoll.dev/cluster"
)

// Create creates a resource. With an idempotency key, a call is retried after a lost answer, and all
// calls with the same key create one resource.
func (c *Client) Create(ctx context.Context, in Collection, r clm.ResourceCreate, key string) (Resource, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Resource{}, err
	}
	var header http.Header
	if key != "" {
		header = http.Header{"Idempotency-Key": {key}}
	}
	return c.doResource(ctx, remote.Request{Method: http.MethodPost, Path: in.path(), Header: header, Body: body})
}

// Replace replaces those of spec, labels and references that the JSON object body has. etag may be
// ""; a stale one is 412.
func (c *Client) Replace(ctx context.Context, in Collection, id string, body json.RawMessage, etag string) (Resource,
	error) {
	return c.doResource(ctx, remote.Request{Method: http.MethodPatch, Path: in.path(id),
		Header: remote.IfMatchHeader(etag),
		Body:   body})
}

// Merge applies a JSON merge patch (RFC 7396) of spec, labels and references.
func (c *Client) Merge(ctx context.Context, in Collection, id string, patch json.RawMessage, etag string) (Resource,
	error) {
	return c.doResource(ctx, remote.Request{Method: http.MethodPatch, Path: in.path(id),
		Header: remote.MergePatchHeader(etag),
		Body:   patch})
}

// Delete orders the deletion of a resource and returns its state after that. The deletion of a
// resource without adapters is complete at once; a repeated call is 404 then.
func (c *Client) Delete(ctx context.Context, in Collection, id, etag string) (Resource, error) {
	return c.doResource(ctx, remote.Request{Method: http.MethodDelete, Path: in.path(id),
		Header: remote.IfMatchHeader(etag)})
}

// ForceDelete removes a resource under deletion, with its children, without waiting for adapters.
// Objects that the adapters created may remain. The history keeps the reason.
func (c *Client) ForceDelete(ctx context.Context, in Collection, id, reason string) error {
	body, err := json.Marshal(clm.ForceDelete{Reason: reason})
	if err != nil {
		return err
	}
	_, _, err = c.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: in.path(id, "force-delete"), Body: body})
	return err
}

// Statuses returns the reports of a resource's adapters.
func (c *Client) Statuses(ctx context.Context, in Collection, id string) ([]clm.AdapterStatus, error) {
	all := []clm.AdapterStatus{}
	for page := 1; ; page++ {
		var list clm.AdapterStatusList
		q := url.Values{"page": {strconv.Itoa(page)}, "size": {"100"}}
		if err := c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: in.path(id, "statuses"), Query: q},
			&list); err != nil {
			return nil, err
		}
		if all = append(all, list.Items...); len(list.Items) == 0 || len(all) >= list.Total {
			return all, nil
		}
	}
}

// Report sends an adapter's report. taken is false when the server has a newer report and ignores this one.
func (c *Client) Report(ctx context.Context, in Collection, id string, report clm.AdapterStatusCreate) (taken bool,
	err error) {
	body, err := json.Marshal(report)
	if err != nil {
		return false, err
	}
	doc, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodPut, Path: in.path(id, "statuses"), Body: body})
	return err == nil && len(doc.JSON) > 0, err
}

// History returns at most limit records of a resource, the latest first. Unless before is 0, the
// records are older than the record of that number. An empty id selects all resources of the kind.
// The history of a deleted resource can be read, too, with the plural of its kind as of.
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
		if err := c.doInto(ctx, remote.Request{Method: http.MethodGet, Path: path, Query: q}, &h); err != nil {
			return nil, err
		}
		if records = append(records, h.Items...); len(h.Items) < size {
			break
		}
		before = h.Items[len(h.Items)-1].Seq
	}
	return records, nil
}

// Reconcile requests an event of the sentinel for one resource, whatever its state.
func (c *Client) Reconcile(ctx context.Context, in Collection, id, reason string) error {
	return c.reconcile(ctx, in.path(id, "reconcile"), "", reason)
}

// ReconcileAll requests events for all resources of a kind, or of all kinds when kind is "".
func (c *Client) ReconcileAll(ctx context.Context, kind, reason string) error {
	return c.reconcile(ctx, AllKinds.path("reconcile"), kind, reason)
}

func (c *Client) reconcile(ctx context.Context, path, kind, reason string) error {
	body, err := json.Marshal(struct {
		Kind   string `json:"kind,omitempty"`
		Reason string `json:"reason,omitempty"`
	}{kind, reason})
	if err != nil {
		return fmt.Errorf("requesting an event: %w", err)
	}
	_, _, err = c.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: path, Body: body})
	return err
}

// Watch opens one stream of changes. ResourceOf reads the object of an event. A resource that the
// search does not select any more is sent as DELETED.
func (c *Client) Watch(ctx context.Context, from Collection, o remote.WatchOptions) (*remote.Watch, error) {
	return c.http.Watch(ctx, from.path(), o)
}

// Follow calls apply with every event until ctx ends or apply fails, and returns that error. It
// continues broken streams; see remote.Follow.
func (c *Client) Follow(ctx context.Context, from Collection, o remote.WatchOptions,
	apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, func(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
		return c.Watch(ctx, from, o)
	},
		apply)
}

// RenewMember renews the lease of a replica of an adapter. The renewal lists the slots that the
// replica still works on.
func (c *Client) RenewMember(ctx context.Context, adapter cluster.Adapter, member string,
	renewal clm.AdapterMemberRenewal) (clm.AdapterMember, error) {
	var answer clm.AdapterMember
	body, err := json.Marshal(renewal)
	if err != nil {
		return answer, err
	}
	err = c.doInto(ctx, remote.Request{Method: http.MethodPut, Path: memberPath(adapter, member), Body: body}, &answer)
	return answer, err
}

// RemoveMember ends the lease of a replica of an adapter.
func (c *Client) RemoveMember(ctx context.Context, adapter cluster.Adapter, member string) error {
	_, _, err := c.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: memberPath(adapter, member)})
	return err
}

func memberPath(adapter cluster.Adapter, member string) string {
	return pathCLM + "adapters/" + url.PathEscape(string(adapter)) + "/members/" + url.PathEscape(member)
}
