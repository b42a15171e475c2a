package ops

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"atoll.dev/internal/pgtest"
	"atoll.dev/store"
	"atoll.dev/test/testsite"
)

// TestANotificationReachesPermittedHostsOnly sends notifications, of which the first attempt fails.
func TestANotificationReachesPermittedHostsOnly(t *testing.T) {
	bodies := make(chan string, 10)
	var attempts atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if attempts.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		var body struct{ Status string }
		_ = json.NewDecoder(r.Body).Decode(&body)
		bodies <- body.Status
	}))
	t.Cleanup(receiver.Close)
	n := &Notifier{Hosts: []string{"127.0.0.1", ".azure.example"}, Loopback: true}
	e := NewEngine(Options{Store: open(t, pgtest.DSN(t), store.Hooks{}), RecordEnd: recordEnd, Holder: "p", Notifier: n,
		Worker: workerFunc(succeed), NotificationOf: func(s State) any { return s.ViewAsARM("id", "Working") }})
	o := order("op", "a")
	o.NotificationURI = receiver.URL + "/notify"
	if err := accept(t.Context(), e, "a", o); err != nil {
		t.Fatal(err)
	}
	run(t, e)
	select {
	case status := <-bodies:
		if status != string(Succeeded) {
			t.Errorf("the notification has the status %q", status)
		}
	case <-time.After(testsite.HangLimit):
		t.Fatal("no notification")
	}
	testsite.Eventually(t, "the notification is not pending", func() error {
		s, err := e.Get(t.Context(), "op")
		if err == nil && s.Notification.Pending {
			err = errors.New("it is pending")
		}
		return err
	})

	strict := &Notifier{Hosts: []string{"127.0.0.1", "localhost", ".azure.example"}}
	for uri, want := range map[string]bool{
		"https://a.azure.example/x": true, "https://azure.example/": false, "https://evil.example/": false,
		"http://a.azure.example/": false, "https://u:p@a.azure.example/": false, "file:///etc/passwd": false,
		"https://a.azure.example.evil.example/": false,
	} {
		if strict.Permits(uri) != want {
			t.Errorf("%s: permitted is %v", uri, !want)
		}
	}
	before := attempts.Load()
	if err := strict.Send(t.Context(), strings.Replace(receiver.URL, "http:", "https:", 1), nil); err == nil ||
		!strings.Contains(err.Error(), "not public") {
		t.Errorf("a notification to this machine: %v", err)
	}
	if attempts.Load() != before {
		t.Error("the receiver on this machine was reached")
	}
}
