package maestro

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"atoll.dev/api/cloudevents"
	"atoll.dev/api/work"
	"atoll.dev/maestro/rpcauth"
	"atoll.dev/pki"
	"atoll.dev/plane/planetest"
)

// kubeAPI speaks to a plane as its administrator, without a client library.
type kubeAPI struct {
	t      *testing.T
	url    string
	client *http.Client
}

func (k kubeAPI) call(method, path, body string, into any) {
	k.t.Helper()
	req, err := http.NewRequest(method, k.url+path, strings.NewReader(body))
	if err != nil {
		k.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := k.client.Do(req)
	if err != nil {
		k.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	if resp.StatusCode/100 != 2 {
		k.t.Fatalf("%s %s: %s %s", method, path, resp.Status, data)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			k.t.Fatal(err)
		}
	}
}

func (k kubeAPI) token(account string) string {
	k.t.Helper()
	k.call("POST", "/api/v1/namespaces/default/serviceaccounts", fmt.Sprintf(`{"metadata":{"name":%q}}`, account), nil)
	var out struct{ Status struct{ Token string } }
	k.call("POST", "/api/v1/namespaces/default/serviceaccounts/"+account+"/token",
		`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":3600}}`, &out)
	return out.Status.Token
}

func (k kubeAPI) bind(name, account, role string) {
	k.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", fmt.Sprintf(`{"metadata":{"name":%q},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":%q},"subjects":[{"kind":"ServiceAccount","namespace":"default","name":%q}]}`, name, role, account), nil)
}

// TestI10TokensAreReviewedByAKubernetes uses a real API server.
func TestI10TokensAreReviewedByAKubernetes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t)
	config, err := p.Config.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(config.CAData)
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots,
		Certificates: []tls.Certificate{pair}, ServerName: config.ServerName}}
	t.Cleanup(transport.CloseIdleConnections)
	kube := kubeAPI{t, config.Host, &http.Client{Transport: transport}}
	maestroToken, sourceToken, strangerToken := kube.token("maestro"), kube.token("fleet"), kube.token("stranger")
	kube.bind("maestro-reviews", "maestro", "system:auth-delegator")
	kube.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"fleet-source"},"rules":[
		{"nonResourceURLs":["/sources/fleet"],"verbs":["pub","sub"]},{"nonResourceURLs":["/clusters/mc1"],"verbs":["sub"]}]}`, nil)
	kube.bind("fleet-source", "fleet", "fleet-source")

	dir := t.TempDir()
	caFile, tokenFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "token")
	for path, data := range map[string][]byte{caFile: config.CAData, tokenFile: []byte(maestroToken + "\n")} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	site := newSite(t)
	m := site.start(withAgents(site), func(o *Options) {
		optional := site.ServerTLS("maestro")
		optional.ClientAuth = tls.VerifyClientCertIfGiven
		o.GRPCTLS, o.AgentsTLS = optional, optional
		o.Tokens = &rpcauth.KubeOptions{Server: kube.url, CAFile: caFile, TokenFile: tokenFile}
	})
	as := func(token string) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		t.Cleanup(cancel)
		return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	anyone := m.dialWith(m.target)
	agents := m.dialWith(m.agentsTarget())
	sub := func(ctx context.Context, c cloudevents.CloudEventServiceClient, source, cluster string) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		_, err := opened(ctx, c, &cloudevents.SubscriptionRequest{Source: source, ClusterName: cluster,
			DataType: work.DataType})
		return err
	}
	// The API server learns of roles and bindings a moment after they are there.
	eventually(t, "the source is let in", func() error { return attempt(as(sourceToken), t, anyone, "fleet") })
	for what, c := range map[string]struct {
		err  error
		code string
	}{
		"its own source":             {attempt(as(sourceToken), t, anyone, "fleet"), "OK"},
		"its own source, again":      {attempt(as(sourceToken), t, anyone, "fleet"), "OK"},
		"its own stream":             {sub(as(sourceToken), anyone, "fleet", ""), "OK"},
		"another's source":           {attempt(as(sourceToken), t, anyone, "other"), "PermissionDenied"},
		"another's stream":           {sub(as(sourceToken), anyone, "other", ""), "PermissionDenied"},
		"a cluster that it may read": {sub(as(sourceToken), agents, "", "mc1"), "OK"},
		"another cluster":            {sub(as(sourceToken), agents, "", "mc2"), "PermissionDenied"},
		"a stranger":                 {attempt(as(strangerToken), t, anyone, "fleet"), "PermissionDenied"},
		"no token":                   {attempt(t.Context(), t, anyone, "fleet"), "Unauthenticated"},
		"a forged token": {attempt(as(sourceToken[:len(sourceToken)-6]+"AAAAAA"), t, anyone, "fleet"),
			"Unauthenticated"},
		"nonsense":                {attempt(as("nonsense"), t, anyone, "fleet"), "Unauthenticated"},
		"a service's certificate": {attempt(t.Context(), t, m.dial(pki.ServiceName("platform-api")), "anything"), "OK"},
	} {
		if !isCode(c.err, c.code) && !(c.code == "OK" && c.err == nil) {
			t.Errorf("%s: %v instead of %s", what, c.err, c.code)
		}
		if c.err != nil && strings.Contains(c.err.Error(), sourceToken[:40]) {
			t.Errorf("%s: the token is in the error", what)
		}
	}
	// While nobody can be asked, nobody new comes in.
	r := m.server.auth.Reviewer
	r.Mu.Lock()
	clear(r.Answers)
	r.Mu.Unlock()
	if err := os.WriteFile(tokenFile, []byte("void"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := attempt(as(sourceToken), t, anyone, "fleet"); !isCode(err, "Unavailable") {
		t.Errorf("without reviews: %v", err)
	}
}
