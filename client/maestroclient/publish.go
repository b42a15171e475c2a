package maestroclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
)

// Bundle is a work to publish.
type Bundle struct {
	ID       work.ID // BundleID of the client's source, Consumer and Metadata.Name
	Consumer work.Consumer
	Metadata metav1.ObjectMeta // of the source's work: name, namespace, labels, annotations
	Spec     work.Bundle

	// IfMatch, when set, is the ETag of the only version that an update replaces.
	IfMatch string
}

// headerVersion is the gRPC response header with the version of a published bundle: the number inside
// its ETag.
const headerVersion = "atoll-version"

// BundleID returns the id of the client's work of a name on a management cluster.
func (m *Client) BundleID(consumer work.Consumer, name string) work.ID {
	return work.BundleID(m.source, consumer, name)
}

// CreateBundle publishes a new bundle and returns its ETag, or "" when Maestro does not send it. The
// error has status 409 for an existing id and 404 for an unknown consumer.
func (m *Client) CreateBundle(ctx context.Context, b Bundle) (etag string, err error) {
	return m.publish(ctx, work.SpecCreate, b)
}

// UpdateBundle publishes the new spec and metadata of a bundle. Equal ones change nothing. The error
// has status 412 when the bundle's version is not IfMatch, 409 when the bundle is being deleted, and
// 404 when it does not exist.
func (m *Client) UpdateBundle(ctx context.Context, b Bundle) (etag string, err error) {
	return m.publish(ctx, work.SpecUpdate, b)
}

// PublishDeletion publishes the deletion of a bundle, as OCM's sources do. It uses ID, Consumer, Metadata
// and IfMatch of b. An unknown bundle is no error.
func (m *Client) PublishDeletion(ctx context.Context, b Bundle) error {
	_, err := m.publish(ctx, work.SpecDelete, b)
	return err
}

func (m *Client) publish(ctx context.Context, eventType string, b Bundle) (string, error) {
	event, err := m.newEvent(eventType, b, time.Now(), remote.ActorOf(ctx))
	if err != nil {
		return "", fmt.Errorf("publishing %s: %w", b.ID, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.timeout, remote.ErrNoAnswer)
	defer cancel()
	remote.ActorOf(ctx).EachHeader(func(name, value string) {
		ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(name), value)
	})
	var header metadata.MD
	_, err = m.events.Publish(ctx, &cloudevents.PublishRequest{Event: event}, grpc.Header(&header))
	if err != nil {
		return "", newError(ctx, err, b.IfMatch)
	}
	if v := header.Get(headerVersion); len(v) == 1 {
		return strconv.Quote(v[0]), nil
	}
	return "", nil
}

// newEvent returns the CloudEvent of a bundle. Its attribute keys are those of OCM's gRPC protocol, not
// of the CloudEvents protobuf format.
func (m *Client) newEvent(eventType string, b Bundle, now time.Time, a remote.Actor) (*cloudevents.CloudEvent, error) {
	meta := b.Metadata
	meta.Namespace = string(b.Consumer)
	meta.UID = types.UID(b.ID)
	metaJSON, err := json.Marshal(meta)
	if err != nil {
		return nil, err
	}
	attributes := map[string]*cloudevents.CloudEvent_CloudEventAttributeValue{
		"contenttype":                   stringAttribute("application/json"),
		"ce-time":                       timeAttribute(now),
		"ce-" + work.ExtResourceID:      stringAttribute(string(b.ID)),
		"ce-" + work.ExtResourceVersion: intAttribute(0), // whatever the generation is
		"ce-" + work.ExtClusterName:     stringAttribute(string(b.Consumer)),
		"ce-" + work.ExtMetadata:        stringAttribute(string(metaJSON)),
	}
	if b.IfMatch != "" {
		attributes["ce-"+work.ExtIfMatch] = stringAttribute(strings.Trim(b.IfMatch, `"`))
	}
	if a.RequestID != "" {
		tracing, err := json.Marshal(map[string]string{work.OpIDKey: a.RequestID})
		if err != nil {
			return nil, err
		}
		attributes["ce-"+work.ExtLogTracing] = stringAttribute(string(tracing))
	}
	event := &cloudevents.CloudEvent{
		Id: uuid.NewString(), Source: m.source, SpecVersion: "1.0", Type: eventType, Attributes: attributes,
	}
	if eventType == work.SpecDelete {
		attributes["ce-"+work.ExtDeletionTimestamp] = timeAttribute(now)
		b.Spec = work.Bundle{}
	}
	if b.Spec.Manifests == nil {
		b.Spec.Manifests = []json.RawMessage{}
	}
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false) // manifests travel as they were posted
	if err := enc.Encode(b.Spec); err != nil {
		return nil, err
	}
	event.Data = &cloudevents.CloudEvent_BinaryData{BinaryData: bytes.TrimSpace(data.Bytes())}
	return event, nil
}

// dialMaestro prepares the only connection. It reconnects within half a second after Maestro is
// reachable again.
func dialMaestro(target string, config *tls.Config, alive keepalive.ClientParameters) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if config != nil {
		creds = credentials.NewTLS(config.Clone())
	}
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(creds),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: grpcbackoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
				MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: 1500 * time.Millisecond,
		}),
		grpc.WithKeepaliveParams(alive),
		grpc.WithIdleTimeout(0),
		grpc.WithDisableServiceConfig(),
	)
}

func stringAttribute(s string) *cloudevents.CloudEvent_CloudEventAttributeValue {
	return &cloudevents.CloudEvent_CloudEventAttributeValue{
		Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeString{CeString: s},
	}
}

func intAttribute(n int32) *cloudevents.CloudEvent_CloudEventAttributeValue {
	return &cloudevents.CloudEvent_CloudEventAttributeValue{
		Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeInteger{CeInteger: n},
	}
}

func timeAttribute(t time.Time) *cloudevents.CloudEvent_CloudEventAttributeValue {
	return &cloudevents.CloudEvent_CloudEventAttributeValue{
		Attr: &cloudevents.CloudEvent_CloudEventAttributeValue_CeTimestamp{CeTimestamp: timestamppb.New(t)},
	}
}
