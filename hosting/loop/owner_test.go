package loop_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"atoll.dev/hosting/loop"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

// An owner with slow calls delays no objects of other owners, and every call ends.
func TestAnOwnersSlowCallsLeaveWorkersToOthers(t *testing.T) {
	b := start(t, "loop-owners", nil, func(call) (time.Duration, error) { return 0, nil })
	b.stop()
	config, _ := planetest.Shared(t).Config.RESTConfig()
	client, _ := dynamic.NewForConfig(config)
	began, release := make(chan string, 100), make(chan struct{})
	run, cancel := context.WithCancel(t.Context())
	owner := func(object *unstructured.Unstructured) string {
		name, _, _ := strings.Cut(object.GetName(), "-")
		return name
	}
	l := loop.New(loop.Options{
		Client:    client,
		Resource:  configMaps(),
		Namespace: b.namespace,
		Workers:   3,
		Owner:     owner,
		Share:     2,
		Limit:     20 * time.Millisecond,
		Reconcile: func(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
			if object == nil || key.Name == "kube-root-ca.crt" {
				return 0, nil
			}
			began <- key.Name
			<-ctx.Done() // comes for each call, though nobody stops the loop
			if owner(object) == "slow" {
				select {
				case <-release:
				case <-run.Done():
				}
			}
			return 0, nil
		},
	})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(run) }()
	defer func() { cancel(); <-ended }()
	next := func() string {
		select {
		case name := <-began:
			return name
		case <-time.After(testsite.HangLimit):
			t.Fatal("no call")
			return ""
		}
	}
	slow := map[string]bool{}
	for i := range 5 {
		b.create(fmt.Sprintf("slow-%d", i))
	}
	for range 2 {
		slow[next()] = true
	}
	for i := range 3 {
		name := fmt.Sprintf("quick-%d", i)
		b.create(name)
		if got := next(); got != name {
			t.Errorf("%s has the worker that should be %s's", got, name)
		}
	}
	close(release)
	for len(slow) < 5 {
		slow[next()] = true
	}
}

// Calls that hang do not delay the objects of other owners, even when there are more
// such calls than workers.
func TestSlowCallsOfManyOwnersDelayNoOtherOwner(t *testing.T) {
	b := start(t, "loop-hang", nil, func(call) (time.Duration, error) { return 0, nil })
	b.stop()
	config, _ := planetest.Shared(t).Config.RESTConfig()
	client, _ := dynamic.NewForConfig(config)
	const workers, share, hanging = 4, 2, 6
	began, quick := make(chan string, 100), make(chan struct{}, 100)
	run, cancel := context.WithCancel(t.Context())
	l := loop.New(loop.Options{
		Client: client, Resource: configMaps(), Namespace: b.namespace, Workers: workers, Share: share,
		Owner: func(object *unstructured.Unstructured) string {
			owner, _, _ := strings.Cut(object.GetName(), "-")
			return owner
		},
		Reconcile: func(ctx context.Context, key loop.Key, object *unstructured.Unstructured) (time.Duration, error) {
			switch {
			case strings.HasPrefix(key.Name, "hanging"):
				began <- key.Name
				<-ctx.Done() // until the test ends
			case strings.HasPrefix(key.Name, "quick"):
				quick <- struct{}{}
			}
			return 0, nil
		},
	})
	ended := make(chan error, 1)
	go func() { ended <- l.Run(run) }()
	defer func() { cancel(); <-ended }()
	for owner := range hanging {
		for i := range share + 1 {
			b.create(fmt.Sprintf("hanging%d-%d", owner, i))
		}
	}
	calls := map[string]int{}
	for range hanging * share {
		select {
		case name := <-began:
			owner, _, _ := strings.Cut(name, "-")
			calls[owner]++
		case <-time.After(testsite.HangLimit):
			t.Fatalf("calls in progress: %v; each of %d owners should have %d", calls, hanging, share)
		}
	}
	for owner, n := range calls {
		if n != share {
			t.Errorf("%s has %d calls in progress, want %d", owner, n, share)
		}
	}
	for i := range 2 * workers {
		b.create(fmt.Sprintf("quick%d", i))
		select {
		case <-quick:
		case name := <-began:
			t.Fatalf("%s is called although its owner has %d calls in progress", name, share)
		case <-time.After(testsite.HangLimit):
			t.Fatal("an object waits for the calls of other owners")
		}
	}
}
