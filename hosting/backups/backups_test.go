package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"atoll.dev/backup"
	"atoll.dev/backup/storetest"
	"atoll.dev/envelope"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
	"atoll.dev/plane/planetest"
)

func TestMain(m *testing.M) { os.Exit(planetest.Main(m)) }

// configMaps is a client of a plane's ConfigMaps.
func configMaps(t *testing.T, c plane.Config) dynamic.ResourceInterface {
	t.Helper()
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("default")
}

// A plane is backed up into an S3 store while it is written to. A plane that is made from the backup of a second has
// every object that was acknowledged before, and none that was written later than a second after it.
func TestAPlaneIsRestoredToASecond(t *testing.T) {
	p := planetest.Start(t)
	memory := s3mem.New()
	if err := memory.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(gofakes3.New(memory).Server())
	t.Cleanup(server.Close)
	store, err := backup.NewS3(backup.S3Options{Bucket: "backups", Endpoint: server.URL,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "A", SecretAccessKey: "S"}, nil
		})})
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(keyFile, []byte("k1 "+strings.Repeat("QUFB", 10)+"QUE=\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keys, err := envelope.ReadKeyFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	b := New(Options{
		Store: store, KMS: keys, Spool: filepath.Join(t.TempDir(), "spool"),
		Dial: func(_ controlplane.ID, w backup.Wrap) (*grpc.ClientConn, error) { return p.Config.DialStore(w) },
	})
	id := controlplane.ID{Namespace: "clusters-a", Name: "hc-a"}
	b.Begin(id, "1.36.3")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	await := func(what string, is func(backup.State) bool) {
		t.Helper()
		poll := time.NewTicker(100 * time.Millisecond)
		defer poll.Stop()
		for limit := time.Now().Add(3 * time.Minute); ; <-poll.C {
			s, _ := b.State(id)
			if is(s) {
				return
			}
			if time.Now().After(limit) {
				t.Fatalf("waited too long for %s: %+v", what, s)
			}
		}
	}
	await("the first chain", func(s backup.State) bool { return !s.Stored.IsZero() })

	things := configMaps(t, p.Config)
	type write struct {
		name         string
		began, ended time.Time
	}
	var journal []write
	var lastRevision int64
	pace := time.NewTicker(20 * time.Millisecond) // of a customer
	defer pace.Stop()
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); {
		w := write{name: fmt.Sprintf("thing-%d", len(journal)), began: time.Now()}
		created, err := things.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": w.name},
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w.ended = time.Now()
		if lastRevision, err = strconv.ParseInt(created.GetResourceVersion(), 10, 64); err != nil {
			t.Fatal(err)
		}
		journal = append(journal, w)
		<-pace.C
	}
	last := journal[len(journal)-1].ended
	// A sample is as old as its request. A machine that pauses between the request and its answer delays a write, too.
	longest := time.Duration(0)
	for i, w := range journal[1:] {
		longest = max(longest, w.ended.Sub(journal[i].ended))
	}
	await("the last write", func(s backup.State) bool { return s.Stored.After(last) })

	binary, err := planetest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []time.Time{journal[0].ended.Add(4 * time.Second).Truncate(time.Second), {}} {
		files, dir := t.TempDir(), t.TempDir()
		got, err := backup.Fetch(ctx, store, keys, backup.Plane(id), at, files)
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(binary, "restore", "--data-dir", dir, "--snapshot", got.Snapshot, "--log", got.Log,
			"--bump", "5000000000000").Output() // as in the year 2039
		if err != nil {
			t.Fatalf("atoll-kube restore: %v: %s", err, out)
		}
		if at.IsZero() { // the revision shows that all is there; the plane of the other moment shows that it serves
			var report struct{ Revision int64 }
			if err := json.Unmarshal(out, &report); err != nil || report.Revision < lastRevision {
				t.Errorf("the latest: revision %d, the last write has %d, %v: %s", report.Revision, lastRevision, err, out)
			}
			continue
		}
		restored, err := planetest.Launch(dir, planetest.FreeAddress(t))
		if err != nil {
			t.Fatal(err)
		}
		list, err := configMaps(t, restored.Config).List(ctx, metav1.ListOptions{})
		checkCompacted(t, restored.Config, got.Sample.Revision)
		if err != nil {
			_ = restored.Kill()
			t.Fatal(err)
		}
		t.Run("I1 revisions go on above those that were served", func(t *testing.T) {
			restoresAboveServed(t, store, keys, restored.Config, func() { _ = restored.Kill() })
		})
		_ = restored.Kill()
		has := map[string]bool{}
		for _, o := range list.Items {
			has[o.GetName()] = true
		}
		for _, w := range journal {
			if w.ended.Before(at) && !has[w.name] {
				t.Errorf("at %s: %s is missing, acknowledged %s", at, w.name, w.ended)
			}
			if has[w.name] && w.began.After(got.Sample.Time.Add(time.Second+2*longest)) {
				t.Errorf("at %s: %s is there, written %s", at, w.name, w.began)
			}
		}
		if len(has) < 2 {
			t.Errorf("at %s: %d objects", at, len(has))
		}
	}
}

// A follower runs while its plane runs, whichever is known first, and a moment longer.
func TestAFollowerRunsWithItsPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(Options{
			Store: storetest.NewMemory(), Spool: t.TempDir(),
			Dial: func(controlplane.ID, backup.Wrap) (*grpc.ClientConn, error) { return nil, errors.New("no plane") },
		})
		early, late := controlplane.ID{Name: "early"}, controlplane.ID{Name: "late"}
		expect := func(when string, id controlplane.ID) {
			t.Helper()
			if _, isMade := b.State(id); !isMade {
				t.Errorf("%s: no backup of %s is made", when, id.Name)
			}
		}
		expectNone := func(when string, id controlplane.ID) {
			t.Helper()
			if _, isMade := b.State(id); isMade {
				t.Errorf("%s: a backup of %s is made", when, id.Name)
			}
		}
		b.Begin(early, "1.36.3")
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx, func(controlplane.ID) {}) }()
		synctest.Wait()
		b.Begin(late, "1.36.3")
		expect("at first", early)
		expect("at first", late)
		expectNone("at first", controlplane.ID{Name: "other"})
		b.End(early)
		b.End(late)
		<-time.After(endLimit / 2)
		expect("a moment after its end", early)
		b.Begin(late, "1.36.3") // it was restarted
		<-time.After(endLimit)
		expectNone("later", early)
		expect("after its restart", late)
		<-time.After(time.Minute)
		if s, _ := b.State(late); s.Failing != "no plane" || b.countFailing() != 1 {
			t.Errorf("%+v, %v failing", s, b.countFailing())
		}
		b.Begin(early, "1.36.3")
		expect("when it runs again", early)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
