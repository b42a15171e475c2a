// Package maestroclient is the Go client of Maestro, for the region's services and for operators:
// consumers and resource bundles over REST; publishing of bundles and their statuses over gRPC, by
// Open Cluster Management's protocol.
//
// A service proves its identity by its certificate, and names the actor for whom it calls with
// remote.WithActor. Errors, those of gRPC too, are *remote.Error. It is a tool: api and internal
// packages must not import it.
package maestroclient

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/maestro"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
)

// Options are the addresses of Maestro and the caller's identity.
type Options struct {
	HTTP   string      // base URL of REST, such as https://127.0.0.1:20010
	GRPC   string      // host:port of gRPC
	TLS    *tls.Config // the caller's certificate and Maestro's CA; nil: plain, for --insecure-listen
	Source string      // CloudEvents source of published bundles; default work.SourcePlatform

	// Timeout bounds each call; after it, Maestro counts as unavailable. Default 1.9 s.
	Timeout time.Duration

	// The client pings an idle gRPC connection after KeepaliveTime, default 10 s, and closes it
	// without an answer within KeepaliveTimeout, default 2 s. Maestro disconnects clients that ping
	// more often than every 5 s.
	KeepaliveTime, KeepaliveTimeout time.Duration
}

// Client is a client of one Maestro. It creates and updates bundles over gRPC; all other calls go over REST. An
// unavailable Maestro is an error with status 503 within the timeout. Several goroutines may use it.
type Client struct {
	rest    *remote.Service
	conn    *grpc.ClientConn
	events  cloudevents.CloudEventServiceClient
	source  string
	timeout time.Duration
}

// New returns a client. The client connects at its first call.
func New(o Options) (*Client, error) {
	if o.Source == "" {
		o.Source = work.SourcePlatform
	}
	if o.Timeout <= 0 {
		o.Timeout = 1900 * time.Millisecond
	}
	c, err := remote.New("Maestro", o.HTTP, o.TLS)
	if err != nil {
		return nil, err
	}
	c.AnswerTimeout, c.Budget, c.MaxRetryAfter = o.Timeout, o.Timeout, 300*time.Millisecond
	c.Prepare = func(r *http.Request, _ []byte) error {
		remote.ActorOf(r.Context()).EachHeader(r.Header.Set)
		r.Header.Set(maestro.ExtensionsHeader, "true")
		return nil
	}
	conn, err := dialMaestro(o.GRPC, o.TLS, keepalive.ClientParameters{
		Time: cmp.Or(o.KeepaliveTime, 10*time.Second), Timeout: cmp.Or(o.KeepaliveTimeout, 2*time.Second),
	})
	if err != nil {
		return nil, fmt.Errorf("Maestro: the gRPC address %q: %w", o.GRPC, err)
	}
	return &Client{
		rest: c, conn: conn, events: cloudevents.NewCloudEventServiceClient(conn),
		source: o.Source, timeout: o.Timeout,
	}, nil
}

// Close closes the connections. Calls in progress fail.
func (m *Client) Close() error {
	m.rest.Close()
	return m.conn.Close()
}

// Source returns the source of the bundles that the client publishes.
func (m *Client) Source() string { return m.source }

// Ready returns nil when Maestro can read its database and its gRPC port answers.
func (m *Client) Ready(ctx context.Context) error {
	m.conn.Connect()
	if _, err := m.ListConsumers(ctx, remote.ListOptions{Size: 1, Fields: "id"}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	for {
		s := m.conn.GetState()
		switch s {
		case connectivity.Ready:
			return nil
		case connectivity.Idle:
			m.conn.Connect()
		case connectivity.TransientFailure, connectivity.Shutdown:
			return remote.NewNotSentError("Maestro's gRPC port", nil)
		}
		if !m.conn.WaitForStateChange(ctx, s) {
			return remote.NewNotSentError("Maestro's gRPC port", remote.ErrNoAnswer)
		}
	}
}

const (
	pathConsumers = "/api/maestro/v1/consumers"
	pathBundles   = "/api/maestro/v1/resource-bundles"
)

// CreateConsumer registers a management cluster under its name. The error has status 409 when another
// one has the name.
func (m *Client) CreateConsumer(ctx context.Context, name work.Consumer, labels map[string]string) (remote.Document,
	error) {
	body, err := json.Marshal(maestro.ConsumerCreate{Name: string(name), Labels: labels})
	if err != nil {
		return remote.Document{}, err
	}
	doc, _, err := m.rest.Do(ctx, remote.Request{Method: http.MethodPost, Path: pathConsumers, Body: body})
	return doc, err
}

// ListConsumers returns a maestro.ConsumerList.
func (m *Client) ListConsumers(ctx context.Context, o remote.ListOptions) (remote.Document, error) {
	return m.get(ctx, pathConsumers, o.Values())
}

// Consumer returns a maestro.Consumer by its id.
func (m *Client) Consumer(ctx context.Context, id string) (remote.Document, error) {
	return m.get(ctx, pathConsumers+"/"+url.PathEscape(id), nil)
}

// ConsumerNamed returns a maestro.Consumer by its name. The error has status 404 when there is none.
func (m *Client) ConsumerNamed(ctx context.Context, name work.Consumer) (remote.Document, error) {
	doc, err := m.ListConsumers(ctx, remote.ListOptions{Size: 1, Search: remote.SearchEqual("name", string(name))})
	if err != nil {
		return remote.Document{}, err
	}
	var list maestro.ConsumerList
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return remote.Document{}, fmt.Errorf("reading Maestro's list of consumers: %w", err)
	}
	if len(list.Items) == 0 {
		return remote.Document{}, &remote.Error{Status: http.StatusNotFound, Code: "maestro-7", Reason: fmt.Sprintf(
			"Consumer with name='%s' not found", name)}
	}
	return m.Consumer(ctx, list.Items[0].ID) // for the ETag
}

// SetConsumerLabels replaces the labels of a consumer.
func (m *Client) SetConsumerLabels(ctx context.Context, id string, labels map[string]string, etag string) (
	remote.Document,
	error) {
	body, err := json.Marshal(maestro.ConsumerPatch{Labels: &labels})
	if err != nil {
		return remote.Document{}, err
	}
	doc, _, err := m.rest.Do(ctx, remote.Request{Method: http.MethodPatch, Path: pathConsumers + "/" + url.PathEscape(
		id),
		Header: remote.IfMatchHeader(etag), Body: body})
	return doc, err
}

// DeleteConsumer removes a consumer. The error is 403 maestro-4 while the consumer has bundles. A
// consumer that does not exist is no error.
func (m *Client) DeleteConsumer(ctx context.Context, id, etag string) error {
	return m.delete(ctx, pathConsumers+"/"+url.PathEscape(id), etag)
}

// ListBundles returns a maestro.ResourceBundleList.
func (m *Client) ListBundles(ctx context.Context, o remote.ListOptions) (remote.Document, error) {
	return m.get(ctx, pathBundles, o.Values())
}

// Bundle returns a maestro.ResourceBundle with its delivery.
func (m *Client) Bundle(ctx context.Context, id work.ID) (remote.Document, error) {
	return m.get(ctx, pathBundles+"/"+url.PathEscape(string(id)), nil)
}

// DeleteBundle orders the deletion of a bundle. A bundle that does not exist, or is being deleted, is
// no error.
func (m *Client) DeleteBundle(ctx context.Context, id work.ID, etag string) error {
	return m.delete(ctx, pathBundles+"/"+url.PathEscape(string(id)), etag)
}

// WatchBundles opens one stream of changes. The objects of its events are maestro.ResourceBundles.
func (m *Client) WatchBundles(ctx context.Context, o remote.WatchOptions) (*remote.Watch, error) {
	return m.rest.Watch(ctx, pathBundles, o)
}

// FollowBundles calls apply with every event until ctx ends or apply fails, and returns that error.
// It continues broken streams; see remote.Follow.
func (m *Client) FollowBundles(ctx context.Context, o remote.WatchOptions, apply func(remote.Event) error) error {
	return remote.Follow(ctx, o, m.WatchBundles, apply)
}

func (m *Client) get(ctx context.Context, path string, q url.Values) (remote.Document, error) {
	doc, _, err := m.rest.Do(ctx, remote.Request{Method: http.MethodGet, Path: path, Query: q})
	return doc, err
}

func (m *Client) delete(ctx context.Context, path, etag string) error {
	_, _, err := m.rest.Do(ctx, remote.Request{Method: http.MethodDelete, Path: path, Header: remote.IfMatchHeader(etag)})
	return err
}
