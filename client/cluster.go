package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/google/uuid"

	"atoll.dev/api/platform"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

const (
	pathClusters  = "/api/v0/clusters"
	pathNodePools = "/api/v0/nodepools"
)

// Cluster is a cluster with the ETag of the answer that it was read from.
type Cluster struct {
	platform.Cluster
	ETag string `json:"-"`
}

// CreateCluster creates a cluster of the caller's account. The error has status 409 when another
// cluster of the account has the name, and 422 with Error.Fields when the spec is invalid. A retry
// after a lost answer creates no second cluster.
func (p *Client) CreateCluster(ctx context.Context, r platform.ClusterRequest) (Cluster, error) {
	body, err := json.Marshal(r)
	if err != nil {
		return Cluster{}, fmt.Errorf("the cluster: %w", err)
	}
	return p.sendForCluster(ctx, remote.Request{Method: http.MethodPost, Path: pathClusters, Header: idempotencyKey(),
		Body: body})
}

// Cluster returns one cluster.
func (p *Client) Cluster(ctx context.Context, id ClusterID) (Cluster, error) {
	return p.sendForCluster(ctx, remote.Request{Method: http.MethodGet, Path: pathOf(pathClusters, string(id))})
}

// ClusterQuery selects clusters of the caller's account. An empty member selects all.
type ClusterQuery struct {
	Name  string
	Phase platform.ClusterPhase
}

// Clusters returns all clusters that a query selects, the oldest first.
func (p *Client) Clusters(ctx context.Context, q ClusterQuery) ([]platform.Cluster, error) {
	v := url.Values{}
	remote.SetNonEmpty(v, "name", q.Name)
	remote.SetNonEmpty(v, "status", string(q.Phase))
	return allByOffset(ctx, func(ctx context.Context, limit, offset int) ([]platform.Cluster, error) {
		var list platform.ClusterList
		err := p.list(ctx, pathClusters, v, limit, offset, &list)
		return list.Items, err
	})
}

// UpdateCluster applies a JSON merge patch, such as {"spec":{"hibernated":true}}. With an etag, the
// error has status 412 when the cluster has changed since.
func (p *Client) UpdateCluster(ctx context.Context, id ClusterID, patch json.RawMessage, etag string) (Cluster, error) {
	return p.sendForCluster(ctx, remote.Request{Method: http.MethodPatch, Path: pathOf(pathClusters, string(id)),
		Header: remote.MergePatchHeader(etag),
		Body:   patch})
}

// DeleteOptions are the options of DeleteCluster. The zero value deletes any version, without force.
type DeleteOptions struct {
	ETag string // the only version to delete: the error has status 412 when the cluster has another; "": any version

	// Force removes the record of a cluster whose deletion does not end. It needs
	// a reason, and a privileged caller.
	Force  bool
	Reason string
}

// DeleteCluster requests the deletion of a cluster with its node pools and credentials. The deletion is
// complete when Cluster returns an error with status 404.
func (p *Client) DeleteCluster(ctx context.Context, id ClusterID, d DeleteOptions) error {
	q := url.Values{}
	if d.Force {
		q.Set("force", "true")
	}
	remote.SetNonEmpty(q, "reason", d.Reason)
	_, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: pathOf(pathClusters, string(id)),
		Query: q, Header: remote.IfMatchHeader(d.ETag)})
	return err
}

// ClusterStatuses returns the reports of the region's adapters about a cluster.
func (p *Client) ClusterStatuses(ctx context.Context, id ClusterID) (platform.ClusterStatuses, error) {
	var s platform.ClusterStatuses
	err := p.get(ctx, pathOf(pathClusters, string(id))+"/statuses", nil, &s)
	return s, err
}

// ClusterEvents returns the events of a cluster, the oldest first.
func (p *Client) ClusterEvents(ctx context.Context, id ClusterID) ([]platform.Event, error) {
	var list platform.EventList
	err := p.get(ctx, pathOf(pathClusters, string(id))+"/events", nil, &list)
	return list.Items, err
}

// WatchClusters opens one stream of changes of the account's clusters, or of the cluster o.ID. The
// objects of its events are platform.Clusters.
func (p *Client) WatchClusters(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
	return p.http.Watch(ctx, pathClusters, o)
}

// FollowClusters calls apply with every event of WatchClusters, across broken streams, as
// FollowBundles does.
func (p *Client) FollowClusters(ctx context.Context, o remote.WatchOptions, apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, p.WatchClusters, apply)
}

// WatchClusterEvents opens the stream of a cluster's events: the past ones, a bookmark, and the new
// ones. The objects are platform.Events. The stream ends with the deletion of the cluster.
func (p *Client) WatchClusterEvents(ctx context.Context, id ClusterID, cursor string) (*remote.Watch, error) {
	return p.http.Watch(ctx, pathOf(pathClusters, string(id))+"/events", remote.WatchOptions{Cursor: cursor})
}

// FollowClusterEvents calls apply with the past and the new events of a cluster. It returns an error
// with status 404 when the cluster is deleted, and otherwise that of ctx or apply.
func (p *Client) FollowClusterEvents(ctx context.Context, id ClusterID, apply func(platform.Event) error) error {
	open := func(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
		return p.WatchClusterEvents(ctx, id, o.Cursor)
	}
	return remote.Follow(ctx, remote.WatchOptions{}, open, func(e remote.Event) error {
		if e.Type != rest.Added {
			return nil
		}
		var happened platform.Event
		if err := json.Unmarshal(e.Object, &happened); err != nil {
			return fmt.Errorf("reading an event of the Platform API: %w", err)
		}
		return apply(happened)
	})
}

// credentialWait bounds the time to the answer of CreateCredential: the region may have to wake the
// control plane first.
const credentialWait = 25 * time.Second

// CreateCredential creates a kubeconfig for a cluster. Without a certificate request the region makes
// the key, too. It is not retried after a lost answer, because a retry would make a second key.
func (p *Client) CreateCredential(ctx context.Context, cluster ClusterID, r platform.CredentialRequest) (
	platform.Credential, error) {
	var c platform.Credential
	body, err := json.Marshal(r)
	if err != nil {
		return c, fmt.Errorf("the credential: %w", err)
	}
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodPost, Path: pathOf(pathClusters, string(cluster)) +
		"/credentials",
		Body: body, AnswerTimeout: credentialWait})
	if err != nil {
		return c, err
	}
	err = decode(doc, &c)
	return c, err
}

// Credentials returns a cluster's credentials, without secrets.
func (p *Client) Credentials(ctx context.Context, cluster ClusterID) ([]platform.Credential, error) {
	var list platform.CredentialList
	err := p.get(ctx, pathOf(pathClusters, string(cluster))+"/credentials", nil, &list)
	return list.Items, err
}

// Credential returns one of a cluster's credentials, without secrets.
func (p *Client) Credential(ctx context.Context, cluster ClusterID, id CredentialID) (platform.Credential, error) {
	var c platform.Credential
	err := p.get(ctx, credentialPath(cluster, id), nil, &c)
	return c, err
}

func credentialPath(cluster ClusterID, id CredentialID) string {
	return pathOf(pathClusters, string(cluster)) + pathOf("/credentials", string(id))
}

// RevokeCredential revokes a credential before it expires.
func (p *Client) RevokeCredential(ctx context.Context, cluster ClusterID, id CredentialID) error {
	_, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodDelete, Path: credentialPath(cluster, id)})
	return err
}

// Backups returns the times to which a cluster can be restored, and its last restore.
func (p *Client) Backups(ctx context.Context, cluster ClusterID) (platform.ClusterBackups, error) {
	var b platform.ClusterBackups
	err := p.get(ctx, pathOf(pathClusters, string(cluster))+"/backups", nil, &b)
	return b, err
}

// Restore requests a restore of a cluster. When an answer is lost, the client retries, and the region still starts one
// restore only.
func (p *Client) Restore(ctx context.Context, cluster ClusterID, r platform.RestoreRequest) (platform.Restore, error) {
	var made platform.Restore
	body, err := json.Marshal(r)
	if err != nil {
		return made, fmt.Errorf("the restore: %w", err)
	}
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodPost, Header: idempotencyKey(), Body: body,
		Path: pathOf(pathClusters, string(cluster)) + "/restore"})
	if err != nil {
		return made, err
	}
	err = decode(doc, &made)
	return made, err
}

// RotateKey requests a step of the rotation of a cluster's key. When an answer is lost, the client retries, and the
// region still starts the step once only.
func (p *Client) RotateKey(ctx context.Context, cluster ClusterID, r platform.RotationRequest) (
	platform.Rotation, error) {
	var made platform.Rotation
	body, err := json.Marshal(r)
	if err != nil {
		return made, fmt.Errorf("the rotation: %w", err)
	}
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodPost, Header: idempotencyKey(), Body: body,
		Path: pathOf(pathClusters, string(cluster)) + "/rotate"})
	if err != nil {
		return made, err
	}
	err = decode(doc, &made)
	return made, err
}

// pathOf returns the URL path of one document of a collection.
func pathOf(collection, id string) string { return collection + "/" + url.PathEscape(id) }

// idempotencyKey returns the header Idempotency-Key with a random value: a retried POST then has one effect.
func idempotencyKey() http.Header { return http.Header{"Idempotency-Key": {uuid.NewString()}} }

// sendForCluster sends a request whose answer is a cluster.
func (p *Client) sendForCluster(ctx context.Context, r remote.Request) (Cluster, error) {
	doc, _, err := p.http.Do(ctx, r)
	if err != nil {
		return Cluster{}, err
	}
	c := Cluster{ETag: doc.ETag}
	err = decode(doc, &c.Cluster)
	return c, err
}

// get sends a GET and decodes the answer.
func (p *Client) get(ctx context.Context, path string, q url.Values, v any) error {
	doc, _, err := p.http.Do(ctx, remote.Request{Method: http.MethodGet, Path: path, Query: q})
	if err != nil {
		return err
	}
	return decode(doc, v)
}

// list reads one page by limit and offset.
func (p *Client) list(ctx context.Context, path string, q url.Values, limit, offset int, v any) error {
	page := url.Values{"limit": {strconv.Itoa(limit)}, "offset": {strconv.Itoa(offset)}}
	for k, values := range q {
		page[k] = values
	}
	return p.get(ctx, path, page, v)
}

// allByOffset returns all items of a list whose pages get reads by limit and offset.
func allByOffset[T any](ctx context.Context, get func(ctx context.Context, limit, offset int) ([]T, error)) (
	[]T, error) {
	const limit = 100
	all := []T{}
	for {
		items, err := get(ctx, limit, len(all))
		if err != nil {
			return nil, err
		}
		if all = append(all, items...); len(items) < limit {
			return all, nil
		}
	}
}

// Rollback returns a cluster to the release before its last upgrade. The error has status 409 when it cannot go back.
func (p *Client) Rollback(ctx context.Context, cluster ClusterID) (Cluster, error) {
	return p.sendForCluster(ctx, remote.Request{Method: http.MethodPost, Header: idempotencyKey(),
		Path: pathOf(pathClusters, string(cluster)) + "/rollback"})
}
