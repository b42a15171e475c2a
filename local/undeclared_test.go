package local

import (
	"encoding/json"
	"encoding/pem"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/api/platform"
	"atoll.dev/gitops"
)

func declared(names ...string) gitops.Declaration {
	d := gitops.Declaration{Environment: "staging", Region: "r1"}
	for _, name := range names {
		d.ManagementClusters = append(d.ManagementClusters, gitops.DeclaredCluster{Name: name})
	}
	return d
}

// A home belongs to one declared region: neither the region of the same name in another environment nor a region that
// `atoll up` made is taken over, and nothing of it changes.
func TestAHomeOfAnotherEnvironmentIsRefused(t *testing.T) {
	staging := UpOptions{Region: "r1", Environment: "staging", Clusters: names{"mc01-r1"}}
	production := UpOptions{Region: "r1", Environment: "production", Clusters: names{"mc02-r1"}}
	for _, c := range []struct {
		name        string
		made, asked UpOptions
		want        string
	}{
		{"another environment", staging, production, `of environment "staging", not of "production"`},
		{"made by up", UpOptions{Region: "r1"}, production, "that `atoll up` made"},
		{"the same", staging, staging, ""},
		{"up of a declared one", staging, UpOptions{}, ""},
	} {
		h := Home{Dir: filepath.Join(t.TempDir(), "home")}
		if _, _, err := h.prepareState(c.made); err != nil {
			t.Fatal(err)
		}
		before, err := h.State()
		if err != nil {
			t.Fatal(err)
		}
		_, grown, err := h.prepareState(c.asked)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
		after, err := h.State()
		if difference := cmp.Diff(before, after); err != nil || difference != "" || len(grown) != 0 {
			t.Errorf("%s: %v; %v grown; the state changed: %s", c.name, err, grown, difference)
		}
	}
}

// A cluster that never registered, and one whose removal stopped after the region deleted it, are in the home and not
// in the region. Apply removes them before it waits for the region. What is declared or registered stays.
func TestApplyRemovesClustersThatTheRegionDoesNotHave(t *testing.T) {
	h := Home{Dir: filepath.Join(t.TempDir(), "home")}
	st, _, err := h.prepareState(UpOptions{Region: "r1", Environment: "staging",
		Clusters: names{"declared", "registered", "never-registered"}})
	if err != nil {
		t.Fatal(err)
	}
	var deleted []string
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/api/v0/management_clusters":
			_ = json.NewEncoder(w).Encode(platform.ManagementClusterList{Total: 1,
				Items: []platform.ManagementCluster{{Name: "registered", State: platform.ManagementClusterStateReady}}})
		case r.Method == http.MethodDelete:
			deleted = append(deleted, filepath.Base(r.URL.Path))
			w.WriteHeader(http.StatusNotFound)
		default:
			t.Errorf("%s %s", r.Method, r.URL)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	defer api.Close()
	st.Ports["platform"] = api.Listener.Addr().(*net.TCPAddr).Port
	if err := h.saveState(st); err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw})
	if err := os.WriteFile(h.CAFile(), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := writeJSON(h.Path("credentials.json"), Credentials{AccessKeyID: "AKIA", SecretAccessKey: "s"}); err != nil {
		t.Fatal(err)
	}
	// This process is the supervisor, which reads the state again at SIGHUP.
	reloads := make(chan os.Signal, 1)
	signal.Notify(reloads, syscall.SIGHUP)
	defer signal.Stop(reloads)
	recordSupervisor(t, h)

	var removed []string
	note := func(name string) { removed = append(removed, name) }
	production := UpOptions{Region: "r1", Environment: "production"}
	if err := h.removeUnregistered(t.Context(), production, note); err == nil || len(removed) != 0 {
		t.Errorf("another environment removed %v, %v", removed, err)
	}
	staging := UpOptions{Region: "r1", Environment: "staging", Clusters: names{"declared"}}
	if err := h.removeUnregistered(t.Context(), staging, note); err != nil {
		t.Fatal(err)
	}
	select {
	case <-reloads:
	case <-time.After(time.Minute):
		t.Error("the supervisor does not read the state again")
	}
	if st, err = h.State(); err != nil || !slices.Equal(st.Clusters, names{"declared", "registered"}) {
		t.Errorf("the home has %v, %v", st.Clusters, err)
	}
	if want := []string{"never-registered"}; !slices.Equal(removed, want) || !slices.Equal(deleted, want) {
		t.Errorf("removed %v, deleted at the region %v, want %v", removed, deleted, want)
	}
}

func TestUndeclaredClustersAreRemovedUnlessTheyHostOrNobodyKnows(t *testing.T) {
	const ready = platform.ManagementClusterStateReady
	st := State{Clusters: names{"declared", "extra", "unregistered"}}
	for _, c := range []struct {
		name  string
		extra platform.ManagementCluster
		want  string // of the error
	}{
		{"empty", platform.ManagementCluster{Name: "extra", State: ready}, ""},
		{"in use", platform.ManagementCluster{Name: "extra", State: ready, Placements: 2}, "hosts 2 clusters"},
		{"unknown", platform.ManagementCluster{Name: "extra"}, "does not know how many"},
	} {
		registered := []platform.ManagementCluster{{Name: "declared", State: ready, Placements: 1},
			{Name: "elsewhere", State: ready, Placements: 1}, c.extra}
		undeclared, err := undeclaredClusters(st, declared("declared"), registered)
		switch {
		case c.want == "" && (err != nil || !slices.Equal(undeclared, names{"extra", "unregistered"})):
			t.Errorf("%s: %v, %v", c.name, undeclared, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || undeclared != nil):
			t.Errorf("%s: %v, %v, want %q", c.name, undeclared, err, c.want)
		}
	}
}
