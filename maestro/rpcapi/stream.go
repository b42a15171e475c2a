package rpcapi

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/maestro/dispatch"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/store"
)

type eventStream = grpc.ServerStreamingServer[cloudevents.CloudEvent]

// eventSender is the sending side of a subscription. A send blocks while the client
// does not read, and only the end of the call unblocks it, so sends run in a goroutine
// of their own beside the handler's.
type eventSender struct {
	stream eventStream
	begun  atomic.Int64 // when the running send began; 0: none runs
}

// serveStream announces the subscription, then runs write until write fails, the client
// disconnects, the server stops, the caller loses its permission, or ended is closed:
// then endReason returns the reason. It drops a client that reads nothing for Options.Stuck.
func (a *api) serveStream(
	stream eventStream,
	scope rpcauth.Scope,
	name string,
	ended <-chan struct{},
	endReason func() error,
	write func(context.Context, *eventSender) error,
) error {
	// Clients count as subscribed when they receive the header, so the server sends
	// it when the subscription exists.
	if err := stream.SendHeader(metadata.Pairs("subscription-id", uuid.NewString())); err != nil {
		return err
	}
	a.o.Metrics.Streams.Inc()
	defer a.o.Metrics.Streams.Dec()
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	o := &eventSender{stream: stream}
	written := make(chan error, 1)
	go func() { written <- write(ctx, o) }() // ends with the call
	watch := time.NewTicker(a.o.Stuck / 4)
	defer watch.Stop()
	recheck := time.NewTicker(a.o.Recheck)
	defer recheck.Stop()
	for {
		select {
		case err := <-written:
			return streamError(err)
		case <-recheck.C:
			if err := a.o.Auth.CheckAgain(ctx, scope, name); err != nil {
				return status.Error(codes.PermissionDenied, err.Error())
			}
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-a.o.Stopping:
			return status.Error(codes.Unavailable, "the server is stopping; reconnect")
		case <-ended:
			return streamError(endReason())
		case <-watch.C:
			if begun := o.begun.Load(); begun != 0 && time.Since(time.Unix(0, begun)) > a.o.Stuck {
				return streamError(store.ErrTooSlow)
			}
		}
	}
}

// streamError returns the status with which a subscription ends. The client may
// reconnect at once after each of them.
func streamError(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	switch {
	case errors.Is(err, store.ErrTooSlow):
		return status.Error(codes.ResourceExhausted, "the subscriber is too slow and was dropped; reconnect and resync")
	case errors.Is(err, dispatch.ErrReplaced):
		return status.Error(codes.Aborted, err.Error())
	}
	return status.Error(codes.Unavailable, fmt.Sprintf("%s; reconnect and resync", err))
}

// send sends one event, and notes when it began so that serveStream finds a stuck client.
func (o *eventSender) send(e *cloudevents.CloudEvent) error {
	o.begun.Store(time.Now().UnixNano())
	defer o.begun.Store(0)
	return o.stream.Send(e)
}

// sendHeartbeat sends a heartbeat event, which has no source.
func (o *eventSender) sendHeartbeat() error {
	return o.send(&cloudevents.CloudEvent{Id: uuid.NewString(), SpecVersion: "1.0", Type: work.Heartbeat})
}
