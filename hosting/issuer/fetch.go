package issuer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	requestLimit = 10 * time.Second // of one request to an issuer
	maxAnswer    = 256 << 10
)

// newClient returns a client that connects to public addresses, and those of networks, only. It follows no redirect
// and uses no proxy. authority has the certificates in PEM that verify servers; "" stands for the public ones.
func newClient(authority string, networks []netip.Prefix) *http.Client {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if authority != "" {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM([]byte(authority))
	}
	// The check is of the address that is connected to, after the name was resolved: no answer of DNS passes it by.
	dialer := &net.Dialer{Timeout: requestLimit, Control: func(_, address string, _ syscall.RawConn) error {
		return checkAddress(address, networks)
	}}
	return &http.Client{
		Timeout: requestLimit,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: requestLimit,
			MaxResponseHeaderBytes: 64 << 10,
			DisableCompression:     true, // a small answer could become a large one
			DisableKeepAlives:      true, // one request in a minute
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// special are networks whose addresses nobody has on the public Internet, besides those that package netip knows.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"),
	netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.0/24"),
	netip.MustParsePrefix("240.0.0.0/4"),
	// These carry addresses of IPv4, which may be private.
	netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("2001::/32"), netip.MustParsePrefix("::/96"),
	netip.MustParsePrefix("100::/64"), netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("fec0::/10"),
}

// checkAddress refuses to connect to an address, HOST:PORT, that is neither public nor in one of networks.
func checkAddress(address string, networks []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address %s cannot be read", address)
	}
	ip := at.Addr().Unmap()
	if ip.Zone() != "" {
		return fmt.Errorf("the address %s is not public", ip)
	}
	for _, n := range networks {
		if n.Contains(ip) {
			return nil
		}
	}
	isPublic := ip.IsGlobalUnicast() && !ip.IsPrivate()
	for _, n := range special {
		isPublic = isPublic && !n.Contains(ip)
	}
	if !isPublic {
		return fmt.Errorf("the address %s is not public", ip)
	}
	return nil
}

// fetch reads the keys of an issuer as OpenID Connect Discovery describes: the URL of the keys, then the keys.
func fetch(ctx context.Context, client *http.Client, issuer string) (json.RawMessage, error) {
	var described struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	data, err := get(ctx, client, strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(data, &described) != nil {
		return nil, errors.New("its discovery document is not JSON")
	}
	if described.Issuer != issuer {
		return nil, errors.New("its discovery document names another issuer")
	}
	at, err := url.Parse(described.Keys)
	if err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil {
		return nil, errors.New("its discovery document has no https URL of keys")
	}
	if data, err = get(ctx, client, at.String()); err != nil {
		return nil, err
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(data, &set) != nil || len(set.Keys) == 0 {
		return nil, errors.New("its answer has no keys")
	}
	return json.Marshal(map[string]any{"keys": set.Keys}) // without what else the answer has
}

// get returns the body of an answer 200.
func get(ctx context.Context, client *http.Client, at string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, errors.New("its URL cannot be used")
	}
	request.Header.Set("Accept", "application/json")
	request.Header.Set("User-Agent", "atoll-hosting")
	response, err := client.Do(request)
	if err != nil {
		return nil, reason(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %d, not 200", response.StatusCode)
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return nil, reason(err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("its answer has more than %d KiB", maxAnswer>>10)
	}
	return data, nil
}

// reason returns an error without the parts that change from one attempt to the next, such as local ports.
func reason(err error) error {
	if name, ok := errors.AsType[*net.DNSError](err); ok {
		return fmt.Errorf("its name %s cannot be resolved", name.Name)
	}
	if refused, ok := errors.AsType[*net.OpError](err); ok {
		if refused.Timeout() {
			return errors.New("it does not answer in time")
		}
		return refused.Err
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return errors.New("it does not answer in time")
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}
