package loop

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"

	"atoll.dev/internal/pause"
)

// Bound limits what a loop reads and keeps of a cluster that it does not trust. A customer may fill his plane with
// objects of the largest size, and hosting watches all planes.
type Bound struct {
	Selector string // of labels: objects without them are not sent
	Fields   string // a selector of fields that the API server knows for the resource
	// Most is how many objects the loop keeps. Of a list that is longer it keeps the first, in the order of their
	// names, and it drops new objects while it has so many. It lists again after a kept object was deleted, so that a
	// dropped one gets the room: after firstRelist, and at last every lastRelist while there are too many objects.
	Most int
	// Trim removes from an object what the loop's owner does not read. It is called before the object is kept.
	Trim func(*unstructured.Unstructured)
}

// pageSize is how many objects of a bounded loop are in memory before Trim. An object has at most 1.5 MiB.
const pageSize = 20

// Pauses between a listing that dropped objects and the next one. A customer who creates and deletes objects at the
// limit makes the loop list that often.
const (
	firstRelist = time.Second
	lastRelist  = time.Minute
)

// listBounded lists in pages, and trims each page before the next one is read. isWhole is false when it has dropped
// objects.
func (b *Bound) listBounded(ctx context.Context, c dynamic.ResourceInterface) (all *unstructured.UnstructuredList,
	isWhole bool, err error) {
	all = &unstructured.UnstructuredList{}
	o := metav1.ListOptions{LabelSelector: b.Selector, FieldSelector: b.Fields, Limit: pageSize}
	for {
		page, err := c.List(ctx, o)
		if err != nil {
			return nil, false, err
		}
		if all.Object == nil {
			all.Object = page.Object // has the resource version of the whole list
		}
		for i := range page.Items {
			if len(all.Items) == b.Most {
				all.SetContinue("")
				return all, false, nil
			}
			trim(&page.Items[i], b)
			all.Items = append(all.Items, page.Items[i])
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			all.SetContinue("")
			return all, true, nil
		}
	}
}

// overflow is the state of a loop that drops objects. The lock of the loop guards it.
type overflow struct {
	dropped  bool          // an object was dropped since the last listing began
	reported bool          // the log says so; it is not repeated before a listing has dropped nothing
	pause    time.Duration // before the next listing
}

// listOnce lists for the watch of a bounded loop.
func (l *Loop) listOnce(ctx context.Context, c dynamic.ResourceInterface) (*unstructured.UnstructuredList, error) {
	l.mu.Lock()
	l.overflow.dropped = false // an object that the watch drops from here on may be missing in the list
	l.mu.Unlock()
	list, isWhole, err := l.o.Bound.listBounded(ctx, c)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil || !isWhole:
		l.overflow.dropped = true
	default:
		l.overflow.reported, l.overflow.pause = false, firstRelist
	}
	return list, err
}

// watchUntilRoom calls watch, and again from the beginning when a loop that has dropped objects has room. It returns
// when ctx ends.
func (l *Loop) watchUntilRoom(ctx context.Context, watch func(context.Context)) {
	l.mu.Lock()
	l.overflow.pause = firstRelist
	l.mu.Unlock()
	for ctx.Err() == nil {
		current, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() { defer close(ended); watch(current) }()
		select {
		case <-l.room:
			l.mu.Lock()
			wait := l.overflow.pause
			l.overflow.pause = min(2*wait, lastRelist)
			l.mu.Unlock()
			pause.For(ctx, wait)
		case <-ctx.Done():
		}
		cancel()
		<-ended
		select {
		case <-l.room: // the next listing uses that room, too
		default:
		}
	}
}

// relistIfRoom makes watchUntilRoom list again when the loop has dropped objects and has room for one. It is called
// with the lock held, after a deletion.
func (l *Loop) relistIfRoom() {
	if l.o.Bound == nil || !l.overflow.dropped || len(l.objects) >= l.o.Bound.Most {
		return
	}
	select {
	case l.room <- struct{}{}:
	default:
	}
}

// trim removes the parts of an object that the loop does not keep.
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

// recordDropped records that an object was dropped, and logs the first one. It is called with the lock held.
func (l *Loop) recordDropped(key Key) {
	l.overflow.dropped = true
	if l.overflow.reported {
		return
	}
	l.overflow.reported = true
	l.o.Log.Warn("a cluster has more objects than are watched", "resource", l.o.Resource.Resource,
		"limit", l.o.Bound.Most, "object", fmt.Sprint(key))
}
