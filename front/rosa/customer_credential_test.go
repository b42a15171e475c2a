package rosa_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"atoll.dev/api/platform"
	"atoll.dev/client"
	"atoll.dev/client/clmclient"
	"atoll.dev/client/remote"
	"atoll.dev/cluster"
	"atoll.dev/front/rosa"
)

// A key that the API makes is in the answer to one POST and nowhere else: neither in
// the lifecycle manager's database, nor in another answer, nor in a log.
func TestI11KeysAreShownOnceAndKeptNowhere(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	plane := newPlane(t)
	plane.serve(l, nil)
	made, err := p.CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.once(operator).CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{})
	if e, ok := errors.AsType[*remote.Error](err); !ok || e.Status != 503 || e.Code != "CLUSTERS-MGMT-CREDENTIAL-008" ||
		e.RetryAfter != 2*time.Second {
		t.Errorf("before there is a control plane: %v", err)
	}
	l.up(made.ID)
	begun := time.Now()
	c, err := p.CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if c.ClusterID != made.ID || c.Username != string(operator.Principal) ||
		c.ExpiresAt.Before(begun.Add(595*time.Second)) || c.ExpiresAt.After(time.Now().Add(605*time.Second)) {
		t.Errorf("credential %+v", c)
	}
	k := loginOf(t, c.Kubeconfig)
	if _, err := tls.X509KeyPair(k.Users[0].User.Certificate, k.Users[0].User.Key); err != nil {
		t.Errorf("certificate and key: %v", err)
	}
	block, _ := pem.Decode(k.Users[0].User.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil || cert.CheckSignatureFrom(plane.cert) != nil || cert.Subject.CommonName != string(operator.Principal) ||
		!slices.Equal(cert.Subject.Organization, []string{"atoll:credential:" + c.ID}) {
		t.Errorf("certificate %+v, %v", cert.Subject, err)
	}
	at := k.Clusters[0].Cluster
	if k.CurrentContext != "demo" || at.Server != "https://127.0.0.1:30001" ||
		at.Name != "hc-1.hosted.test-1.atoll.internal" || !strings.Contains(string(at.CA), "CERTIFICATE") {
		t.Errorf("cluster %+v", at)
	}

	one, err := p.Credential(ctx, client.ClusterID(made.ID), client.CredentialID(c.ID))
	if err != nil || one.ID != c.ID || one.Kubeconfig != "" {
		t.Errorf("shown again: %+v, %v", one, err)
	}
	all, err := p.Credentials(ctx, cluster.ID(made.ID))
	if err != nil || len(all) != 1 || all[0] != one {
		t.Errorf("listed: %+v, %v", all, err)
	}
	key, _ := pem.Decode(k.Users[0].User.Key)
	private, err := x509.ParseECPrivateKey(key.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := private.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	kept := everything(t, l.dsn) + l.log.String()
	for name, secret := range map[string]string{
		"PEM": strings.Split(string(k.Users[0].User.Key), "\n")[1], "hex": fmt.Sprintf("%x", scalar),
		"a key's header": "PRIVATE KEY",
	} {
		if strings.Contains(kept, secret) {
			t.Errorf("the private key is kept, as %s", name)
		}
	}
	if !strings.Contains(kept, c.ID) {
		t.Fatal("nothing was found at all")
	}

	// Who has a key keeps it.
	own, csr := ownRequest(t)
	if c.Role != platform.CredentialRoleAdmin {
		t.Errorf("the role of a request without one is %q", c.Role)
	}
	c, err = p.CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{Csr: csr, ExpirationSeconds: 60,
		Role: platform.CredentialRequestRoleView})
	if err != nil {
		t.Fatal(err)
	}
	ordered, err := l.system.Get(ctx, "credentials", c.ID, "")
	if err != nil || c.Role != platform.CredentialRoleView || !strings.Contains(string(ordered.Spec), `"role":"view"`) {
		t.Errorf("role %q, ordered %s, %v", c.Role, ordered.Spec, err)
	}
	k = loginOf(t, c.Kubeconfig)
	block, _ = pem.Decode(k.Users[0].User.Certificate)
	if cert, err = x509.ParseCertificate(block.Bytes); err != nil || !own.PublicKey.Equal(cert.PublicKey) ||
		k.Users[0].User.Key != nil {
		t.Errorf("with a request of one's own: %v\n%s", err, c.Kubeconfig)
	}
	for range 2 {
		err = p.RevokeCredential(ctx, client.ClusterID(made.ID), client.CredentialID(c.ID))
	}
	want(t, err, 404, "CLUSTERS-MGMT-CREDENTIAL-002", c.ID)
	if all, err = p.Credentials(ctx, cluster.ID(made.ID)); err != nil || len(all) != 1 || all[0].ID == c.ID {
		t.Errorf("after it was revoked: %+v, %v", all, err)
	}
	if r, err := l.system.Get(ctx, "credentials", c.ID, ""); err != nil || r.DeletedTime == nil {
		t.Errorf("the revoked one: %+v, %v", r, err)
	}
}

// When the control plane does not sign in time, the answer is 503, and no credential
// is left.
func TestACredentialThatIsNotSignedIsDeleted(t *testing.T) {
	l := startLifecycle(t)
	ctx := t.Context()
	made, err := l.as(operator).CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	l.up(made.ID)
	l.endpoint, l.ca = platformOver(t, rosa.Options{Maestro: l.maestro, CLM: l.front,
		Log: slog.New(slog.DiscardHandler), Patience: 200 * time.Millisecond})
	_, err = l.once(operator).CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{})
	if e, ok := errors.AsType[*remote.Error](err); !ok || e.Status != 503 || e.Code != "CLUSTERS-MGMT-CREDENTIAL-008" ||
		e.RetryAfter != 2*time.Second || !strings.Contains(e.Reason, "in time") {
		t.Errorf("nobody signed: %v", err)
	}
	if all, err := l.as(operator).Credentials(ctx, cluster.ID(made.ID)); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
}

func ownRequest(t *testing.T) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "root", Organization: []string{"system:masters"}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// everything returns the text of all tables of a database.
func everything(t *testing.T, dsn string) string {
	t.Helper()
	ctx := t.Context()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var all string
	err = conn.QueryRow(
		ctx, `select string_agg(query_to_xml('select * from '||quote_ident(table_schema)||'.'||quote_ident(table_name), true, false, '')::text, '')
		from information_schema.tables where table_schema not in ('pg_catalog', 'information_schema') and table_type = 'BASE TABLE'`).Scan(&all)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCredentialsThatDoNotCome(t *testing.T) {
	l := startLifecycle(t)
	ctx, p := t.Context(), l.as(operator)
	plane := newPlane(t)
	mode := make(chan string, 1)
	plane.serve(l, func(r clmclient.Resource, data map[string]any, available *string) {
		how := ""
		select {
		case how = <-mode: // it was set before the request was made
		default:
		}
		switch how {
		case "refused":
			*available = "False:InvalidRequest:the request is not signed by its key"
		case "of another key":
			other, _ := ownRequest(t)
			var s struct{ Request, Username string }
			_ = json.Unmarshal(r.Spec, &s)
			data["certificate"] = plane.sign(r.ID, s.Request, s.Username, time.Minute, &other.PublicKey)
		case "empty":
			data["server"] = ""
		}
	})
	made, err := p.CreateCluster(ctx, named("demo", ""))
	if err != nil {
		t.Fatal(err)
	}
	l.up(made.ID)
	for how, reason := range map[string]string{"refused": "not signed by its key", "of another key": "did not sign",
		"empty": "did not sign"} {
		mode <- how
		_, err := l.once(operator).CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{})
		want(t, err, 503, "CLUSTERS-MGMT-CREDENTIAL-008", reason)
	}
	if all, err := p.Credentials(ctx, cluster.ID(made.ID)); err != nil || len(all) != 0 {
		t.Errorf("what did not come is listed: %+v, %v", all, err)
	}
	_, csr := ownRequest(t)
	block, _ := pem.Decode([]byte(csr))
	block.Bytes[len(block.Bytes)-1] ^= 1
	for _, r := range []platform.CredentialRequest{
		{ExpirationSeconds: 59}, {ExpirationSeconds: 86401}, {ExpirationSeconds: -1}, {Csr: "x"}, {Csr: csr + csr},
		{Csr: string(pem.EncodeToMemory(block))}, {Role: "cluster-admin"}, {Role: "Admin"}, {Role: " view"},
	} {
		_, err := p.CreateCredential(ctx, cluster.ID(made.ID), r)
		want(t, err, 422, "CLUSTERS-MGMT-VALIDATION-001", "")
	}
	endpoint, ca, id := l.endpoint, l.ca, cluster.ID(made.ID)
	l.endpoint, l.ca = platformOver(t, rosa.Options{Maestro: l.maestro, CLM: l.front,
		Log: slog.New(slog.DiscardHandler), CredentialLifetime: time.Hour})
	_, err = l.as(operator).CreateCredential(ctx, id,
		platform.CredentialRequest{ExpirationSeconds: 3601})
	want(t, err, 422, "CLUSTERS-MGMT-VALIDATION-001", "")
	longest := platform.CredentialRequest{ExpirationSeconds: 3600}
	if c, err := l.as(operator).CreateCredential(ctx, id, longest); err != nil {
		t.Errorf("the longest lifetime that the region allows: %+v, %v", c, err)
	}
	l.endpoint, l.ca = endpoint, ca
	if err := p.DeleteCluster(ctx, cluster.ID(made.ID), client.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = p.CreateCredential(ctx, cluster.ID(made.ID), platform.CredentialRequest{})
	want(t, err, 409, "CLUSTERS-MGMT-CREDENTIAL-004", "being deleted")
}

// optional returns nil for an empty text.
func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
