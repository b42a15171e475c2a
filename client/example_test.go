package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"atoll.dev/api/platform"
	"atoll.dev/client"
)

// A program creates a cluster and follows it until it is ready. `atoll env` prints the values of
// Options for a region on this machine.
func Example() {
	region := exampleRegion()
	defer region.Close()

	api, err := client.New(client.Options{
		Endpoint: region.URL, // ATOLL_ENDPOINT; CAFile is ATOLL_CA
		Credentials: client.Credentials{
			AccessKeyID: "AKIAEXAMPLE222222222", SecretAccessKey: "secret", Region: "local-1",
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer api.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	made, err := api.CreateCluster(ctx, platform.ClusterRequest{Name: "shop"})
	if e, ok := errors.AsType[*client.Error](err); ok && e.Status == http.StatusConflict {
		log.Fatalf("the name is taken: %s", e.Reason)
	}
	if err != nil {
		log.Fatal(err)
	}
	ready := errors.New("ready")
	err = api.FollowClusters(ctx, client.WatchOptions{ID: made.ID}, func(e client.Event) error {
		if e.Type != client.Added && e.Type != client.Modified {
			return nil
		}
		var cluster platform.Cluster
		if err := json.Unmarshal(e.Object, &cluster); err != nil {
			return err
		}
		fmt.Println(cluster.Name, cluster.Status.Phase)
		if cluster.Status.Phase == platform.ClusterPhaseReady {
			return ready
		}
		return nil
	})
	if !errors.Is(err, ready) {
		log.Fatal(err)
	}
	// Output:
	// shop Provisioning
	// shop Ready
}

// ExampleStatusOf reads a cluster that does not exist.
func ExampleStatusOf() {
	region := exampleRegion()
	defer region.Close()
	api, err := client.New(client.Options{Endpoint: region.URL, Credentials: client.Credentials{
		AccessKeyID: "AKIAEXAMPLE222222222", SecretAccessKey: "secret", Region: "local-1"}})
	if err != nil {
		log.Fatal(err)
	}
	defer api.Close()
	_, err = api.Cluster(context.Background(), "no-such-id")
	fmt.Println(client.StatusOf(err), err)
	// Output: 404 not-found: there is no cluster no-such-id
}

// exampleRegion answers as a region does, for the examples. It verifies no signature.
func exampleRegion() *httptest.Server {
	const id = "0199b3a0-5f1c-7a00-8000-0123456789ab"
	cluster := func(phase string) string {
		return fmt.Sprintf(`{"id":%q,"name":"shop","status":{"phase":%q}}`, id, phase)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v0/clusters", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, cluster("WaitingForPlacement"))
	})
	mux.HandleFunc("GET /api/v0/clusters", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json;stream=watch")
		for i, phase := range []string{"Provisioning", "Ready"} {
			_, _ = fmt.Fprintf(w, `{"type":"MODIFIED","object":%s,"cursor":"c%d"}`+"\n", cluster(phase), i)
		}
	})
	mux.HandleFunc("GET /api/v0/clusters/{id}", func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		_, _ = fmt.Fprintf(w, `{"kind":"Error","code":"not-found","reason":"there is no cluster %s"}`, r.PathValue("id"))
	})
	return httptest.NewServer(mux)
}
