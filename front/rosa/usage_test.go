package rosa

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"atoll.dev/api/fleet"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/maestroclient"
)

func TestUsageIsAddedToMaestrosReport(t *testing.T) {
	at := time.Date(2026, 11, 21, 10, 0, 0, 0, time.UTC)
	usage := map[string]fleet.Usage{"a": {
		Name: "a", State: fleet.Cordoned, Capacity: map[string]int64{"planes": 40}, Reserved: map[string]int64{
			"planes": 2, "memory_mib": 700}, Placements: 2,
		Versions: []string{"1.36.3"}, LastSeenTime: &at,
	}, "c": {Name: "c", State: fleet.Ready, Hosting: &fleet.HostingFigures{WarmPlanes: 2,
		Capacity: map[string]int64{"planes": 30}}}}
	for document, want := range map[string]string{
		`{"name":"a","x":{"y":[1.50]}}`: `{"capacity":{"planes":40},"last_seen_at":"2026-11-21T10:00:00Z","name":"a","placements":2,"reserved":{"memory_mib":700,"planes":2},"state":"Cordoned","versions":["1.36.3"],"x":{"y":[1.50]}}`,
		`{"name":"b"}`:                  `{"name":"b"}`,
		`{"items":[{"name":"a","last_seen_at":"x"},{"name":"b"}],"total":2}`: `{"items":[{"capacity":{"planes":40},"last_seen_at":"x","name":"a","placements":2,"reserved":{"memory_mib":700,"planes":2},"state":"Cordoned","versions":["1.36.3"]},{"name":"b"}],"total":2}`,
		`{"items":[]}`: `{"items":[]}`,
		`{"name":"c"}`: `{"capacity":null,"hosting":{"capacity":{"planes":30},"warm_planes":2},"name":"c",` +
			`"placements":0,"reserved":null,"state":"Ready"}`,
	} {
		if got, err := withUsage(json.RawMessage(document), usage); err != nil || string(got) != want {
			t.Errorf("%s becomes\n%s (%v), want\n%s", document, got, err, want)
		}
		if got, err := withUsage(json.RawMessage(document), nil); err != nil || string(got) != document {
			t.Errorf("%s without usage becomes %s (%v)", document, got, err)
		}
	}
}

// While the lifecycle manager does not answer, nobody knows what a management cluster hosts: its deletion is refused
// with 503 and does not reach Maestro. Lists show it as Maestro has it.
func TestAManagementClusterOfUnknownUsageIsNotDeleted(t *testing.T) {
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer down.Close()
	clm, err := clmclient.New(clmclient.Options{Endpoint: down.URL, Budget: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	defer clm.Close()
	maestro := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			t.Errorf("Maestro got %s %s", r.Method, r.URL)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"ConsumerList","page":1,"size":1,"total":1,"items":[{"id":"1","name":"m"}]}`)
	}))
	defer maestro.Close()
	consumers, err := maestroclient.New(maestroclient.Options{HTTP: maestro.URL, GRPC: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	defer consumers.Close()
	f := &front{maestro: consumers, clm: clm}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "/api/v0/management_clusters/m", nil)
	r.SetPathValue("id", "m")
	err = f.deleteManagementCluster(httptest.NewRecorder(), r)
	if err == nil || classify(err).Status != http.StatusServiceUnavailable {
		t.Errorf("the deletion ends with %v", err)
	}
	list := httptest.NewRecorder()
	r = httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if err := f.listManagementClusters(list, r); err != nil || list.Code != http.StatusOK {
		t.Errorf("the list is %d, %v", list.Code, err)
	}
}
