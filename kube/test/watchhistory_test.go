package test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// A plane keeps of each resource the changes that ATOLL_MAX_WATCH_EVENTS permits, for watches that begin at an earlier
// resource version. A watch from before them is refused as expired, and its client lists again.
func TestAPlaneKeepsABoundedHistoryOfChanges(t *testing.T) {
	const bound, changes = 100, 300
	t.Setenv("ATOLL_MAX_WATCH_EVENTS", fmt.Sprint(bound))
	p, _ := startReady(t, dataDir(t), address(t))
	things := p.client().CoreV1().ConfigMaps("default")
	object, err := things.Create(background, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created := object.ResourceVersion
	var versions []string
	for i := range changes {
		object.Data = map[string]string{"change": fmt.Sprint(i)}
		if object, err = things.Update(background, object, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		versions = append(versions, object.ResourceVersion)
	}

	// The plane's own ConfigMaps take a few events of the bound, so half of it is surely there.
	old := versions[changes-bound/2-1]
	w, err := things.Watch(background, metav1.ListOptions{ResourceVersion: old})
	if err != nil {
		t.Fatalf("a watch from half of the bound: %v", err)
	}
	defer w.Stop()
	for _, version := range versions[changes-bound/2:] {
		e := <-w.ResultChan()
		if c, is := e.Object.(*corev1.ConfigMap); !is || c.ResourceVersion != version {
			t.Fatalf("the event is %s %v, want version %s", e.Type, e.Object, version)
		}
	}

	expired, err := things.Watch(background, metav1.ListOptions{ResourceVersion: created})
	if err == nil {
		defer expired.Stop()
		if e := <-expired.ResultChan(); e.Type == watch.Error {
			err = apierrors.FromObject(e.Object)
		}
	}
	if !apierrors.IsResourceExpired(err) || !strings.Contains(err.Error(), "too old resource version") {
		t.Errorf("a watch from before %d changes, of which the plane keeps %d: %v", changes, bound, err)
	}
}
