package test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

const auditPath = "/atoll.dev/audit"

// secretsInStore returns the values of all Secrets as etcd has them, by key.
func (p *plane) secretsInStore() map[string][]byte {
	p.t.Helper()
	found, err := etcdserverpb.NewKVClient(p.store()).Range(background, &etcdserverpb.RangeRequest{
		Key: []byte("/registry/secrets/"), RangeEnd: []byte("/registry/secrets0")})
	if err != nil {
		p.t.Fatal(err)
	}
	values := map[string][]byte{}
	for _, kv := range found.Kvs {
		values[string(kv.Key)] = kv.Value
	}
	return values
}

// audited returns the events of the audit log that are about a name.
func (p *plane) audited(name string) (events []map[string]any, raw []byte) {
	p.t.Helper()
	raw, err := p.client().RESTClient().Get().AbsPath(auditPath).DoRaw(background)
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range bytes.Lines(raw) {
		var e map[string]any
		if err := json.Unmarshal(line, &e); err != nil {
			p.t.Fatalf("%q: %v", line, err)
		}
		if object, _ := e["objectRef"].(map[string]any); object["name"] == name {
			events = append(events, e)
		}
	}
	return events, raw
}

// A plane whose Secrets are in plain text, as all were before planes had keys, gets a key, encrypts its Secrets in the
// background, and does not start without that key any more. Its audit log has who wrote them, and no content.
func TestSecretsAreEncryptedAtRest(t *testing.T) {
	const content = "do-not-store-me"
	dir, listen := dataDir(t), address(t)
	config := filepath.Join(dir, "pki", "encryption.yaml")
	if err := os.MkdirAll(filepath.Dir(config), 0o700); err != nil {
		t.Fatal(err)
	}
	plain := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n" +
		"resources: [{resources: [secrets], providers: [{identity: {}}]}]\n"
	if err := os.WriteFile(config, []byte(plain), 0o600); err != nil {
		t.Fatal(err)
	}
	p, _ := startReady(t, dir, listen)
	for i := range 120 { // more than one page
		_, err := p.client().CoreV1().Secrets("default").Create(background, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("old-%d", i)}, StringData: map[string]string{"a": content},
			Immutable: new(i%2 == 0)}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	for key, value := range p.secretsInStore() {
		if !bytes.Contains(value, []byte(content)) {
			t.Fatalf("%s is not in plain text: the rest of this test would show nothing", key)
		}
	}
	p.eventually("the audit record of a Secret", func() error {
		events, raw := p.audited("old-7")
		if bytes.Contains(raw, []byte(content)) || bytes.Contains(raw, []byte("ZG8tbm90LXN0b3JlLW1l")) {
			t.Fatal("the audit log has the content of a Secret")
		}
		if len(events) == 0 {
			return errNotYet
		}
		if user, _ := events[0]["user"].(map[string]any); user["username"] != "admin" || events[0]["verb"] != "create" {
			t.Errorf("event %v", events[0])
		}
		return nil
	})
	p.auditLogIsForAdmins(t)
	p.stop()

	if err := os.Remove(config); err != nil { // a plane of before there were keys has no such file
		t.Fatal(err)
	}
	p, _ = startReady(t, dir, listen)
	p.eventually("the encryption of all Secrets", func() error {
		if missing(filepath.Join(dir, "etcd", "secrets.encrypted")) {
			return errNotYet
		}
		return nil
	})
	key, err := os.ReadFile(filepath.Join(dir, "etcd", "secrets.encrypted"))
	if err != nil || len(key) == 0 {
		t.Fatalf("key %q, %v", key, err)
	}
	values := p.secretsInStore()
	if len(values) != 120 {
		t.Errorf("%d Secrets in the store, want 120", len(values))
	}
	for name, value := range values {
		if !bytes.HasPrefix(value, []byte("k8s:enc:secretbox:v1:"+string(key)+":")) ||
			bytes.Contains(value, []byte(content)) {
			t.Errorf("%s is not encrypted with the plane's key %s", name, key)
		}
	}
	for _, i := range []int{0, 1, 119} {
		s, err := p.client().CoreV1().Secrets("default").Get(background, fmt.Sprintf("old-%d", i), metav1.GetOptions{})
		if err != nil || string(s.Data["a"]) != content {
			t.Errorf("old-%d is %q, %v", i, s.Data["a"], err)
		}
	}
	p.stop()

	if err := os.Remove(config); err != nil {
		t.Fatal(err)
	}
	if failure := start(t, dir, listen).complaint(); !strings.Contains(failure, "encryption.yaml") ||
		!strings.Contains(failure, "damaged") {
		t.Errorf("without the key of its Secrets the plane says %q", failure)
	}
}

// auditLogIsForAdmins shows that the audit log is read with the right to its URL only.
func (p *plane) auditLogIsForAdmins(t *testing.T) {
	client := p.client()
	anonymous := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	for _, path := range []string{auditPath, auditPath + "/", "/livez/.." + auditPath} {
		response, err := anonymous.Get("https://" + p.listen + path)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusUnauthorized {
			t.Errorf("anonymous GET %s: %d", path, response.StatusCode)
		}
	}
	as := func(user string) error {
		config := p.config()
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		impersonator, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = impersonator.RESTClient().Get().AbsPath(auditPath).DoRaw(background)
		return err
	}
	for user, role := range map[string]string{"viewer": "view", "editor": "edit", "owner": "cluster-admin"} {
		_, err := client.RbacV1().ClusterRoleBindings().Create(background, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
			Subjects: []rbacv1.Subject{{Kind: "User", Name: user}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	p.eventually("the rights of the owner", func() error { return as("owner") })
	for _, user := range []string{"viewer", "editor"} {
		p.eventually("the rights of the "+user, func() error {
			config := p.config()
			config.Impersonate = rest.ImpersonationConfig{UserName: user}
			impersonator, err := kubernetes.NewForConfig(config)
			if err != nil {
				return err
			}
			_, err = impersonator.CoreV1().ConfigMaps("default").List(background, metav1.ListOptions{})
			return err
		})
		if err := as(user); !apierrors.IsForbidden(err) {
			t.Errorf("the %s reads the audit log: %v", user, err)
		}
	}
	_, err := client.RESTClient().Post().AbsPath(auditPath).DoRaw(background)
	status, ok := errors.AsType[*apierrors.StatusError](err)
	if !ok || status.Status().Code != http.StatusMethodNotAllowed {
		t.Errorf("POST %s: %v", auditPath, err)
	}
}
