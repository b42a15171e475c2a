package issuer

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"atoll.dev/cluster"
	"atoll.dev/hosting/controlplane"
	"atoll.dev/plane"
)

func TestOnlyPublicAddressesAreConnectedTo(t *testing.T) {
	allowed := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for address, isGood := range map[string]bool{
		"93.184.216.34:443": true, "[2606:2800:220:1::1]:443": true, "10.1.2.3:443": true, "[::ffff:10.1.2.3]:443": true,
		"10.2.0.1:443": false, "127.0.0.1:443": false, "[::1]:443": false, "169.254.169.254:80": false,
		"192.168.1.1:443": false, "172.16.0.1:443": false, "100.64.0.1:443": false, "0.0.0.0:443": false, "[::]:443": false,
		"[fe80::1]:443": false, "[fe80::1%eth0]:443": false, "[fd00::1]:443": false, "[::ffff:127.0.0.1]:443": false,
		"[::127.0.0.1]:443": false, "[64:ff9b::7f00:1]:443": false, "[2002:7f00:1::]:443": false, "224.0.0.1:443": false,
		"255.255.255.255:443": false, "198.18.0.1:443": false, "[ff02::1]:443": false, "nonsense": false,
	} {
		if err := checkAddress(address, allowed); (err == nil) != isGood {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// local allows the addresses of tests.
var local = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}

// serve runs a server over TLS and returns it with its certificate in PEM.
func serve(t *testing.T, h http.Handler) (*httptest.Server, string) {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	return server, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
}

func TestAMisbehavingIssuerHasNoKeys(t *testing.T) {
	other, _ := serve(t, http.NotFoundHandler())
	const keySet = `{"keys":[{"kty":"EC"}]}`
	for name, c := range map[string]struct {
		discovery, keys string // %s: the issuer's URL
		status          int
		location        string
		want            string // of the error; "": there are keys
	}{
		"good":              {discovery: `{"issuer":"%s","jwks_uri":"%[1]s/keys"}`, keys: keySet},
		"another issuer":    {discovery: `{"issuer":"https://x","jwks_uri":"%[1]s/keys"}`, want: "names another issuer"},
		"keys without TLS":  {discovery: `{"issuer":"%s","jwks_uri":"http://127.0.0.1/keys"}`, want: "no https URL"},
		"keys in a file":    {discovery: `{"issuer":"%s","jwks_uri":"file:///etc/passwd"}`, want: "no https URL"},
		"no JSON":           {discovery: `nonsense`, want: "not JSON"},
		"no keys":           {discovery: `{"issuer":"%s","jwks_uri":"%[1]s/keys"}`, keys: `{}`, want: "no keys"},
		"a failing server":  {status: 500, want: "answers 500"},
		"a redirect":        {status: 302, location: other.URL, want: "answers 302"},
		"an endless answer": {discovery: strings.Repeat(" ", maxAnswer+1), want: "more than"},
		"endless keys": {discovery: `{"issuer":"%s","jwks_uri":"%[1]s/keys"}`, keys: strings.Repeat(" ", maxAnswer+1),
			want: "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			var server *httptest.Server
			server, authority := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case c.status != 0:
					w.Header().Set("Location", c.location)
					w.WriteHeader(c.status)
				case r.URL.Path == "/keys":
					fmt.Fprint(w, c.keys)
				case strings.Contains(c.discovery, "%s"):
					fmt.Fprintf(w, c.discovery, server.URL)
				default:
					fmt.Fprint(w, c.discovery)
				}
			}))
			_, err := fetch(context.Background(), newClient(authority, local), server.URL)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if _, err := fetch(context.Background(), newClient("", local), server.URL); err == nil {
				t.Error("a server that no authority has signed is read")
			}
			_, err = fetch(context.Background(), newClient(authority, nil), server.URL)
			if err == nil || err.Error() != noPublicAddress || !strings.Contains(errors.Unwrap(err).Error(), "127.0.0.1") {
				t.Errorf("a server on this machine: %v", err)
			}
		})
	}
}

// Hosting that was restarted uses the keys of the file while the issuer is down, for an hour.
func TestKeysOutliveARestartOfHosting(t *testing.T) {
	dir := t.TempDir()
	id := controlplane.ID{Namespace: "n", Name: "one"}
	login := cluster.Issuer{URL: "https://login.example.com", Audiences: []string{"a"}}
	options := Options{Dir: func(controlplane.ID) string { return dir }}
	first := New(options)
	apply := func(k *Keeper, want string) file {
		t.Helper()
		problems, err := k.Apply(id, []cluster.Issuer{login})
		if err != nil || !strings.Contains(strings.Join(problems, ";"), want) || want == "" && len(problems) > 0 {
			t.Fatalf("problems %q, %v; want %q", problems, err, want)
		}
		data, err := os.ReadFile(filepath.Join(dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		var f file
		if err := json.Unmarshal(data, &f); err != nil || len(f.Issuers) != 1 {
			t.Fatalf("%s: %v", data, err)
		}
		return f
	}
	changes := 0
	for _, k := range []*Keeper{first} {
		k.changed = func(controlplane.ID) { changes++ }
	}
	if f := apply(first, ""); f.Issuers[0].Keys != nil {
		t.Errorf("keys before the first read: %s", f.Issuers[0].Keys)
	}
	s := sourceOf(login)
	first.finish(s, first.sources[s], json.RawMessage(`{"keys":[1]}`), nil)
	first.finish(s, first.sources[s], json.RawMessage(`{"keys":[1]}`), nil)
	if changes != 1 {
		t.Errorf("%d calls of changed after two equal reads", changes)
	}
	if f := apply(first, ""); string(f.Issuers[0].Keys) != `{"keys":[1]}` {
		t.Errorf("keys %s", f.Issuers[0].Keys)
	}

	down := fmt.Errorf("it answers 500, not 200")
	second := New(options)
	second.changed = func(controlplane.ID) {}
	apply(second, "")
	second.finish(s, second.sources[s], nil, down)
	f := apply(second, "its last keys are used")
	if f.Issuers[0].Keys == nil {
		t.Error("the keys of the file are lost")
	}
	f, problems := second.compose([]cluster.Issuer{login}, f, time.Now().Add(keysTrusted+time.Minute))
	if f.Issuers[0].Keys != nil || !strings.Contains(problems[0], "its tokens are refused") {
		t.Errorf("after an hour: keys %s, problems %q", f.Issuers[0].Keys, problems)
	}

	// A plane that was taken over put a link or a pipe in the place of its file.
	path := filepath.Join(dir, fileName)
	for name, put := range map[string]func() error{
		"a link": func() error { return os.Symlink("/etc/hostname", path) },
		"a pipe": func() error { return unix.Mkfifo(path, 0o600) },
	} {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := put(); err != nil {
			t.Fatal(err)
		}
		apply(first, "")
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s stayed: %v, %v", name, info, err)
		}
	}

	if _, err := first.Apply(id, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) || len(first.sources)+len(first.plans) > 0 {
		t.Errorf("after the last issuer: file %v, %d sources", err, len(first.sources))
	}
}

func TestPlanesShareTheReadsOfAnIssuer(t *testing.T) {
	reads := make(chan struct{}, 100)
	var server *httptest.Server
	server, authority := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			reads <- struct{}{}
			fmt.Fprint(w, `{"keys":[{"kty":"EC"}]}`)
			return
		}
		fmt.Fprintf(w, `{"issuer":"%s","jwks_uri":"%[1]s/keys"}`, server.URL)
	}))
	root := t.TempDir()
	k := New(Options{Dir: func(id controlplane.ID) string { return filepath.Join(root, id.Name) }, Networks: local})
	issuers := []cluster.Issuer{{URL: server.URL, Audiences: []string{"a"}, CertificateAuthority: authority}}
	ids := map[controlplane.ID]bool{}
	for n := range 5 {
		id := controlplane.ID{Name: fmt.Sprint(n)}
		if err := os.Mkdir(filepath.Join(root, id.Name), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Apply(id, issuers); err != nil {
			t.Fatal(err)
		}
		ids[id] = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan controlplane.ID, 100), make(chan error, 1)
	go func() { done <- k.Run(ctx, func(id controlplane.ID) { changed <- id }) }()
	for range 5 {
		delete(ids, <-changed)
	}
	if len(ids) > 0 || len(reads) != 1 {
		t.Errorf("%d reads; these planes were not notified: %v", len(reads), ids)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A plane has a user of its own, to whom its directory belongs.
func TestAPlaneCanReadTheFileOfItsIssuers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	k := New(Options{Dir: func(controlplane.ID) string { return dir }})
	issuers := []cluster.Issuer{{URL: "https://login.example.com", Audiences: []string{"a"}}}
	for _, user := range []int{plane.FirstUser + 5, plane.FirstUser + 6, 0} {
		if err := os.Chown(dir, user, user); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Apply(controlplane.ID{Name: "one"}, issuers); err != nil { // the same content each time
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, fileName))
		if err != nil {
			t.Fatal(err)
		}
		if s := info.Sys().(*syscall.Stat_t); int(s.Uid) != user || int(s.Gid) != user || info.Mode().Perm() != 0o600 {
			t.Errorf("the file belongs to %d:%d with mode %v, want user %d", s.Uid, s.Gid, info.Mode(), user)
		}
	}
}

// A status is written when the text of a problem changes. It tells a customer nothing about the names and addresses of
// the network of hosting.
func TestTheReasonOfAFailedReadStaysTheSame(t *testing.T) {
	for _, c := range []struct {
		first, second error
		want          string
	}{
		{&net.DNSError{Err: "no such host", Name: "a.internal", IsNotFound: true},
			&net.OpError{Op: "dial", Err: notPublicError{netip.MustParseAddr("10.0.0.1")}}, noPublicAddress},
		{x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time 12:00 is after 11:00"},
			x509.CertificateInvalidError{Reason: x509.Expired, Detail: "current time 12:01 is after 11:00"},
			"its certificate has expired or is not valid yet"},
	} {
		for _, err := range []error{c.first, c.second} {
			got := reason(&url.Error{Op: "Get", URL: "https://a.internal", Err: err})
			if got.Error() != c.want || !errors.Is(got, err) && errors.Unwrap(got) == nil {
				t.Errorf("%v is shown as %q, want %q", err, got, c.want)
			}
		}
	}
}

// An issuer that fails is read more and more rarely, and the issuers of a host that hangs hold few of all places.
func TestFailingIssuersHoldUpNoOthers(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: readEvery, 1: retryAfter, 2: 2 * retryAfter, 6: retryLimit,
		1000: retryLimit} {
		if got := pauseAfter(failures); got != want {
			t.Errorf("after %d failures the pause is %s, want %s", failures, got, want)
		}
	}
	connected, end := make(chan struct{}, 100), make(chan struct{})
	hanging, authority := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		connected <- struct{}{}
		<-end
	}))
	dir := t.TempDir()
	k := New(Options{Dir: func(controlplane.ID) string { return dir }, Networks: local})
	ctx, cancel := context.WithCancel(context.Background())
	var issuers []cluster.Issuer
	for n := range readsAtOnce {
		issuers = append(issuers, cluster.Issuer{URL: fmt.Sprintf("%s/%d", hanging.URL, n), CertificateAuthority: authority})
	}
	if _, err := k.Apply(controlplane.ID{Name: "one"}, issuers); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx, func(controlplane.ID) {}) }()
	for range readsOfHost {
		<-connected
	}
	if held := len(k.reads); held > readsOfHost {
		t.Errorf("the issuers of one host hold %d places, want at most %d", held, readsOfHost)
	}
	cancel()
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(k.hosts) > 0 {
		t.Errorf("%d hosts are kept", len(k.hosts))
	}
}
