package client

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/maestro"
)

// SourceRosa is the source of the works that the Platform API posts.
const SourceRosa = "rosa-regional-platform-api"

// MaestroOptions say where Maestro is and who calls it.
type MaestroOptions struct {
	HTTP   string      // base URL of REST, such as https://127.0.0.1:20010
	GRPC   string      // host:port of gRPC
	TLS    *tls.Config // the caller's certificate and Maestro's CA; nil: plain, for --insecure-listen
	Source string      // CloudEvents source of what is published; default SourceRosa

	// Timeout is how long a call may take until Maestro counts as
	// unavailable; default 1.9 s.
	Timeout time.Duration

	// An idle gRPC connection is asked after KeepaliveTime, default 10 s, whether
	// it lives, and is given up when KeepaliveTimeout, default 2 s, has passed.
	// Maestro drops clients that ask more often than every 5 s.
	KeepaliveTime, KeepaliveTimeout time.Duration
}

// Maestro is a client of one Maestro: REST to read, delete and watch, gRPC to
// create and update. Its errors are *Error; an unavailable Maestro is status
// 503 within the timeout. It may be used by many goroutines.
type Maestro struct {
	rest    *caller
	conn    *grpc.ClientConn
	events  cloudevents.CloudEventServiceClient
	source  string
	timeout time.Duration
}

// NewMaestro returns a client. It connects when it is used.
func NewMaestro(o MaestroOptions) (*Maestro, error) {
	if o.Source == "" {
		o.Source = SourceRosa
	}
	if o.Timeout <= 0 {
		o.Timeout = 1900 * time.Millisecond
	}
	c, err := newCaller("Maestro", o.HTTP, o.TLS)
	if err != nil {
		return nil, err
	}
	c.headers, c.budget, c.patience = o.Timeout, o.Timeout, 300*time.Millisecond
	c.prepare = func(r *http.Request, _ []byte) error {
		actorOf(r.Context()).each(r.Header.Set)
		r.Header.Set(maestro.ExtensionsHeader, "true")
		return nil
	}
	conn, err := dialMaestro(o.GRPC, o.TLS, keepalive.ClientParameters{
		Time: cmp.Or(o.KeepaliveTime, 10*time.Second), Timeout: cmp.Or(o.KeepaliveTimeout, 2*time.Second),
	})
	if err != nil {
		return nil, fmt.Errorf("Maestro: the gRPC address %q: %w", o.GRPC, err)
	}
	return &Maestro{
		rest: c, conn: conn, events: cloudevents.NewCloudEventServiceClient(conn),
		source: o.Source, timeout: o.Timeout,
	}, nil
}

// Close closes the connections. Calls under way fail.
func (m *Maestro) Close() error {
	m.rest.close()
	return m.conn.Close()
}

// Source is the source of what the client publishes.
func (m *Maestro) Source() string { return m.source }

// Ready says whether Maestro can take work: it reads its database, and its
// gRPC port answers.
func (m *Maestro) Ready(ctx context.Context) error {
	m.conn.Connect()
	if _, err := m.ListConsumers(ctx, ListOptions{Size: 1, Fields: "id"}); err != nil {
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
			return unreachable("Maestro's gRPC port", true, nil)
		}
		if !m.conn.WaitForStateChange(ctx, s) {
			return unreachable("Maestro's gRPC port", true, errNoAnswer)
		}
	}
}

const (
	pathConsumers = "/api/maestro/v1/consumers"
	pathBundles   = "/api/maestro/v1/resource-bundles"
)

// CreateConsumer registers a management cluster under its name. A name that is
// taken is 409.
func (m *Maestro) CreateConsumer(ctx context.Context, name string, labels map[string]string) (Document, error) {
	body, err := json.Marshal(maestro.ConsumerCreate{Name: name, Labels: labels})
	if err != nil {
		return Document{}, err
	}
	doc, _, err := m.rest.do(ctx, request{method: http.MethodPost, path: pathConsumers, body: body})
	return doc, err
}

// ListConsumers returns a maestro.ConsumerList.
func (m *Maestro) ListConsumers(ctx context.Context, o ListOptions) (Document, error) {
	return m.get(ctx, pathConsumers, o.query())
}

// Consumer returns a maestro.Consumer by its id.
func (m *Maestro) Consumer(ctx context.Context, id string) (Document, error) {
	return m.get(ctx, pathConsumers+"/"+url.PathEscape(id), nil)
}

// ConsumerNamed returns a maestro.Consumer by its name; 404 when there is
// none.
func (m *Maestro) ConsumerNamed(ctx context.Context, name string) (Document, error) {
	doc, err := m.ListConsumers(ctx, ListOptions{Size: 1, Search: Equal("name", name)})
	if err != nil {
		return Document{}, err
	}
	var list maestro.ConsumerList
	if err := json.Unmarshal(doc.JSON, &list); err != nil {
		return Document{}, fmt.Errorf("reading Maestro's list of consumers: %w", err)
	}
	if len(list.Items) == 0 {
		return Document{}, &Error{Status: http.StatusNotFound, Code: "maestro-7", Reason: fmt.Sprintf(
			"Consumer with name='%s' not found", name)}
	}
	return m.Consumer(ctx, list.Items[0].ID) // for the entity tag
}

// SetConsumerLabels replaces the labels of a consumer.
func (m *Maestro) SetConsumerLabels(ctx context.Context, id string, labels map[string]string, etag string) (Document,
	error) {
	body, err := json.Marshal(maestro.ConsumerPatch{Labels: &labels})
	if err != nil {
		return Document{}, err
	}
	doc, _, err := m.rest.do(ctx, request{method: http.MethodPatch, path: pathConsumers + "/" + url.PathEscape(id),
		header: ifMatch(etag), body: body})
	return doc, err
}

// DeleteConsumer removes a consumer that has no bundles; one that has is 403
// maestro-4. One that does not exist is no error.
func (m *Maestro) DeleteConsumer(ctx context.Context, id, etag string) error {
	return m.delete(ctx, pathConsumers+"/"+url.PathEscape(id), etag)
}

// ListBundles returns a maestro.ResourceBundleList.
func (m *Maestro) ListBundles(ctx context.Context, o ListOptions) (Document, error) {
	return m.get(ctx, pathBundles, o.query())
}

// Bundle returns a maestro.ResourceBundle with its delivery.
func (m *Maestro) Bundle(ctx context.Context, id string) (Document, error) {
	return m.get(ctx, pathBundles+"/"+url.PathEscape(id), nil)
}

// DeleteBundle orders the deletion of a bundle. One that does not exist, or is
// being deleted already, is no error.
func (m *Maestro) DeleteBundle(ctx context.Context, id, etag string) error {
	return m.delete(ctx, pathBundles+"/"+url.PathEscape(id), etag)
}

// WatchBundles opens one stream of changes. Its objects are
// maestro.ResourceBundles.
func (m *Maestro) WatchBundles(ctx context.Context, o WatchOptions) (*Watch, error) {
	return m.rest.watch(ctx, pathBundles, o)
}

// FollowBundles calls apply with every event until ctx ends or apply fails,
// and returns why. It continues streams that break.
func (m *Maestro) FollowBundles(ctx context.Context, o WatchOptions, apply func(Event) error) error {
	return follow(ctx, o, m.WatchBundles, apply)
}

func (m *Maestro) get(ctx context.Context, path string, q url.Values) (Document, error) {
	doc, _, err := m.rest.do(ctx, request{method: http.MethodGet, path: path, query: q})
	return doc, err
}

func (m *Maestro) delete(ctx context.Context, path, etag string) error {
	_, _, err := m.rest.do(ctx, request{method: http.MethodDelete, path: path, header: ifMatch(etag)})
	return err
}

// Equal is the search for documents whose field has this value.
func Equal(field, value string) string {
	return field + "='" + strings.ReplaceAll(value, "'", "''") + "'"
}
