package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

// The catalogue consists of resources of the lifecycle manager: a Channel, and below it one Version
// for each version that clusters can run.
const (
	channels clmclient.Collection = "channels"
	versions clmclient.Collection = "versions"

	stableChannel = "stable"
)

// madeByLabel is a label on all resources that a Publisher created. A Publisher deletes no other resources.
const madeByLabel, publisherName = "atoll.dev/made-by", "clm"

// Publisher makes the catalogue of a region equal to a list of versions. Several replicas may
// publish the same list at once.
type Publisher struct {
	CLM      *clmclient.Client // Run closes it
	Versions []string
	Log      *slog.Logger

	published atomic.Bool
}

// Check is a readiness check. It fails until the versions are published.
func (p *Publisher) Check(context.Context) error {
	if !p.published.Load() {
		return errors.New("the releases are not published yet")
	}
	return nil
}

// Run publishes the versions once: it retries every 200 ms until it succeeds, and returns nil. When ctx ends, Run
// also returns nil.
func (p *Publisher) Run(ctx context.Context) error {
	defer p.CLM.Close()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		err := p.Publish(ctx)
		if err == nil {
			p.published.Store(true)
			return nil
		}
		if ctx.Err() == nil {
			p.Log.Warn("the releases were not published", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// Publish creates the missing Versions, and deletes the Versions that an earlier Publisher created and
// the list no longer has; an empty list withdraws all of these. It leaves Versions of other authors
// alone, and does nothing at a lifecycle manager without the kind Channel.
func (p *Publisher) Publish(ctx context.Context) error {
	channel, err := p.ensureStableChannel(ctx)
	if remote.StatusOf(err) == http.StatusNotFound {
		return nil // this lifecycle manager has no channels, or none yet and no version for it
	}
	if err != nil {
		return fmt.Errorf("channel %s: %w", stableChannel, err)
	}
	collection := channels.Below(channel.ID, versions)
	missing := slices.Clone(p.Versions)
	for v, err := range p.CLM.All(ctx, collection, clmclient.ResourceQuery{}) {
		if err != nil {
			return fmt.Errorf("listing versions: %w", err)
		}
		index := slices.IndexFunc(missing, func(version string) bool { return resourceName(version) == v.Name })
		switch {
		case index >= 0:
			missing = slices.Delete(missing, index, index+1)
		case v.Labels[madeByLabel] == publisherName:
			_, err := p.CLM.Delete(ctx, collection, v.ID, "")
			if err != nil && remote.StatusOf(err) != http.StatusNotFound {
				return fmt.Errorf("deleting version %s: %w", v.Name, err)
			}
			p.Log.Info("a release is not offered any more", "release", strings.ReplaceAll(v.Name, "-", "."))
		}
	}
	for _, version := range missing {
		if err := p.createVersion(ctx, collection, version); err != nil {
			return fmt.Errorf("creating version %s: %w", version, err)
		}
	}
	return nil
}

// ensureStableChannel returns the channel. It creates the channel if it does not exist and there is a
// version for it.
func (p *Publisher) ensureStableChannel(ctx context.Context) (clmclient.Resource, error) {
	channel, err := p.CLM.Named(ctx, channels, stableChannel)
	if remote.StatusOf(err) != http.StatusNotFound || len(p.Versions) == 0 {
		return channel, err
	}
	channel, err = p.CLM.Create(ctx, channels, api.ResourceCreate{Kind: "Channel", Name: stableChannel,
		Spec: json.RawMessage(`{}`), Labels: api.Labels{madeByLabel: publisherName}}, "")
	if remote.StatusOf(err) == http.StatusConflict { // another replica created it
		return p.CLM.Named(ctx, channels, stableChannel)
	}
	return channel, err
}

// createVersion creates the Version resource of a version. An existing one is no error.
func (p *Publisher) createVersion(ctx context.Context, in clmclient.Collection, version string) error {
	spec, err := json.Marshal(map[string]string{"version": version, "image": Image(version)})
	if err != nil {
		return err
	}
	_, err = p.CLM.Create(ctx, in, api.ResourceCreate{Kind: "Version", Name: resourceName(version), Spec: spec,
		Labels: api.Labels{madeByLabel: publisherName}}, "")
	if remote.StatusOf(err) == http.StatusConflict {
		return nil
	}
	return err
}
