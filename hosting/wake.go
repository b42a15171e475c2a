package hosting

import (
	"context"
	"errors"
	"fmt"
	"time"

	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// ErrNotHosted is the error of a name that no HostedCluster has.
var ErrNotHosted = errors.New("no such hosted cluster")

// wakeTries is how often a plane may fail to start before waiting requests get an
// error. The runtime goes on trying; status shows why it fails.
const wakeTries = 3

// Wake returns when a hosted cluster's plane serves. It waits while the plane sleeps,
// starts, is upgraded, stopped or discarded, and counts as use of the plane.
//
// The error is ErrNotHosted, that of ctx, or the failure of a plane that did not
// start for wakeTries times.
func (h *Hosting) Wake(ctx context.Context, id controlplane.ID) error {
	_, err := h.wake(ctx, id)
	return err
}

// WakeServer is Wake by TLS server name, for the router. It returns where the
// plane listens.
func (h *Hosting) WakeServer(ctx context.Context, serverName string) (backend string, err error) {
	h.mu.Lock()
	id, ok := h.names[serverName]
	h.mu.Unlock()
	if !ok {
		return "", fmt.Errorf("%s: %w", serverName, ErrNotHosted)
	}
	return h.wake(ctx, id)
}

func (h *Hosting) wake(ctx context.Context, id controlplane.ID) (backend string, err error) {
	triggered := false
	var entered *hostedCluster // whose demand counts this request
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if entered != nil {
			entered.demand.Asked = time.Now()
			entered.demand.Waiting--
		}
	}()
	for {
		h.mu.Lock()
		changes, c, stopping, forward := h.changes, h.hosted[id], false, ""
		if c != nil {
			forward = c.forward
			stopping = c.stopping
			if c != entered {
				c.demand.Asked = time.Now()
				c.demand.Waiting++
				entered = c
			}
		}
		h.mu.Unlock()
		if c == nil && h.clusters.Ready(ctx) == nil && h.clusters.Get(loop.Key(id)) == nil {
			return "", fmt.Errorf("%s: %w", id, ErrNotHosted)
		}
		if c != nil {
			o, err := h.o.Planes.Observe(id)
			switch {
			case forward != "":
				return forward, nil // the plane has moved: the router of the other management cluster answers
			case err != nil:
				return "", fmt.Errorf("waking %s: %w", id, err)
			case o.State == controlplane.Ready && !stopping:
				return o.Backend, nil
			case o.Failure != nil && o.Failure.Count >= wakeTries && triggered:
				return "", fmt.Errorf("waking %s: %w", id, o.Failure)
			}
			if !triggered {
				triggered = true
				h.clusters.Trigger(loop.Key(id))
			}
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for the plane of %s: %w", id, ctx.Err())
		case <-changes:
		}
	}
}
