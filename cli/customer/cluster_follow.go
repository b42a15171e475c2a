package customer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/remote"
	"atoll.dev/internal/rest"
)

// clusterUpdate is one update of a followed cluster: an event of its history, its present state, or
// its deletion.
type clusterUpdate struct {
	event   *platform.Event
	cluster *platform.Cluster
	gone    bool
}

// followCluster follows a cluster. It calls onUpdate with each update, beginning with the events
// since the creation, and onTick ten times a second, both from one goroutine. It returns the first
// error of either (errGoalReached when the caller has seen enough), the error of a stream, or the
// cause of the end of ctx.
func followCluster(ctx context.Context, api *client.Client, id client.ClusterID, onUpdate func(clusterUpdate) error,
	onTick func() error) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	updates := make(chan clusterUpdate)
	send := func(ctx context.Context, update clusterUpdate) error {
		select {
		case updates <- update:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	var streams errgroup.Group
	streams.Go(func() error {
		err := api.FollowClusterEvents(ctx, id, func(e platform.Event) error {
			return send(ctx, clusterUpdate{event: &e})
		})
		if remote.StatusOf(err) == http.StatusNotFound {
			return nil // the other stream reports the deletion
		}
		stop(err)
		return err
	})
	streams.Go(func() error {
		err := api.FollowClusters(ctx, remote.WatchOptions{ID: string(id)}, clusterHandler(func(k *platform.Cluster) error {
			return send(ctx, clusterUpdate{cluster: k, gone: k == nil})
		}))
		stop(err)
		return err
	})
	err := func() error {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			var err error
			select {
			case update := <-updates:
				err = onUpdate(update)
			case <-ticker.C:
				err = onTick()
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if err != nil {
				return err
			}
		}
	}()
	stop(err)
	_ = streams.Wait() // their errors are err or a consequence of it
	return err
}

// clusterHandler returns a handler for the watch of one cluster. It calls onState with the cluster
// after each change, and with nil when the cluster is deleted. A watch begins with the existing
// clusters: when the first bookmark arrives before the cluster, the cluster is deleted already.
func clusterHandler(onState func(*platform.Cluster) error) func(remote.Event) error {
	seen := false
	return func(e remote.Event) error {
		switch {
		case e.Type == remote.Relist:
			seen = false
			return nil
		case e.Type == rest.Deleted, e.Type == rest.Bookmark && !seen:
			return onState(nil)
		case len(e.Object) == 0:
			return nil
		}
		seen = true
		var cluster platform.Cluster
		if err := json.Unmarshal(e.Object, &cluster); err != nil {
			return fmt.Errorf("watching clusters: %w", err)
		}
		return onState(&cluster)
	}
}

// errWaitTimeout is the cause of the end of a wait that took longer than --timeout.
var errWaitTimeout = errors.New("too late")

// errGoalReached ends a watch when the goal of the command is reached.
var errGoalReached = errors.New("reached")
