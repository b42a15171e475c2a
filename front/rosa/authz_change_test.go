package rosa_test

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"atoll.dev/access"
)

const isDev = ` when {resource.hasTag("env") && resource.getTag("env") == "dev"};`

// A watch of events ends with 410 before its next event when its reader may not describe the cluster
// any more: because of his policies, or because of the cluster's tags.
func TestAWatchOfEventsEndsWithTheRightToDescribe(t *testing.T) {
	a := startAuthorized(t)
	const describe = `permit (principal, action == ROSA::Action::"DescribeCluster", resource)`
	for name, c := range map[string]struct {
		policy string
		lose   func(id string, take func()) // takes the right away
	}{
		"detached": {describe + ";", func(_ string, take func()) { take() }},
		"tagged": {describe + isDev, func(id string, _ func()) {
			a.want(root, "PATCH", "/clusters/"+id, `{"spec":{"tags":{"env":"prod"}}}`, 200, "")
		}},
	} {
		id := a.make(root, "/clusters", "id", map[string]any{"name": name, "spec": map[string]any{
			"tags": map[string]string{"env": "dev"}}})
		take := a.attach(c.policy, "user", ann)
		target := a.server.URL + "/api/v0/clusters/" + id + "/events?watch=true"
		r, err := http.NewRequestWithContext(t.Context(), "GET", target, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Test-Principal", ann)
		w, err := a.server.Client().Do(r)
		if err != nil || w.StatusCode != 200 {
			t.Fatalf("%s: %v, %v", name, w, err)
		}
		lines := bufio.NewScanner(w.Body)
		for lines.Scan() && !strings.Contains(lines.Text(), "BOOKMARK") {
		}
		c.lose(id, take)
		a.want(root, "DELETE", "/clusters/"+id, "", 202, "")
		rest := ""
		for lines.Scan() {
			rest += lines.Text() + "\n"
			if strings.Contains(lines.Text(), "DeletionRequested") {
				break
			}
		}
		if strings.Contains(rest, "ADDED") || !strings.Contains(rest, `"gone"`) {
			t.Errorf("%s: after the right is taken away: %s", name, rest)
		}
		if err := w.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if name == "tagged" {
			take()
		}
	}
}

// The answer to a change has the changed document, also when the decision has read it before.
func TestAChangeAnswersWithTheChangedDocument(t *testing.T) {
	a := startAuthorized(t)
	id := a.make(root, "/clusters", "id", map[string]any{"name": "dev", "spec": map[string]any{
		"tags": map[string]string{"env": "dev"}}})
	pool := a.make(root, "/nodepools", "id", map[string]any{"cluster_id": id, "name": "w",
		"spec": map[string]any{"nodePool": map[string]any{"replicas": 1}}})
	a.attach(`permit (principal, action == ROSA::Action::"UpdateCluster", resource)`+isDev+
		`permit (principal, action == ROSA::Action::"UpdateNodePool", resource)`+isDev, "user", ann)
	spec := func(path, body string) map[string]any {
		shown, _ := a.want(ann, "PATCH", path, body, 200, "")["spec"].(map[string]any)
		return shown
	}
	if got := spec("/clusters/"+id, `{"spec":{"displayName":"new"}}`); got["displayName"] != "new" {
		t.Errorf("the cluster after the change: %v", got)
	}
	got, _ := spec("/nodepools/"+pool, `{"spec":{"nodePool":{"replicas":3}}}`)["nodePool"].(map[string]any)
	if got["replicas"] != 3.0 {
		t.Errorf("the node pool after the change: %v", got)
	}
}

// A change is made of a document that the caller may change, also when the document gets other tags
// between the decision and the change.
func TestAChangeIsDecidedOnTheDocumentThatItChanges(t *testing.T) {
	a := startDecidedBy(t, func(a *authorized) access.Policy { return a })
	a.attach(`permit (principal, action in ROSA::Action::"AllActions", resource is ROSA::Cluster)`+isDev+
		`permit (principal, action in ROSA::Action::"AllActions", resource is ROSA::NodePool)`+isDev, "user", ann)
	for _, c := range []struct{ method, path, body, action string }{
		{"PATCH", "/clusters/CLUSTER", `{"spec":{"displayName":"x"}}`, "UpdateCluster"},
		{"DELETE", "/clusters/CLUSTER", "", "DeleteCluster"},
		{"PATCH", "/nodepools/POOL", `{"spec":{"nodePool":{"replicas":3}}}`, "UpdateNodePool"},
	} {
		id := a.make(root, "/clusters", "id", map[string]any{"name": strings.ToLower(c.action), "spec": map[string]any{
			"tags": map[string]string{"env": "dev"}}})
		pool := a.make(root, "/nodepools", "id", map[string]any{"cluster_id": id, "name": "w"})
		path := strings.NewReplacer("CLUSTER", id, "POOL", pool).Replace(c.path)
		isTagged := false
		a.decided = func(q access.Question) {
			if q.Caller.Principal == ann && string(q.Action) == c.action && !isTagged {
				isTagged = true
				a.want(root, "PATCH", "/clusters/"+id, `{"spec":{"tags":{"env":"prod"}}}`, 200, "")
			}
		}
		a.want(ann, c.method, path, c.body, 403, "access-denied")
		a.decided = nil
		if shown := a.want(root, "GET", path, "", 200, ""); shown["deleted_at"] != nil ||
			!isTagged {
			t.Errorf("%s: %v", c.action, shown)
		}
	}
}
