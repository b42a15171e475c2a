package backups

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

// The contents of a plane's etcd at a revision are those of then, over several pages. A scratch plane that lacks an
// object, has one more or an older one differs.
func TestContentsAtARevision(t *testing.T) {
	p := planetest.Shared(t)
	conn, err := p.Config.DialStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	things := configMaps(t, p.Config)
	name := strings.ToLower(fmt.Sprintf("%s-%d", t.Name(), p.PID))
	key := "/registry/configmaps/default/" + name
	created, err := things.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	status, err := pb.NewMaintenanceClient(conn).Status(t.Context(), &pb.StatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	then := status.Header.GetRevision()
	if err := things.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	contents, err := backup.ReadContentsAt(t.Context(), conn, then)
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(contents[key]) != created.GetResourceVersion() {
		t.Errorf("at revision %d the object has revision %d, want %s", then, contents[key], created.GetResourceVersion())
	}
	if live, err := backup.ReadLiveContents(t.Context(), conn); err != nil || live[key] != 0 {
		t.Errorf("after the deletion: %d, %v", live[key], err)
	}
	if n, err := backup.CountKeys(t.Context(), conn, "", then); err != nil || n != len(contents) {
		t.Errorf("%d keys are counted, and %d were read, %v", n, len(contents), err)
	}
	if n, err := backup.CountKeys(t.Context(), conn, key, then); err != nil || n != 1 {
		t.Errorf("%d keys of the object are counted, %v", n, err)
	}
	if _, err := backup.ReadContentsAt(t.Context(), conn, then+1_000_000); err == nil ||
		errors.Is(err, backup.ErrCompacted) {
		t.Errorf("a revision of the future: %v", err)
	}

	b := New(Options{Store: storetest.NewMemory(), Dial: dialTo(p.Config)})
	for what, c := range map[string]struct {
		change func(map[string]int64)
		want   int
	}{
		"as it was":     {func(map[string]int64) {}, 0},
		"one is gone":   {func(m map[string]int64) { m["/registry/configmaps/default/gone"] = 7 }, 1},
		"one is more":   {func(m map[string]int64) { delete(m, key) }, 1},
		"one is older":  {func(m map[string]int64) { m[key]++ }, 1},
		"another is in": {func(m map[string]int64) { delete(m, key); m[key+"-2"] = 7 }, 2},
	} {
		expected := map[string]int64{}
		for k, revision := range contents {
			expected[k] = revision
		}
		c.change(expected)
		got, err := b.CompareScratch(t.Context(), controlplane.ID{}, controlplane.ScratchData{Revision: then,
			Expected: expected})
		if err != nil || !got.IsCompared || got.Different != c.want || got.Objects != len(contents) {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	got, err := b.CompareScratch(t.Context(), controlplane.ID{}, controlplane.ScratchData{Revision: then})
	if err != nil || got.IsCompared || got.Objects != len(contents) {
		t.Errorf("nothing to compare with: %+v, %v", got, err)
	}
}

// checkCompacted checks that a restored plane's etcd has no revision of before the restore.
func checkCompacted(t *testing.T, c plane.Config, revision int64) {
	t.Helper()
	conn, err := c.DialStore(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := backup.ReadContentsAt(t.Context(), conn, revision); !errors.Is(err, backup.ErrCompacted) {
		t.Errorf("revision %d of before the restore: %v", revision, err)
	}
}
