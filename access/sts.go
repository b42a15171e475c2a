package access

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
	"atoll.dev/internal/rest"
)

// stsTokenPrefix begins a token: the rest is a presigned URL in base64, as aws-iam-authenticator and
// `aws eks get-token` make it.
const stsTokenPrefix = "k8s-aws-v1."

// stsAudienceHeader is the signed header that names the region for which a token was made. A token for
// another cluster or region names that.
const stsAudienceHeader = "x-k8s-aws-id"

const (
	maxSTSToken  = 8 << 10
	maxSTSAnswer = 16 << 10
	stsTimeout   = 5 * time.Second
	stsCalls     = 16 // at the same time
	stsPerSource = 4  // of these, for requests from one source
	stsLifetime  = 15 * time.Minute
	stsSkew      = time.Minute // how far a token may be ahead of the region's clock
	stsCacheFor  = 5 * time.Minute
	maxSTSCached = 10_000
	stsNamespace = "https://sts.amazonaws.com/doc/2011-06-15/"
)

// STSOptions restrict the requests that a token may hold.
type STSOptions struct {
	// Hosts are the addresses of AWS STS that tokens may name: sts.eu-west-1.amazonaws.com. The region
	// calls no other.
	Hosts []string
	// Audience is the required value of the signed header x-k8s-aws-id of a token: the region's name.
	Audience string
	// Roots verify the certificates of Hosts; nil: the system's.
	Roots *x509.CertPool
	// Accounts finds the region's accounts, and which of them are privileged.
	Accounts Accounts
}

// STS proves identities by presigned requests to sts:GetCallerIdentity. It sends the request to STS,
// which answers with the caller, and remembers the answer for a few minutes. Several goroutines may
// call its methods.
type STS struct {
	options STSOptions
	http    *http.Client
	pending singleflight.Group // calls of STS, by the hash of a token

	mu      sync.Mutex
	calls   int                  // running ones
	sources map[netip.Prefix]int // running calls of each source
	proved  map[[sha256.Size]byte]stsProof
}

// stsProof is a caller that STS has named.
type stsProof struct {
	caller Identity
	until  time.Time // the answer is used until then
}

var _ BearerVerifier = (*STS)(nil)

// NewSTS returns an STS. It makes no request.
func NewSTS(o STSOptions) (*STS, error) {
	if len(o.Hosts) == 0 || o.Audience == "" {
		return nil, errors.New("tokens of AWS STS need the names of its hosts and an audience")
	}
	return &STS{options: o, sources: map[netip.Prefix]int{}, proved: map[[sha256.Size]byte]stsProof{},
		http: &http.Client{
			Timeout: stsTimeout,
			Transport: &http.Transport{
				Proxy:                  nil,
				TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: o.Roots},
				TLSHandshakeTimeout:    stsTimeout,
				MaxResponseHeaderBytes: maxSTSAnswer,
				DisableCompression:     true, // a small answer could become a large one
				MaxIdleConnsPerHost:    stsCalls,
				IdleConnTimeout:        time.Minute,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}}, nil
}

// Close closes idle connections.
func (s *STS) Close() { s.http.CloseIdleConnections() }

// Takes implements BearerVerifier.
func (s *STS) Takes(token string) bool { return strings.HasPrefix(token, stsTokenPrefix) }

// Prove implements BearerVerifier.
func (s *STS) Prove(r *http.Request, token string) (Identity, error) {
	presigned, until, err := s.parse(token, time.Now())
	if err != nil {
		return Identity{}, err
	}
	sum := sha256.Sum256([]byte(token))
	caller, known := s.cachedCaller(sum)
	if !known {
		// Requests with one token wait for one call, which does not end with the first of them.
		answer, err, _ := s.pending.Do(string(sum[:]), func() (any, error) {
			return s.ask(context.WithoutCancel(r.Context()), rest.SourceOf(r.RemoteAddr), presigned)
		})
		if err != nil {
			return Identity{}, err
		}
		caller = answer.(Identity)
		caller.Evidence.Until = until
		s.remember(sum, caller)
	}
	caller.Privileged, err = privileged(s.options.Accounts, caller.Account)
	return caller, err
}

// stsParams are the parameters that a token's query has, each once. The others are optional.
var stsParams = map[string]bool{"Action": true, "Version": true, paramAlgorithm: true, paramCredential: true,
	paramDate: true, paramExpires: false, paramSignedHeaders: true, paramSignature: true, paramToken: false}

// parse returns the request that a token stands for, and the end of the token. It builds the URL anew
// from the parts that it has checked, so that a URL that two readers understand differently reaches
// nobody.
func (s *STS) parse(token string, now time.Time) (string, time.Time, error) {
	bad := func(format string, args ...any) (string, time.Time, error) {
		return "", time.Time{}, refuse(InvalidToken, "the token is not a presigned sts:GetCallerIdentity for this region: "+
			format+"; make one with: aws eks get-token --cluster-name "+s.options.Audience, args...)
	}
	if len(token) > maxSTSToken {
		return bad("it has more than %d bytes", maxSTSToken)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimPrefix(token, stsTokenPrefix))
	if err != nil {
		return bad("it is not base64")
	}
	address, isHTTPS := strings.CutPrefix(string(raw), "https://")
	host, target, _ := strings.Cut(address, "/")
	query, isQuery := strings.CutPrefix(target, "?")
	switch {
	case !isHTTPS || !isQuery || strings.ContainsAny(query, "#; \t\r\n"):
		return bad("its URL is not https://HOST/?QUERY")
	case !slices.Contains(s.options.Hosts, host):
		return bad("its host %s is not one of %s", quoted(host), strings.Join(s.options.Hosts, ", "))
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return bad("its query cannot be decoded")
	}
	for name, values := range q {
		if _, known := stsParams[name]; !known || len(values) != 1 {
			return bad("its query has %s, or that twice", quoted(name))
		}
	}
	for name, isNeeded := range stsParams {
		if isNeeded && q.Get(name) == "" {
			return bad("its query lacks %s", name)
		}
	}
	signed := strings.Split(q.Get(paramSignedHeaders), ";")
	slices.Sort(signed)
	date, err := time.Parse(timeFormat, q.Get(paramDate))
	seconds, expiresErr := strconv.Atoi(q.Get(paramExpires))
	lives := time.Duration(seconds) * time.Second
	switch {
	case q.Get("Action") != "GetCallerIdentity" || q.Get("Version") != "2011-06-15":
		return bad("its action is %s", quoted(q.Get("Action")))
	case q.Get(paramAlgorithm) != algorithm:
		return bad("its algorithm is %s", quoted(q.Get(paramAlgorithm)))
	case !slices.Equal(signed, []string{"host", stsAudienceHeader}):
		return bad("its signed headers are not host and %s", stsAudienceHeader)
	case err != nil:
		return bad("its date is %s", quoted(q.Get(paramDate)))
	case q.Has(paramExpires) && (expiresErr != nil || lives < 0 || lives > stsLifetime):
		return bad("its X-Amz-Expires is %s", quoted(q.Get(paramExpires)))
	}
	until := date.Add(stsLifetime) // tools send an X-Amz-Expires of 60 and mean 15 minutes, as EKS does
	switch {
	case date.Sub(now) > stsSkew:
		return "", time.Time{}, refuse(SignatureInFuture, "the token is dated %s and the region's clock says %s",
			date.Format(timeFormat), now.UTC().Format(timeFormat))
	case !now.Before(until):
		return "", time.Time{}, expired(until)
	}
	return "https://" + host + "/?" + strings.ReplaceAll(q.Encode(), "+", "%20"), until, nil
}

// cachedCaller returns the caller of a token that STS has named lately.
func (s *STS) cachedCaller(sum [sha256.Size]byte) (Identity, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.proved[sum]
	return p.caller, ok && time.Now().Before(p.until)
}

// remember keeps a caller for stsCacheFor, and not longer than the token. It keeps only callers of
// accounts that the region has: everybody with an account of AWS can make valid tokens without end.
func (s *STS) remember(sum [sha256.Size]byte, caller Identity) {
	if !s.options.Accounts.IsProvisioned(caller.Account) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if len(s.proved) >= maxSTSCached {
		for known, p := range s.proved {
			if !now.Before(p.until) {
				delete(s.proved, known)
			}
		}
		for known := range s.proved { // any one, when none has expired
			if len(s.proved) < maxSTSCached {
				break
			}
			delete(s.proved, known)
		}
	}
	until := now.Add(stsCacheFor)
	if caller.Evidence.Until.Before(until) {
		until = caller.Evidence.Until
	}
	s.proved[sum] = stsProof{caller, until}
}

// stsAnswer is the answer of STS.
type stsAnswer struct {
	XMLName xml.Name
	Result  []struct {
		Account []string
		Arn     []string
		UserID  []string `xml:"UserId"`
	} `xml:"GetCallerIdentityResult"`
}

// begin counts a call for a request from source. The caller calls end after the call.
func (s *STS) begin(source netip.Prefix) (end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls >= stsCalls || s.sources[source] >= stsPerSource {
		return nil, refuse(Overloaded, "the region verifies as many tokens with AWS STS as it can; try again")
	}
	s.calls++
	s.sources[source]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calls--
		if s.sources[source]--; s.sources[source] == 0 {
			delete(s.sources, source)
		}
	}, nil
}

// ask sends the presigned request to STS and returns the caller that STS names.
func (s *STS) ask(ctx context.Context, source netip.Prefix, presigned string) (Identity, error) {
	end, err := s.begin(source)
	if err != nil {
		return Identity{}, err
	}
	defer end()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, presigned, nil)
	if err != nil {
		return Identity{}, refuse(InvalidToken, "the URL of the token is no URL")
	}
	r.Header = http.Header{http.CanonicalHeaderKey(stsAudienceHeader): {s.options.Audience}, "Accept": {"text/xml"}}
	answer, err := s.http.Do(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the URL, which is a credential
		}
		return Identity{}, refuse(STSUnavailable, "AWS STS does not answer, so the region cannot verify the token; "+
			"try again").Because(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxSTSAnswer+1))
	switch {
	case err != nil:
		return Identity{}, refuse(STSUnavailable, "AWS STS did not answer completely; try again").Because(err)
	case answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode >= http.StatusInternalServerError,
		answer.StatusCode == http.StatusBadRequest && bytes.Contains(body, []byte("<Code>Throttling")):
		return Identity{}, refuse(STSUnavailable, "AWS STS answered %d; try again", answer.StatusCode)
	case answer.StatusCode != http.StatusOK:
		return Identity{}, refuse(InvalidToken, "AWS STS answered %d: the token was not signed by valid credentials, or "+
			"for another region than %s", answer.StatusCode, s.options.Audience)
	case len(body) > maxSTSAnswer:
		return Identity{}, refuse(STSUnavailable, "AWS STS answered with more than %d bytes", maxSTSAnswer)
	}
	caller, err := readSTSAnswer(body)
	if err != nil {
		return Identity{}, refuse(STSUnavailable, "the answer of AWS STS names no caller").Because(err)
	}
	return caller, nil
}

// readSTSAnswer returns the caller that an answer names. Anything that is there twice, or contradicts,
// is an error.
func readSTSAnswer(body []byte) (Identity, error) {
	var a stsAnswer
	d := xml.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(&a); err != nil {
		return Identity{}, err
	}
	if _, err := d.Token(); err != io.EOF {
		return Identity{}, errors.New("something follows the answer")
	}
	if a.XMLName != (xml.Name{Space: stsNamespace, Local: "GetCallerIdentityResponse"}) || len(a.Result) != 1 {
		return Identity{}, fmt.Errorf("it is a %s", quoted(a.XMLName.Local))
	}
	of := a.Result[0]
	if len(of.Account) != 1 || len(of.Arn) != 1 || len(of.UserID) != 1 || len(of.UserID[0]) > maxUserID {
		return Identity{}, errors.New("it has not one account, ARN and user id")
	}
	principal, account := policy.Principal(of.Arn[0]), cluster.Account(of.Account[0])
	if err := checkPrincipal(account, principal); err != nil {
		return Identity{}, err
	}
	return Identity{Principal: principal, Account: account,
		Evidence: Evidence{Method: BySTS, Subject: of.UserID[0], Session: sessionOf(principal)}}, nil
}
