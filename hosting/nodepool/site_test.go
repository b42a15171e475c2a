package nodepool

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/loop"
)

// A node that will never exist keeps no place in the cluster's networks; a node that
// may exist does.
func TestARefusedNodeKeepsNoPlace(t *testing.T) {
	const (
		created  = http.StatusCreated
		refused  = http.StatusForbidden
		timedOut = http.StatusGatewayTimeout
		failed   = http.StatusInternalServerError
		noAnswer = 0 // the connection ends
	)
	for _, c := range []struct {
		name   string
		status int    // the plane's answer
		hosts  string // the cluster's network of machines
		want   int    // the place of the next node
	}{
		{"refused", refused, "10.0.0.0/16", 0},
		{"created", created, "10.0.0.0/16", 1},
		{"timed out", timedOut, "10.0.0.0/16", 1},
		{"failed", failed, "10.0.0.0/16", 1},
		{"no answer", noAnswer, "10.0.0.0/16", 1},
		{"no room", created, "10.0.0.0/30", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			plane := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch c.status {
				case noAnswer:
					panic(http.ErrAbortHandler)
				case created:
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					w.WriteHeader(created)
					_, _ = w.Write(body)
				default:
					w.WriteHeader(c.status)
					fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d}`, c.status)
				}
			}))
			defer plane.Close()
			client, err := dynamic.NewForConfig(&rest.Config{Host: plane.URL})
			if err != nil {
				t.Fatal(err)
			}
			s := &site{
				cluster: controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}, client: client, places: map[string]int{},
				nodes: loop.New(loop.Options{Client: client, Resource: nodeResource()}),
			}
			pool := &hypershift.NodePool{}
			pool.Name, pool.Namespace, pool.Spec.ClusterName = "hc-a-workers", "clusters-a", "hc-a"
			w := wanted{version: "1.36.3", pods: netip.MustParsePrefix("10.132.0.0/14"), hostBits: defaultHostBits,
				machines: netip.MustParsePrefix(c.hosts)}
			err = s.create(t.Context(), pool, w, "workers-0")
			if isCreated := c.status == created && c.name != "no room"; (err == nil) != isCreated {
				t.Fatalf("create: %v", err)
			}
			if got := s.place(w, "workers-1"); got != c.want {
				t.Errorf("the next node has the place %d, want %d; reserved are %v", got, c.want, s.places)
			}
		})
	}
}
