package cli

import (
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
)

// What --release says is in the catalogue, what it said before is not, and what
// somebody else put there stays.
func TestReleasesArePublished(t *testing.T) {
	c, err := clmclient.New(clmclient.Options{Endpoint: lifecycleHome(t, t.TempDir())})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	offered := func() string {
		var names []string
		for v, err := range c.All(t.Context(), versions, clmclient.ResourceQuery{}) {
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, v.Name+" "+strings.ReplaceAll(string(v.Spec), " ", ""))
		}
		slices.Sort(names)
		return strings.Join(names, "\n")
	}
	version := func(v string) string {
		return strings.ReplaceAll(v, ".", "-") + ` {"image":"atoll.dev/release:` + v + `","version":"` + v + `"}`
	}
	publish := func(releases ...string) {
		t.Helper()
		p := &publisher{clm: c, releases: releases, log: slog.New(slog.DiscardHandler)}
		for range 2 { // the second time there is nothing to do
			if err := p.publish(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish("1.36.3", "1.35.7")
	if got, want := offered(), version("1.35.7")+"\n"+version("1.36.3"); got != want {
		t.Errorf("offered are\n%s\nwant\n%s", got, want)
	}
	channel, err := c.Named(t.Context(), channels, "stable")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), channels.Below(channel.ID, versions), api.ResourceCreate{Kind: "Version",
		Name: "mine", Spec: json.RawMessage(`{}`)}, ""); err != nil {
		t.Fatal(err)
	}
	publish("1.37.0", "1.36.3")
	if got, want := offered(), version("1.36.3")+"\n"+version("1.37.0")+"\nmine {}"; got != want {
		t.Errorf("offered are\n%s\nwant\n%s", got, want)
	}
	for release, ok := range map[string]bool{"1.36.3": true, "1.36.3-rc.1": true, "v1.36.3": false, "1.36": false,
		"": false, "x; rm": false} {
		if err := checkReleases([]string{release}); (err == nil) != ok {
			t.Errorf("%q: %v", release, err)
		}
	}
}
