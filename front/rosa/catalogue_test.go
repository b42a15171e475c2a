package rosa

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"atoll.dev/client/clmclient"
)

// A request that reads the releases does not wait for the hanging read of another
// request.
func TestARequestDoesNotWaitForTheReadOfAnother(t *testing.T) {
	asked := make(chan struct{}, 2)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	defer silent.Close()
	lifecycle, err := clmclient.New(clmclient.Options{Endpoint: silent.URL, Timeout: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer lifecycle.Close()
	known := &catalogue{clm: lifecycle}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := known.releases(ctx)
			done <- err
		}()
	}
	for range 2 {
		select {
		case <-asked:
		case <-time.After(30 * time.Second):
			t.Error("the second question waits for the answer to the first")
		}
	}
	cancel()
	for range 2 {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}
