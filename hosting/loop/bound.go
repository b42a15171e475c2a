package loop

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
)

// Bound limits what a loop reads and keeps of a cluster that it does not trust. A customer may fill his plane with
// objects of the largest size, and hosting watches all planes.
type Bound struct {
	Selector string // of labels: objects without them are not sent
	// Most is how many objects the loop keeps. Of a list that is longer it keeps the first, in the order of their
	// names, and it drops new objects while it has so many.
	Most int
	// Trim removes from an object what the loop's owner does not read. It is called before the object is kept.
	Trim func(*unstructured.Unstructured)
}

// pageSize is how many objects of a bounded loop are in memory before Trim. An object has at most 1.5 MiB.
const pageSize = 20

// listBounded lists in pages, and trims each page before the next one is read.
func (b *Bound) listBounded(ctx context.Context, c dynamic.ResourceInterface) (*unstructured.UnstructuredList, error) {
	all := &unstructured.UnstructuredList{}
	o := metav1.ListOptions{LabelSelector: b.Selector, Limit: pageSize}
	for {
		page, err := c.List(ctx, o)
		if err != nil {
			return nil, err
		}
		if all.Object == nil {
			all.Object = page.Object // has the resource version of the whole list
		}
		for i := range page.Items {
			if len(all.Items) == b.Most {
				all.SetContinue("")
				return all, nil
			}
			trim(&page.Items[i], b)
			all.Items = append(all.Items, page.Items[i])
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			all.SetContinue("")
			return all, nil
		}
	}
}

// trim removes what the loop does not keep of an object.
func trim(u *unstructured.Unstructured, b *Bound) {
	u.SetManagedFields(nil) // half of an object's size, and unused
	if b != nil && b.Trim != nil {
		b.Trim(u)
	}
}

// pagedLists is a ListerWatcher whose lists are bounded. A list that is streamed as a watch would be in memory as a
// whole, untrimmed.
type pagedLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported makes the reflector list in pages.
func (pagedLists) IsWatchListSemanticsUnSupported() bool { return true }

// isFull reports whether the loop must drop a new object. It is called with the lock held.
func (l *Loop) isFull(key Key) bool {
	return l.o.Bound != nil && l.objects[key] == nil && len(l.objects) >= l.o.Bound.Most
}

// reportFull logs the first object that is dropped since the loop had room.
func (l *Loop) reportFull(key Key) {
	l.full.Do(func() {
		l.o.Log.Warn("a cluster has more objects than are watched", "resource", l.o.Resource.Resource,
			"limit", l.o.Bound.Most, "object", fmt.Sprint(key))
	})
}
