package release_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"

	api "atoll.dev/api/clm"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/release"
	"atoll.dev/test/testsite"
	"atoll.dev/test/testworld"
)

const (
	channels clmclient.Collection = "channels"
	versions clmclient.Collection = "versions"
)

// TestPublish publishes lists, one after another. Versions of an earlier list go, also when the next
// list is empty, and a Version that somebody else made stays.
func TestPublish(t *testing.T) {
	c := testworld.StartCLM(testsite.New(t), testworld.CLMOptions{}).Dial()
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
		return strings.ReplaceAll(v, ".", "-") + ` {"image":"` + release.Image(v) + `","version":"` + v + `"}`
	}
	publish := func(versions ...string) {
		t.Helper()
		p := &release.Publisher{CLM: c, Versions: versions, Log: slog.New(slog.DiscardHandler)}
		for range 2 { // the second time there is nothing to do
			if err := p.Publish(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish()
	if _, err := c.Named(t.Context(), channels, "stable"); remote.StatusOf(err) != http.StatusNotFound {
		t.Errorf("an empty list created a channel: %v", err)
	}
	publish("1.36.3", "1.35.7")
	if got, want := offered(), version("1.35.7")+"\n"+version("1.36.3"); got != want {
		t.Errorf("the catalogue is\n%s\nwant\n%s", got, want)
	}
	channel, err := c.Named(t.Context(), channels, "stable")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(t.Context(), channels.Below(channel.ID, versions), api.ResourceCreate{
		Kind: "Version", Name: "1-30-0", Spec: json.RawMessage(`{"version":"1.30.0","image":"mine"}`)}, ""); err != nil {
		t.Fatal(err)
	}
	publish("1.37.0", "1.36.3")
	want := `1-30-0 {"version":"1.30.0","image":"mine"}` + "\n" + version("1.36.3") + "\n" + version("1.37.0")
	if got := offered(); got != want {
		t.Errorf("the catalogue is\n%s\nwant\n%s", got, want)
	}
	publish()
	if got, want := offered(), `1-30-0 {"version":"1.30.0","image":"mine"}`; got != want {
		t.Errorf("without releases the catalogue is\n%s\nwant\n%s", got, want)
	}
}

func TestCheckVersion(t *testing.T) {
	for text, valid := range map[string]bool{"1.36.3": true, "1.36.3-rc.1": true, "v1.36.3": false, "1.36": false,
		"": false, "x; rm": false} {
		if err := release.CheckVersion(text); (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestVersionOfAnImage(t *testing.T) {
	for image, want := range map[string]string{release.Image("1.36.3"): "1.36.3", "quay.io/x:1": "quay.io/x:1"} {
		if got := release.VersionOf(image); got != want {
			t.Errorf("VersionOf(%q) = %q, want %q", image, got, want)
		}
	}
}
