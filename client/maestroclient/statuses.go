package maestroclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/client/remote"
)

// BundleStatus is a message of Maestro's gRPC stream about a bundle of the source.
type BundleStatus struct {
	ID       work.ID
	Version  int64
	Metadata json.RawMessage // the source's ObjectMeta; may be empty
	Status   work.Status     // with the bundle's spec, where the server fills it in
	Deleted  bool            // its agent has deleted it, and Maestro has removed it
}

// FollowStatuses subscribes to the statuses of the source's bundles, as OCM's source clients do, until
// ctx ends or a function fails, and returns that error. A stream has only changes after the subscription:
// FollowStatuses calls onSubscribed after each subscription, and onSubscribed must read the present statuses.
func (m *Client) FollowStatuses(ctx context.Context, onSubscribed func() error, apply func(BundleStatus) error) error {
	for attempt := 0; ; attempt++ {
		isSubscribed, err := m.applyStatuses(ctx, onSubscribed, apply)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if stop, ok := errors.AsType[*remote.ApplyError](err); ok {
			return stop.Err
		}
		if isSubscribed {
			attempt = 0
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(remote.Backoff(attempt)):
		}
	}
}

// applyStatuses applies the messages of one stream. isSubscribed is true when Maestro has accepted the
// subscription.
func (m *Client) applyStatuses(ctx context.Context, onSubscribed func() error, apply func(BundleStatus) error) (
	isSubscribed bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := m.events.Subscribe(ctx, &cloudevents.SubscriptionRequest{Source: m.source})
	if err != nil {
		return false, newError(ctx, err, "")
	}
	// Maestro sends a heartbeat every 10 s; a stream without one is broken.
	idle := time.AfterFunc(remote.StreamIdleLimit, func() { cancel(remote.ErrNoAnswer) })
	defer idle.Stop()
	if _, err := stream.Header(); err != nil { // Maestro sends it after the subscription
		return false, newError(ctx, err, "")
	}
	if err := onSubscribed(); err != nil {
		return true, &remote.ApplyError{Err: err}
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return true, newError(ctx, err, "")
		}
		idle.Reset(remote.StreamIdleLimit)
		switch event.GetType() {
		case work.StatusUpdate, work.StatusResyncResponse:
		default:
			continue
		}
		status, err := statusOfEvent(event)
		if err == nil {
			err = apply(status)
		}
		if err != nil {
			return true, &remote.ApplyError{Err: err}
		}
	}
}

// statusOfEvent reads a status event of OCM's gRPC protocol.
func statusOfEvent(e *cloudevents.CloudEvent) (BundleStatus, error) {
	var s BundleStatus
	attribute := func(name string) string {
		v := e.GetAttributes()["ce-"+name]
		if n, ok := v.GetAttr().(*cloudevents.CloudEvent_CloudEventAttributeValue_CeInteger); ok {
			return strconv.Itoa(int(n.CeInteger))
		}
		return v.GetCeString()
	}
	s.ID = work.ID(attribute(work.ExtResourceID))
	s.Version, _ = strconv.ParseInt(attribute(work.ExtResourceVersion), 10, 64)
	if meta := attribute(work.ExtMetadata); json.Valid([]byte(meta)) {
		s.Metadata = json.RawMessage(meta)
	}
	if err := json.Unmarshal(e.GetBinaryData(), &s.Status); err != nil {
		return s, fmt.Errorf("reading the status of the work %s: %w", s.ID, err)
	}
	for _, c := range s.Status.Conditions {
		s.Deleted = s.Deleted || c.Type == work.ConditionDeleted && c.Status == metav1.ConditionTrue
	}
	return s, nil
}
