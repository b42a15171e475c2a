package nodepool

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
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
			s, pool, w := unwatchedPlaneOf(t, plane.URL)
			w.machines = netip.MustParsePrefix(c.hosts)
			err := s.create(t.Context(), pool, w, "workers-0")
			if isCreated := c.status == created && c.name != "no room"; (err == nil) != isCreated {
				t.Fatalf("create: %v", err)
			}
			if got, _ := s.reserveIndex(w, "workers-1"); got != c.want {
				t.Errorf("the next node has the place %d, want %d; reserved are %v", got, c.want, s.reservedIndexes)
			}
		})
	}
}

// A plane stores a node, but its answer is lost. The plane then refuses the second try, and the
// watch has not delivered the node yet. No other node gets the index of the stored node.
func TestARefusedRetryKeepsThePlaceOfANodeThatMayExist(t *testing.T) {
	const noAnswer = 0 // the connection ends
	for _, first := range []int{noAnswer, http.StatusGatewayTimeout, http.StatusInternalServerError} {
		for _, second := range []int{http.StatusForbidden, http.StatusTooManyRequests} {
			t.Run(fmt.Sprint(first, " ", second), func(t *testing.T) {
				answers := []int{first, second, http.StatusCreated}
				var mu sync.Mutex
				var networks []string // of pods, one for each request
				plane := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err != nil {
						t.Error(err)
					}
					var n struct {
						Spec struct {
							PodCIDR string `json:"podCIDR"`
						} `json:"spec"`
					}
					mu.Lock()
					defer mu.Unlock()
					if err := json.Unmarshal(body, &n); err != nil || len(networks) == len(answers) {
						t.Errorf("request %d: %q, %v", len(networks), body, err)
						return
					}
					answer := answers[len(networks)]
					networks = append(networks, n.Spec.PodCIDR)
					w.Header().Set("Content-Type", "application/json")
					switch answer {
					case noAnswer:
						panic(http.ErrAbortHandler)
					case http.StatusCreated:
						w.WriteHeader(answer)
						_, _ = w.Write(body)
					default:
						w.WriteHeader(answer)
						fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d}`, answer)
					}
				}))
				defer plane.Close()
				s, pool, w := unwatchedPlaneOf(t, plane.URL)
				for try, name := range []string{"workers-0", "workers-0", "workers-1"} {
					err := s.create(t.Context(), pool, w, name)
					if isCreated := answers[try] == http.StatusCreated; (err == nil) != isCreated {
						t.Fatalf("try %d of %s: %v", try, name, err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if len(networks) != len(answers) || networks[0] != networks[1] || networks[0] == networks[2] {
					t.Errorf("the tries have the networks %q, want two equal ones and another one", networks)
				}
			})
		}
	}
}

// unwatchedPlaneOf returns the site of a plane without a watch, a pool, and the nodes that the pool wants.
func unwatchedPlaneOf(t *testing.T, plane string) (*watchedPlane, *hypershift.NodePool, wanted) {
	t.Helper()
	client, err := dynamic.NewForConfig(&rest.Config{Host: plane})
	if err != nil {
		t.Fatal(err)
	}
	s := &watchedPlane{
		cluster: controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}, client: client, reservedIndexes: map[string]int{},
		nodes: loop.New(loop.Options{Client: client, Resource: nodeResource()}),
	}
	pool := &hypershift.NodePool{}
	pool.Name, pool.Namespace, pool.Spec.ClusterName = "hc-a-workers", "clusters-a", "hc-a"
	return s, pool, wanted{version: "1.36.3", pods: netip.MustParsePrefix("10.132.0.0/14"), hostBits: defaultHostBits,
		machines: netip.MustParsePrefix("10.0.0.0/16")}
}
