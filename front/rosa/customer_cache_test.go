package rosa_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"atoll.dev/access"
	"atoll.dev/api/platform"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa"
	"atoll.dev/internal/jsonvalue"
	"atoll.dev/internal/rest"
	"atoll.dev/test/testsite"
)

// identityByHeaders identifies a sender by the account that he names. Header "Operator: yes" makes it privileged.
type identityByHeaders struct{}

func (identityByHeaders) Identify(r *http.Request) (access.Identity, []byte, error) {
	return access.Identity{Account: cluster.Account(r.Header.Get("Account")), Principal: operator.Principal,
		Privileged: r.Header.Get("Operator") == "yes"}, nil, nil
}

// The front keeps the clusters that it has shown. Each answer shows the present state nevertheless, and only what its
// caller may read.
func TestAKeptClusterIsShownAsItIs(t *testing.T) {
	l := startLifecycle(t)
	s := httptest.NewServer(rosa.New(rosa.Options{Maestro: l.maestro, CLM: l.front, Ops: rest.NewOps(),
		Log: slog.New(slog.DiscardHandler), Identifier: identityByHeaders{}, Policy: allowAll{}}))
	defer s.Close()
	made, err := l.as(operator).CreateCluster(t.Context(), platform.ClusterRequest{Name: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	get := func(account cluster.Account, isOperator string) (status int, c platform.Cluster) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v0/clusters/"+made.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Account", string(account))
		r.Header.Set("Operator", isOperator)
		res, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err == nil && res.StatusCode == http.StatusOK {
			c, err = jsonvalue.DecodeAs[platform.Cluster](body)
		}
		if err != nil {
			t.Fatal(err)
		}
		if tag := `"` + c.ResourceVersion + `"`; res.StatusCode == http.StatusOK && res.Header.Get("Etag") != tag {
			t.Errorf("the ETag is %s, the version %s", res.Header.Get("Etag"), tag)
		}
		return res.StatusCode, c
	}
	read := func(isOperator string) platform.Cluster {
		t.Helper()
		_, first := get(operator.Account, isOperator)
		_, second := get(operator.Account, isOperator)
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("two reads of the same cluster differ: %s", diff)
		}
		return first
	}

	if c := read("no"); c.Status.Phase != platform.ClusterPhaseWaitingForPlacement {
		t.Errorf("before any report: %+v", c.Status)
	}
	l.up(made.ID)
	for _, isOperator := range []string{"yes", "no", "yes"} {
		c := read(isOperator)
		if c.Status.Phase != platform.ClusterPhaseReady || (c.PlacementRef != nil) != (isOperator == "yes") {
			t.Errorf("operator: %s: %+v, placed on %+v", isOperator, c.Status, c.PlacementRef)
		}
	}
	if status, _ := get(neighbour.Account, "no"); status != http.StatusNotFound {
		t.Errorf("another account reads the cluster: %d", status)
	}
	l.report("clusters", made.ID, "hosted-cluster", `{"target_cluster":"management-01","power":"Asleep"}`)
	if c := read("no"); c.Status.Power != "Asleep" {
		t.Errorf("asleep: %+v", c.Status)
	}

	// The end of the window for a rollback changes the answer, and no report.
	soak := time.Now().Add(2 * time.Second).UTC().Truncate(time.Millisecond)
	l.report("clusters", made.ID, "hosted-cluster", fmt.Sprintf(`{"target_cluster":"management-01","upgrade":{
		"from":"1.36.2","to":"1.36.3","phase":"Soaking","soakUntil":%q}}`, soak.Format(time.RFC3339Nano)))
	wasPossible := false
	testsite.Eventually(t, "the window for a rollback ends", func() error {
		_, c := get(operator.Account, "no")
		if u := c.Status.Upgrade; u == nil || u.CanRollBack {
			wasPossible = u != nil
			return fmt.Errorf("the upgrade: %+v", u)
		}
		return nil
	})
	if !wasPossible || time.Now().Before(soak) {
		t.Errorf("a rollback was possible: %v, and is not %s before the end", wasPossible, time.Until(soak))
	}

	if _, err := l.system.Delete(t.Context(), "clusters", made.ID, ""); err != nil {
		t.Fatal(err)
	}
	if c := read("no"); c.Status.Phase != platform.ClusterPhaseDeleting {
		t.Errorf("being deleted: %+v", c.Status)
	}
	l.gone("clusters", made.ID, "hosted-cluster", "pull-secret", "placement")
	if status, _ := get(operator.Account, "no"); status != http.StatusNotFound {
		t.Errorf("a deleted cluster: %d", status)
	}
}
