package credential

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	apihosting "atoll.dev/api/hosting"
	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/process"
	"atoll.dev/plane"
)

// A certificate is valid when it is published, is a user of its own whatever the request says, and is refused after
// the deletion of its Credential.
func TestACredentialIsValidUntilItsDeletion(t *testing.T) {
	w := newWorld(t, "works")
	key := w.order("works-1", nil)
	c := w.await("works-1", "AsExpected")
	user := client(t, config(t, c, key))
	spaces := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if _, err := user.Resource(spaces).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatalf("the credential is there and does not work: %v", err)
	}
	reviews := schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1",
		Resource: "selfsubjectreviews"}
	me, err := user.Resource(reviews).Create(t.Context(), &unstructured.Unstructured{
		Object: map[string]any{"apiVersion": "authentication.k8s.io/v1",
			"kind": "SelfSubjectReview"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := unstructured.NestedString(me.Object, "status", "userInfo", "username")
	groups, _, _ := unstructured.NestedStringSlice(me.Object, "status", "userInfo", "groups")
	if want := []string{"atoll:credential:works-1", "system:authenticated"}; name != "atoll:credential:works-1" ||
		!slices.Equal(groups, want) {
		t.Errorf("its holder is %q in %q, want the credential itself in %q", name, groups, want)
	}
	if c.Status.TLSServerName != "localhost" {
		t.Errorf("server name %q", c.Status.TLSServerName)
	}
	block, _ := pem.Decode([]byte(c.Status.Certificate))
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if want := c.CreationTimestamp.Add(10 * time.Minute); !cert.NotAfter.Equal(want) ||
		!c.Status.ExpirationTimestamp.Time.Equal(want) {
		t.Errorf("it ends at %s, the status says %s, want %s", cert.NotAfter, c.Status.ExpirationTimestamp, want)
	}
	if cert.IsCA || len(cert.DNSNames) > 0 || !slices.Equal(cert.ExtKeyUsage, []x509.ExtKeyUsage{
		x509.ExtKeyUsageClientAuth}) {
		t.Errorf("it is good for more than a client: CA %t, names %q, uses %v", cert.IsCA, cert.DNSNames,
			cert.ExtKeyUsage)
	}

	w.delete("works-1")
	if w.bound("works-1") {
		t.Error("the binding is still there")
	}
	w.eventually("the revoked certificate being refused", func() error {
		if _, err := user.Resource(spaces).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			return errors.New("it still works")
		}
		return nil
	})
}

func TestARefusedCredentialHasAReason(t *testing.T) {
	w := newWorld(t, "refused")
	for id, change := range map[string]func(map[string]any){
		"damaged": func(s map[string]any) {
			s["request"] = "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
		},
		"none":          func(s map[string]any) { s["request"] = "" },
		"for-masters":   func(s map[string]any) { s["username"] = "system:kube-controller-manager" },
		"for-long":      func(s map[string]any) { s["expirationSeconds"] = int64(24*3600 + 1) },
		"for-no-time":   func(s map[string]any) { s["expirationSeconds"] = int64(0) },
		"with-a-branch": func(s map[string]any) { s["id"] = "works-1" },
	} {
		w.order(id, change)
		c := w.await(id, InvalidRequest)
		if c.Status.Certificate != "" || c.Status.Conditions[0].Message == "" ||
			c.Status.Conditions[0].Status != "False" {
			t.Errorf("%s: status %+v", id, c.Status)
		}
		if w.bound(id) {
			t.Errorf("%s is bound", id)
		}
		w.delete(id)
	}
	w.order("elsewhere", func(s map[string]any) { s["clusterName"] = "hc-nobody" })
	w.await("elsewhere", ClusterNotFound)
	w.delete("elsewhere")
}

func TestAnExpiredCredentialLeavesNoObject(t *testing.T) {
	w := newWorld(t, "expires")
	w.order("short", func(s map[string]any) { s["expirationSeconds"] = int64(1) })
	if c := w.await("short", Expired); c.Status.Certificate != "" {
		t.Error("it still shows a certificate")
	}
	if w.bound("short") {
		t.Error("it is still bound")
	}
	w.planes.replace(plane.Config{Dir: t.TempDir()}) // that lets nobody in holds nothing up
	w.delete("short")
}

// Only the creation and the removal of a binding wake a plane.
func TestASleepingPlane(t *testing.T) {
	w := newWorld(t, "sleeps")
	w.planes.set(broken)
	w.order("sleeps-1", nil)
	w.await("sleeps-1", PlaneUnavailable)
	w.planes.set(asleep)
	w.await("sleeps-1", "AsExpected")
	if n := w.planes.wakes(); n != 1 {
		t.Errorf("woken %d times to bind, want once", n)
	}

	w.planes.set(asleep)
	w.delete("sleeps-1")
	if n := w.planes.wakes(); n != 1 || w.bound("sleeps-1") {
		t.Errorf("woken %d times to revoke a good certificate, want once; still bound: %t", n, w.bound("sleeps-1"))
	}

	w.planes.set(broken)
	w.order("sleeps-2", func(s map[string]any) { s["expirationSeconds"] = int64(1) })
	w.await("sleeps-2", Expired)
	w.planes.set(broken)
	w.delete("sleeps-2")
	if n := w.planes.wakes(); n != 0 {
		t.Errorf("woken %d times for an expired one, want never", n)
	}

	// The remains of a credential that expired while the plane slept.
	if err := (bindings{w.admin}).grant(t.Context(), order{user: apihosting.CredentialUser("sleeps-2"),
		group: apihosting.CredentialGroup("sleeps-2"), role: adminRole, expires: time.Now().Add(-time.Second),
	}); err != nil {
		t.Fatal(err)
	}
	w.planes.set(serving)
	w.order("sleeps-3", nil)
	w.await("sleeps-3", "AsExpected")
	if w.bound("sleeps-2") {
		t.Error("what expired while the plane slept is still bound when the next is issued")
	}
}

// The deletion of a cluster waits for no credential (I9).
func TestI9CredentialsEndWithTheirCluster(t *testing.T) {
	w := newWorld(t, "ends")
	w.order("ends-1", nil)
	w.await("ends-1", "AsExpected")
	w.planes.set(broken)
	if err := w.admin.Resource(hypershift.HostedClusters()).Namespace(w.namespace).Delete(t.Context(), clusterName,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.delete("ends-1")
	if n := w.planes.wakes(); n != 0 {
		t.Errorf("woken %d times", n)
	}
}

// An issued certificate is not issued again, after any event.
func TestAnIssuedCertificateStays(t *testing.T) {
	w := newWorld(t, "stays")
	w.order("stays-1", nil)
	before := w.await("stays-1", "AsExpected")
	path := w.admin.Resource(apihosting.Credentials()).Namespace(w.namespace)
	if _, err := path.Patch(t.Context(), before.Name, "application/merge-patch+json",
		[]byte(`{"metadata":{"annotations":{"touched":"yes"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := path.Patch(t.Context(), before.Name, "application/merge-patch+json", []byte(`{"spec":{"more":"yes"}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// The generation is new, so this waits for a look at it.
	after := w.await("stays-1", "AsExpected")
	if after.Status.Certificate != before.Status.Certificate {
		t.Error("there is another certificate")
	}
}

// After a restore, the plane binds exactly the credentials that its cluster has now.
func TestARestoredPlaneHasTheBindingsOfItsCredentials(t *testing.T) {
	w := newWorld(t, "agree")
	w.order("agree-1", nil)
	w.await("agree-1", "AsExpected")
	admin, err := process.AdminOf(w.planes.config)
	if err != nil {
		t.Fatal(err)
	}
	b, err := bindingsOf(admin)
	if err != nil {
		t.Fatal(err)
	}
	// The data is older than the credential, and newer than a revocation.
	if err := b.remove(t.Context(), apihosting.CredentialGroup("agree-1")); err != nil {
		t.Fatal(err)
	}
	if err := b.grant(t.Context(), order{group: apihosting.CredentialGroup("revoked"),
		user: apihosting.CredentialUser("revoked"), role: adminRole,
		expires: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	// The holder of the revoked one, and that of the living one, had bound themselves.
	own := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": rbacGroup + "/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "own"},
		"roleRef": map[string]any{"apiGroup": rbacGroup, "kind": "ClusterRole", "name": adminRole},
		"subjects": []any{
			map[string]any{"apiGroup": rbacGroup, "kind": "User", "name": apihosting.CredentialUser("revoked")},
			map[string]any{"apiGroup": rbacGroup, "kind": "User", "name": apihosting.CredentialUser("agree-1")},
		}}}
	if _, err := b.resource("clusterrolebindings").Create(t.Context(), own, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.remove(context.Background(), "own"); err != nil {
			t.Error(err)
		}
	})
	id := controlplane.ID{Namespace: w.namespace, Name: clusterName}
	for range 2 {
		if err := Agree(t.Context(), Options{Client: w.admin}, id, admin); err != nil {
			t.Fatal(err)
		}
		if !w.bound("agree-1") {
			t.Error("a credential that was issued since has no binding")
		}
		if w.bound("revoked") {
			t.Error("a credential that was revoked since has a binding")
		}
	}
	own, err = b.resource("clusterrolebindings").Get(t.Context(), "own", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	subjects, _, _ := unstructured.NestedSlice(own.Object, "subjects")
	if len(subjects) != 1 || subjects[0].(map[string]any)["name"] != apihosting.CredentialUser("agree-1") {
		t.Errorf("a binding that holders have made has the subjects %v", subjects)
	}
}
