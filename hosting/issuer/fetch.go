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
	readLimit = 10 * time.Second // of both requests to an issuer
	maxAnswer = 256 << 10
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
	dialer := &net.Dialer{Timeout: readLimit, Control: func(_, address string, _ syscall.RawConn) error {
		return checkAddress(address, networks)
	}}
	return &http.Client{
		Timeout: readLimit,
		Transport: &http.Transport{
			DialContext: dialer.DialContext, TLSClientConfig: config, TLSHandshakeTimeout: readLimit,
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
		return notPublicError{ip}
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
		return notPublicError{ip}
	}
	return nil
}

// fetch reads the keys of an issuer as OpenID Connect Discovery describes: the URL of the keys, then the keys.
func fetch(ctx context.Context, client *http.Client, issuer string) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
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

// notPublicError is the error of an address to which the client does not connect.
type notPublicError struct{ ip netip.Addr }

func (e notPublicError) Error() string { return fmt.Sprintf("the address %s is not public", e.ip) }

// failure is the error of a read. Its text is for the customer: it is the same after each attempt, and shows no address
// of this network. The cause is for the log.
type failure struct {
	text  string
	cause error
}

func (f failure) Error() string { return f.text }
func (f failure) Unwrap() error { return f.cause }

// reason returns the failure of a request.
func reason(err error) error {
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return failure{noPublicAddress, err}
	}
	if _, ok := errors.AsType[notPublicError](err); ok {
		return failure{noPublicAddress, err} // an unknown name reads the same
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.Expired {
		return failure{"its certificate has expired or is not valid yet", err} // the cause has the present time
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return failure{"it does not answer in time", err}
	}
	if refused, ok := errors.AsType[*net.OpError](err); ok {
		return failure{refused.Err.Error(), err} // without ports, which change
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return failure{wrapped.Err.Error(), err}
	}
	return err
}

const noPublicAddress = "it has no public address"
