package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
)

// The catalogue says which releases clusters can have: a Channel, and a Version
// below it for each.
const (
	channels clmclient.Collection = "channels"
	versions clmclient.Collection = "versions"

	stableChannel = "stable"
)

// ofFlags is the label of those that --release made, and takes away.
var ofFlags = api.Labels{"atoll.dev/made-by": "clm"}

var releasePattern = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9a-z.-]+)?$`)

func checkReleases(releases []string) error {
	for _, r := range releases {
		if !releasePattern.MatchString(r) {
			return fmt.Errorf("--release %s: a version is like 1.36.3", r)
		}
	}
	return nil
}

// publisher keeps trying until the catalogue has been published.
type publisher struct {
	clm      *clmclient.Client
	releases []string
	log      *slog.Logger
	done     atomic.Bool
}

// Check is a readiness check.
func (c *publisher) Check(context.Context) error {
	if !c.done.Load() {
		return errors.New("the releases are not published yet")
	}
	return nil
}

func (c *publisher) run(ctx context.Context) error {
	defer c.clm.Close()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		err := c.publish(ctx)
		if err == nil {
			c.done.Store(true)
			return nil
		}
		if ctx.Err() == nil {
			c.log.Warn("the releases were not published", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	return nil
}

// publish makes what is missing, and takes away what an earlier start made and
// is not offered any more. What somebody else made stays.
func (c *publisher) publish(ctx context.Context) error {
	channel, err := c.clm.Named(ctx, channels, stableChannel)
	if remote.StatusOf(err) == http.StatusNotFound {
		channel, err = c.clm.Create(ctx, channels, api.ResourceCreate{Kind: "Channel", Name: stableChannel,
			Spec: json.RawMessage(`{}`), Labels: ofFlags}, "")
		switch remote.StatusOf(err) {
		case http.StatusNotFound: // these entities have no channels
			return nil
		case http.StatusConflict: // a replica was faster
			channel, err = c.clm.Named(ctx, channels, stableChannel)
		}
	}
	if err != nil {
		return fmt.Errorf("channel %s: %w", stableChannel, err)
	}
	below := channels.Below(channel.ID, versions)
	missing := slices.Clone(c.releases)
	for v, err := range c.clm.All(ctx, below, clmclient.ResourceQuery{}) {
		if err != nil {
			return fmt.Errorf("versions: %w", err)
		}
		release := strings.ReplaceAll(v.Name, "-", ".")
		if i := slices.IndexFunc(missing, func(r string) bool { return versionName(r) == v.Name }); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
		} else if v.Labels["atoll.dev/made-by"] == ofFlags["atoll.dev/made-by"] {
			if _, err := c.clm.Delete(ctx, below, v.ID, ""); err != nil && remote.StatusOf(err) != http.StatusNotFound {
				return fmt.Errorf("version %s: %w", release, err)
			}
			c.log.Info("a release is not offered any more", "release", release)
		}
	}
	for _, r := range missing {
		spec, err := json.Marshal(map[string]string{"version": r, "image": releaseImage(r)})
		if err != nil {
			return err
		}
		_, err = c.clm.Create(ctx, below, api.ResourceCreate{Kind: "Version", Name: versionName(r), Spec: spec,
			Labels: ofFlags}, "")
		if err != nil && remote.StatusOf(err) != http.StatusConflict {
			return fmt.Errorf("version %s: %w", r, err)
		}
	}
	return nil
}

// versionName is the name of a release's Version: names have no dots.
func versionName(release string) string { return strings.ReplaceAll(release, ".", "-") }
