package test

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
)

// streamedList proves that a watch cache sends bookmarks by its timer. Work queues must not have metrics, because these
// wake an idle plane a hundred times a second.
func (p *plane) streamedList(t *testing.T) {
	client, err := dynamic.NewForConfig(p.config())
	if err != nil {
		t.Fatal(err)
	}
	p.streamList(client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}), "default")
	if n := p.metric("workqueue_"); n != 0 {
		t.Errorf("metrics of work queues have the sum %v, want none", n)
	}
}

// streamList fails the test unless a watch streams the list of a resource, which has an object of the given name, and
// then ends the list by a bookmark.
func (p *plane) streamList(resource dynamic.ResourceInterface, name string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(background, hangLimit)
	defer cancel()
	yes := true
	w, err := resource.Watch(ctx, metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
	if err != nil {
		p.t.Fatal(err)
	}
	defer w.Stop()
	found := false
	for event := range w.ResultChan() {
		o, ok := event.Object.(*unstructured.Unstructured)
		switch {
		case !ok:
			p.t.Fatalf("the watch sends %v", event.Object)
		case event.Type == watch.Added:
			found = found || o.GetName() == name
		case event.Type == watch.Bookmark && o.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
			if !found {
				p.t.Errorf("the streamed list has no %s", name)
			}
			return
		}
	}
	p.t.Error("the streamed list does not end")
}
