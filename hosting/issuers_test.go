package hosting

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http/httptest"
	"net/netip"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"atoll.dev/api/hypershift"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/hosting/issuer"
	"atoll.dev/plane"
	"atoll.dev/test/testissuer"
)

// A plane lets people in by tokens of an issuer that its cluster names while it runs, refuses all others, and forgets
// the issuer again, without a restart.
func TestAPlaneTrustsTheIssuersOfItsCluster(t *testing.T) {
	var w *world
	keeper := issuer.New(issuer.Options{Dir: func(id controlplane.ID) string { return w.dir(id) },
		Networks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}})
	w = newWorld(t, "issuer", func(o *Options) { o.Issuers = keeper })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- keeper.Run(ctx, func(id controlplane.ID) { w.h.IssuersChanged(id) }) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	login := testissuer.New("", "kubectl")
	server := httptest.NewTLSServer(login)
	defer server.Close()
	login.URL = server.URL
	certificate := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))

	key := w.create("one", map[string]any{"issuerURL": "https://oidc.hosted.test/one"})
	w.available(key)
	pid := w.pid(key)
	authority := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "login-ca"}, "data": map[string]any{"ca-bundle.crt": certificate}}}
	if _, err := w.admin.Resource(configMaps()).Namespace(key.Namespace).Create(w.Context(), authority,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	trust := func(url, prefix string) {
		t.Helper()
		provider := map[string]any{"name": "login",
			"issuer": map[string]any{"issuerURL": url, "audiences": []string{"kubectl"},
				"issuerCertificateAuthority": map[string]any{"name": "login-ca"}},
			"claimMappings": map[string]any{"username": map[string]any{"claim": "sub", "prefixPolicy": "Prefix",
				"prefix": map[string]any{"prefixString": prefix}}, "groups": map[string]any{"claim": "groups",
				"prefix": prefix}}}
		body, err := json.Marshal(map[string]any{"spec": map[string]any{"configuration": map[string]any{
			"authentication": map[string]any{"type": "OIDC", "oidcProviders": []any{provider}}}}})
		if err != nil {
			t.Fatal(err)
		}
		w.patch(key, string(body))
	}
	token := func(change map[string]any) string {
		claims := login.Claims("ada")
		claims["groups"] = []string{"web", "system:masters"}
		maps.Copy(claims, change)
		return login.Token(claims)
	}
	who := func(token string) (name string, groups []string, err error) { return w.whoami(key, token) }

	trust(login.URL, "sso:")
	w.condition(key, hypershift.ValidIDPConfiguration, "True", "AsExpected")
	w.wait("the token's user", func() error {
		name, groups, err := who(token(nil))
		if err != nil {
			return err
		}
		want := []string{"sso:web", "sso:system:masters", "system:authenticated"}
		if name != "sso:ada" || !slices.Equal(groups, want) {
			t.Errorf("the plane sees user %s, groups %v", name, groups)
		}
		return nil
	})
	for name, bad := range map[string]string{
		"another audience": token(map[string]any{"aud": "web"}),
		"expired":          token(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}),
		"another issuer":   token(map[string]any{"iss": "https://login.example.com"}),
		"the plane's own":  token(map[string]any{"iss": "https://kubernetes.default.svc.cluster.local"}),
		"changed":          token(nil) + "x",
	} {
		if user, _, err := who(bad); !apierrors.IsUnauthorized(err) {
			t.Errorf("a token that is %s: user %q, %v", name, user, err)
		}
	}

	// A refused change leaves the issuer as it was.
	for _, bad := range []string{"system:", "sys", "atoll:"} {
		trust(login.URL, bad)
		w.condition(key, hypershift.ValidConfiguration, "False", "InvalidConfiguration")
	}
	trust("https://oidc.hosted.test/one", "sso:")
	w.condition(key, hypershift.ValidConfiguration, "False", "InvalidConfiguration")
	if _, _, err := who(token(nil)); err != nil {
		t.Errorf("after a refused change: %v", err)
	}

	// An issuer that cannot be read is reported, and its cluster goes on.
	trust(login.URL+"/nothing", "sso:")
	hc := w.condition(key, hypershift.Degraded, "True", "IssuerUnreachable")
	w.condition(key, hypershift.ValidIDPConfiguration, "False", "IssuerUnreachable")
	if !meta.IsStatusConditionTrue(hc.Status.Conditions, hypershift.Available) {
		t.Error("the cluster is not available")
	}

	// Without issuers the plane trusts nobody; the issuer's new key counts when the issuer is back.
	w.patch(key, `{"spec":{"configuration":{"authentication":null}}}`)
	w.condition(key, hypershift.Degraded, "False", "AsExpected")
	w.wait("the end of trust", func() error {
		if user, _, err := who(token(nil)); !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("user %q, %w", user, err)
		}
		return nil
	})
	if meta.FindStatusCondition(w.get(key).Status.Conditions, hypershift.ValidIDPConfiguration) != nil {
		t.Error("a cluster without issuers reports on them")
	}
	login.AddKey("key-2")
	trust(login.URL, "sso:")
	w.wait("the user of a token with the new key", func() error { _, _, err := who(token(nil)); return err })
	if now := w.pid(key); now != pid {
		t.Errorf("the plane was restarted: process %d, then %d", pid, now)
	}
}

// whoami returns how a plane sees the bearer of a token.
func (w *world) whoami(key controlplane.ID, token string) (name string, groups []string, err error) {
	w.Helper()
	config, err := plane.Config{Dir: w.dir(key)}.RESTConfig()
	if err != nil {
		w.Fatal(err)
	}
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	review := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "authentication.k8s.io/v1",
		"kind": "SelfSubjectReview"}}
	answer, err := client.Resource(schema.GroupVersionResource{Group: "authentication.k8s.io", Version: "v1",
		Resource: "selfsubjectreviews"}).Create(w.Context(), review, metav1.CreateOptions{})
	if err != nil {
		return "", nil, err
	}
	name, _, _ = unstructured.NestedString(answer.Object, "status", "userInfo", "username")
	groups, _, _ = unstructured.NestedStringSlice(answer.Object, "status", "userInfo", "groups")
	return name, groups, nil
}
