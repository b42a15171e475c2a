package works_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"atoll.dev/adapter"
	"atoll.dev/adapter/transporttest"
	"atoll.dev/adapter/works"
	"atoll.dev/api/work"
	"atoll.dev/client/maestroclient"
	"atoll.dev/client/remote"
	"atoll.dev/plane/planetest"
	"atoll.dev/test/testsite"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

const (
	consumer = "mc-1"
	source   = "test-adapter"
)

func TestMaestroTransportPassesTheSuite(t *testing.T) {
	w := newWorld(t)
	transporttest.Run(t, func(t *testing.T) transporttest.Subject { return w.subject(w.works) })
}

// A server that is the original knows none of Atoll's additions; the transport
// does the same with it.
func TestForeignMaestroTransportPassesTheSuite(t *testing.T) {
	w := newWorld(t)
	target, err := url.Parse("http://" + w.server.HTTP)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch {
		case strings.Contains(r.URL.Path, "/unknown-works"):
			http.Error(
				rw, `{"type":"Error","id":"404","href":"/api/maestro/v1/errors/404","code":"maestro-404",`+
					`"reason":"The requested resource doesn't exist"}`, http.StatusNotFound)
		case r.URL.Query().Has("fields"), r.URL.Query().Has("watch"):
			panic(http.ErrAbortHandler) // as the original
		default:
			r.Header.Del("If-Match")
			proxy.ServeHTTP(rw, r)
		}
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	client, err := maestroclient.New(maestroclient.Options{HTTP: "http://" + l.Addr().String(), GRPC: w.server.GRPC,
		Source: source, Timeout: testsite.HangLimit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	foreign := works.New(works.Options{Client: client, RecreateWait: testsite.HangLimit})
	transporttest.Run(t, func(t *testing.T) transporttest.Subject { return w.subject(foreign) })
}

// The agent's feedback arrives in the work, in the form that task configs read, and the watch
// reports it.
func TestFeedbackReachesTheTransport(t *testing.T) {
	w := newWorld(t)
	reported := make(chan adapter.Event, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := w.works.Watch(ctx, func(e adapter.Event) bool { reported <- e; return true }); !errors.Is(
			err, context.Canceled) {
			t.Errorf("watch: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	a := w.application("a", "hello", 1)
	w.apply(a)
	limit := time.After(testsite.HangLimit)
	for {
		select {
		case e := <-reported:
			if e != a.Event {
				t.Fatalf("the watcher reported %v", e)
			}
		case <-limit:
			t.Fatal("the watcher did not report the feedback")
		}
		if found := w.discover(w.works, "a"); len(found) == 1 && feedbackOf(found[0]) == "hello" {
			break
		}
	}
	cm, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || cm.GetName() != "a" {
		t.Fatal(err)
	}
}

// After the loss of Maestro's database, a work that only its agent holds exists for its adapter
// until the agent has deleted it (I8).
func TestI8ALostWorkIsDeletedBeforeItCountsAsAbsent(t *testing.T) {
	w := newWorld(t)
	w.apply(w.application("a", "1", 1))
	w.eventually("the work is applied", func() error {
		if found := w.discover(w.works, "a"); len(found) != 1 || feedbackOf(found[0]) != "1" {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	w.loseDatabase()
	w.register()
	w.eventually("Maestro knows what its agent holds", func() error {
		list, err := w.client.UnknownWorks(t.Context(), remote.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("none")
		}
		if err != nil {
			return err
		}
		var c struct {
			ComparedAt *time.Time `json:"compared_at"`
		}
		doc, err := w.client.ConsumerNamed(t.Context(), consumer)
		if err == nil {
			err = json.Unmarshal(doc.JSON, &c)
		}
		if err == nil && c.ComparedAt == nil {
			err = errors.New("not compared yet")
		}
		return err
	})
	found := w.discover(w.works, "a")
	if len(found) != 1 {
		t.Fatalf("found %v", found)
	}
	// An adapter that did not find the work gets an event when the agent reports it later.
	w.works.AssumeOriginal() // as if the server had been another
	o, err := w.works.Unconfirmed(t.Context(), adapter.Search{APIVersion: apiVersion, Kind: kind, Name: "a",
		TargetCluster: consumer})
	if err != nil || o == nil {
		t.Errorf("a work that only the agent holds is not unconfirmed: %v, %v", o, err)
	}
	byLabels := adapter.Search{APIVersion: apiVersion, Kind: kind, Namespace: "*", Labels: map[string]string{"a": "b"},
		TargetCluster: consumer}
	if o, err := w.works.Unconfirmed(t.Context(), byLabels); err != nil || o == nil {
		t.Errorf("an absence by labels is confirmed although the agent holds an unknown work: %v, %v", o, err)
	}
	w.eventually("the work is gone", func() error {
		if err := w.works.Delete(t.Context(), adapter.Deletion{Object: found[0], TargetCluster: consumer}); err != nil {
			return err
		}
		there := w.discover(w.works, "a")
		_, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
		switch {
		case len(there) > 0:
			return fmt.Errorf("found %v", there)
		case err == nil:
			t.Fatal("the adapter finds nothing, and the object is still there")
		}
		return nil
	})
	if o, err := w.works.Unconfirmed(t.Context(), byLabels); err != nil || o != nil {
		t.Errorf("in the end an absence by labels is unconfirmed: %v, %v", o, err)
	}
}

// Until the agent has reported after the loss of Maestro's database, no work counts as absent (I9).
func TestI9AnUnknownWorkIsNotAbsent(t *testing.T) {
	w := newWorld(t)
	search := adapter.Search{APIVersion: apiVersion, Kind: kind, Name: "a", TargetCluster: consumer}
	doubt := func(target string) adapter.Object {
		t.Helper()
		s := search
		s.TargetCluster = work.Consumer(target)
		o, err := w.works.Unconfirmed(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	w.eventually("Maestro has a report of the agent", func() error {
		if o := doubt(consumer); o != nil {
			return fmt.Errorf("the absence is unconfirmed: %v", o)
		}
		return nil
	})
	w.agent.Stop()
	w.loseDatabase()
	if doubt(consumer) == nil {
		t.Error("without any consumer the absence is confirmed")
	}
	w.register()
	if o := doubt(
		consumer,
	); o == nil || works.MetadataText(o, "name") != "a" ||
		work.ID(works.MetadataText(o, "uid")) != w.client.BundleID(consumer,
			"a") {
		t.Errorf("without a word of the agent there is %v", o)
	}
	if o := doubt("never-was"); o != nil {
		t.Errorf("of a consumer that never was there is %v", o)
	}
	// Some of CLM's consumers may not be registered again yet.
	knows := works.New(works.Options{Client: w.client, Clusters: func(context.Context) ([]work.Consumer, error) {
		return []work.Consumer{consumer, "soon"}, nil
	}})
	for target, want := range map[string]bool{"soon": true, "never-was": false} {
		s := search
		s.TargetCluster = work.Consumer(target)
		if o, err := knows.Unconfirmed(t.Context(), s); err != nil || (o != nil) != want {
			t.Errorf("of %s there is %v, %v", target, o, err)
		}
	}
	byLabels := adapter.Search{APIVersion: apiVersion, Kind: kind, Namespace: "*", Labels: map[string]string{"a": "b"}}
	for _, target := range []string{consumer, ""} {
		byLabels.TargetCluster = work.Consumer(target)
		if o, err := w.works.Unconfirmed(t.Context(), byLabels); err != nil || o == nil {
			t.Errorf("without a word of the agent, by labels at %q there is %v, %v", target, o, err)
		}
	}
	w.agent.Start()
	w.eventually("Maestro has a new report of the agent", func() error {
		if o := doubt(consumer); o != nil {
			return fmt.Errorf("the absence is unconfirmed: %v", o)
		}
		return nil
	})
}

// Applying an unknown work creates it and takes over the agent's copy.
func TestALostWorkIsTakenOver(t *testing.T) {
	w := newWorld(t)
	w.apply(w.application("a", "1", 1))
	var uid string
	w.eventually("the object is there", func() error {
		cm, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
		if err == nil {
			uid = string(cm.GetUID())
		}
		return err
	})
	w.loseDatabase()
	w.register()
	w.apply(w.application("a", "1", 1))
	w.eventually("feedback comes back", func() error {
		if found := w.discover(w.works, "a"); len(found) != 1 || feedbackOf(found[0]) != "1" {
			return fmt.Errorf("found %v", found)
		}
		return nil
	})
	cm, err := w.admin.Resource(configMaps).Namespace(w.ns).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || string(cm.GetUID()) != uid {
		t.Errorf("%v, uid %s, was %s", err, cm.GetUID(), uid)
	}
}
