package nodepool

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"atoll.dev/hosting/controlplane"
)

// hostilePlane is an API server with any number of large pods on each node.
type hostilePlane struct {
	t                  *testing.T
	pods               int
	endless            bool // a list has no end
	evicted, highWater int
	removed            bool // the node was deleted
}

func (p *hostilePlane) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/eviction"):
		p.evicted++
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`)
		return
	case r.Method == http.MethodDelete:
		p.removed = p.removed || strings.HasPrefix(r.URL.Path, "/api/v1/nodes/")
		fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Success"}`)
		return
	}
	if p.endless {
		fmt.Fprint(w, `{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {"continue": "`)
		for block := []byte(strings.Repeat("x", 1<<20)); ; p.highWater++ {
			if _, err := w.Write(block); err != nil || p.highWater > 100 {
				return
			}
		}
	}
	if !strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
		p.t.Errorf("%s reads whole pods", r.URL)
	}
	limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
	if err != nil || limit > 20 {
		p.t.Errorf("%s lists without a small limit", r.URL)
		limit = 20
	}
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	metadata := map[string]any{"resourceVersion": "8"}
	if from+limit < p.pods {
		metadata["continue"] = strconv.Itoa(from + limit)
	}
	items := []any{}
	for i := from; i < min(from+limit, p.pods); i++ {
		items = append(items, map[string]any{"metadata": map[string]any{"name": fmt.Sprint("p-", i), "namespace": "a",
			"annotations": map[string]any{"note": strings.Repeat("x", 16<<10)}}})
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
		"metadata": metadata, "items": items})
}

// watched returns the plane as hosting sees it.
func (p *hostilePlane) watched() *watchedPlane { return watchedPlaneAt(p.t, p) }

// watchedPlaneAt returns a plane whose API server is a handler.
func watchedPlaneAt(t *testing.T, api http.Handler) *watchedPlane {
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{"a": {Server: server.URL}}, CurrentContext: "a",
		Contexts: map[string]*clientcmdapi.Context{"a": {Cluster: "a"}}})
	if err != nil {
		t.Fatal(err)
	}
	id := controlplane.ID{Namespace: "clusters-1", Name: "hc-1"}
	s := &watchedPlane{cluster: id}
	if s.client, s.pods, err = newPlaneClients(id, controlplane.Admin{Kubeconfig: kubeconfig}); err != nil {
		t.Fatal(err)
	}
	return s
}

// A drain read all pods of a node at once: a plane with many large pods could fill the memory of hosting.
func TestADrainReadsFewPodsOfAHostilePlane(t *testing.T) {
	plane := &hostilePlane{t: t, pods: 50_000}
	s := plane.watched()
	now := time.Now()
	n := &node{Metadata: metav1.ObjectMeta{Name: "w-0", Annotations: map[string]string{
		drainingAnnotation: now.Format(time.RFC3339)}}}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	if _, err := s.drain(t.Context(), n, time.Hour, now); !errors.Is(err, errManyPods) {
		t.Errorf("a node of 50,000 pods: error %v", err)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 16<<20 {
		t.Errorf("the heap has grown by %d MiB", grown>>20)
	}
	if plane.evicted != maxPodsOfNode {
		t.Errorf("%d pods were evicted, want the first %d", plane.evicted, maxPodsOfNode)
	}
	if plane.removed {
		t.Error("the node was removed before the end of its drain")
	}
	_, err := s.drain(t.Context(), n, time.Hour, now.Add(2*time.Hour))
	if !errors.Is(err, errManyPods) || !plane.removed {
		t.Errorf("the time of the drain is over: the node is removed: %t, error %v", plane.removed, err)
	}
}

func TestAnEndlessAnswerOfAPlaneIsCutOff(t *testing.T) {
	plane := &hostilePlane{t: t, endless: true}
	now := time.Now()
	_, err := plane.watched().drain(t.Context(), &node{Metadata: metav1.ObjectMeta{Name: "w-0"}}, 0, now)
	if err == nil || !strings.Contains(err.Error(), errLongAnswer.Error()) {
		t.Errorf("error %v", err)
	}
}
