package access

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// presignSTS presigns sts:GetCallerIdentity with AWS's SDK, for a host and an audience.
func presignSTS(t *testing.T, host, audience string, creds aws.Credentials, at time.Time) string {
	t.Helper()
	r, err := http.NewRequest("GET", "https://"+host+"/?Action=GetCallerIdentity&Version=2011-06-15&X-Amz-Expires=60", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(stsAudienceHeader, audience)
	signed, _, err := v4.NewSigner().PresignHTTP(t.Context(), creds, r, emptyHash, "sts", "eu-west-1", at)
	if err != nil {
		t.Fatal(err)
	}
	return signed
}

func tokenOf(presigned string) string {
	return stsTokenPrefix + base64.RawURLEncoding.EncodeToString([]byte(presigned))
}

var stsCreds = aws.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret, SessionToken: "a session/token=="}

func stsXML(account, arn string) string {
	return `<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><GetCallerIdentityResult><Arn>` +
		arn + `</Arn><UserId>AROAEXAMPLE:ann</UserId><Account>` + account + `</Account></GetCallerIdentityResult>` +
		`<ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></GetCallerIdentityResponse>`
}

// fakeSTS verifies signatures as AWS does: it signs what arrived with AWS's SDK and compares. misbehave,
// unless nil, answers in its place.
type fakeSTS struct {
	t         *testing.T
	region    *STS // the region's client
	calls     atomic.Int64
	misbehave atomic.Pointer[http.HandlerFunc]
}

func (f *fakeSTS) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.calls.Add(1)
	if h := f.misbehave.Load(); h != nil {
		(*h)(w, r)
		return
	}
	f.verify(w, r)
}

// verify answers as AWS does.
func (f *fakeSTS) verify(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	at, err := time.Parse(timeFormat, q.Get(paramDate))
	if err != nil || q.Get("Action") != "GetCallerIdentity" || r.Method != "GET" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	again, err := url.Parse(presignSTS(f.t, r.Host, r.Header.Get(stsAudienceHeader), stsCreds, at))
	if err != nil || again.Query().Encode() != q.Encode() {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	fmt.Fprint(w, stsXML(account, gatewayCaller))
}

// startSTS starts a fakeSTS, and a front that verifies tokens with it.
func startSTS(t *testing.T) (f *fakeSTS, host string, front *httptest.Server) {
	t.Helper()
	f = &fakeSTS{t: t}
	server := httptest.NewUnstartedServer(f)
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	host = strings.TrimPrefix(server.URL, "https://")
	s, err := NewSTS(STSOptions{Hosts: []string{host}, Audience: testRegion, Roots: roots,
		Accounts: fixedAccounts{account}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	f.region = s
	return f, host, startFront(t, &CombinedIdentifier{Signatures: testVerifier(), Bearers: []BearerVerifier{s}})
}

func askWith(t *testing.T, front *httptest.Server, token string) answerOf {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", front.URL+"/api/v0/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return ask(t, front, r)
}

// A token proves whom STS names, and STS is asked once. Every other URL reaches nobody.
func TestAPresignedGetCallerIdentityProvesItsCaller(t *testing.T) {
	f, host, front := startSTS(t)
	now := time.Now().UTC().Truncate(time.Second)
	good := presignSTS(t, host, testRegion, stsCreds, now)
	for range 3 {
		got := askWith(t, front, tokenOf(good))
		want := Evidence{Method: BySTS, Subject: "AROAEXAMPLE:ann", Session: "ann", Until: now.Add(stsLifetime)}
		if got.Principal != gatewayCaller || got.Evidence != want || !got.Privileged {
			t.Errorf("got %+v", got)
		}
	}
	if n := f.calls.Load(); n != 1 {
		t.Errorf("STS was asked %d times about one token", n)
	}
	replace := func(old, with string) string {
		if !strings.Contains(good, old) {
			t.Fatalf("%s lacks %s", good, old)
		}
		return strings.Replace(good, old, with, 1)
	}
	otherSecret := aws.Credentials{AccessKeyID: testID, SecretAccessKey: "x"}
	refusedBySTS := map[string]string{
		"another secret":          presignSTS(t, host, testRegion, otherSecret, now),
		"made for another region": presignSTS(t, host, "atoll-2", stsCreds, now),
		"a changed signature":     good[:len(good)-1] + otherDigit(good[len(good)-1]),
		"a changed date":          replace(now.Format(timeFormat), now.Add(-time.Second).Format(timeFormat)),
	}
	for name, presigned := range refusedBySTS {
		if got := askWith(t, front, tokenOf(presigned)); Code(got.Code) != InvalidToken {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if n := f.calls.Load(); n != int64(1+len(refusedBySTS)) {
		t.Errorf("STS was asked %d times", n)
	}
	before := f.calls.Load()
	for name, tc := range map[string]struct {
		token string
		code  Code
	}{
		"not base64":       {stsTokenPrefix + "!", InvalidToken},
		"padded":           {tokenOf(good) + "=", InvalidToken},
		"empty":            {stsTokenPrefix, InvalidToken},
		"long":             {tokenOf(good + strings.Repeat("x", maxSTSToken)), InvalidToken},
		"another prefix":   {"k8s-aws-v2." + tokenOf(good), UnsupportedAlgorithm},
		"http":             {tokenOf(replace("https://", "http://")), InvalidToken},
		"another host":     {tokenOf(replace(host, "sts.evil.example.com")), InvalidToken},
		"a user":           {tokenOf(replace("https://", "https://"+host+"@")), InvalidToken},
		"a host as suffix": {tokenOf(replace(host, "evil-"+host)), InvalidToken},
		"a host as prefix": {tokenOf(replace(host, host+".evil.example.com")), InvalidToken},
		"a path":           {tokenOf(replace("/?", "/x?")), InvalidToken},
		"no path":          {tokenOf(replace("/?", "?")), InvalidToken},
		"a fragment":       {tokenOf(good + "#x"), InvalidToken},
		"a line":           {tokenOf(good + "\r\nX: y"), InvalidToken},
		"another action":   {tokenOf(replace("GetCallerIdentity", "AssumeRole")), InvalidToken},
		"two actions":      {tokenOf(good + "&Action=GetCallerIdentity"), InvalidToken},
		"one encoded":      {tokenOf(good + "&%41ction=GetCallerIdentity"), InvalidToken},
		"more":             {tokenOf(good + "&RoleArn=x"), InvalidToken},
		"a semicolon":      {tokenOf(good + ";Action=x"), InvalidToken},
		"another version":  {tokenOf(replace("2011-06-15", "2011-06-16")), InvalidToken},
		"more headers":     {tokenOf(replace("SignedHeaders=host", "SignedHeaders=accept%3Bhost")), InvalidToken},
		"valid for hours":  {tokenOf(replace("Expires=60", "Expires=901")), InvalidToken},
		"valid never":      {tokenOf(replace("Expires=60", "Expires=-1")), InvalidToken},
		"old":              {tokenOf(presignSTS(t, host, testRegion, stsCreds, now.Add(-stsLifetime))), ExpiredCredentials},
		"of the future": {tokenOf(presignSTS(t, host, testRegion, stsCreds, now.Add(stsSkew+time.Minute))),
			SignatureInFuture},
	} {
		if got := askWith(t, front, tc.token); Code(got.Code) != tc.code {
			t.Errorf("%s: %+v, want %s", name, got, tc.code)
		}
	}
	if n := f.calls.Load(); n != before {
		t.Errorf("STS was asked %d times about tokens that the region can refuse itself", n-before)
	}
}

// otherDigit returns a digit that is not c.
func otherDigit(c byte) string {
	if c == '0' {
		return "1"
	}
	return "0"
}

// Whatever STS answers, nobody is identified but by a complete and consistent answer of STS itself.
func TestAMisbehavingSTSIdentifiesNobody(t *testing.T) {
	f, host, front := startSTS(t)
	good := stsXML(account, gatewayCaller)
	elsewhere := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		t.Error("the region followed a redirect")
		fmt.Fprint(w, good)
	}))
	defer elsewhere.Close()
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	replace := func(old, with string) http.HandlerFunc {
		return answer(http.StatusOK, strings.Replace(good, old, with, 1))
	}
	now := time.Now()
	for i, tc := range []struct {
		name   string
		answer http.HandlerFunc
		code   Code
	}{
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		}, InvalidToken},
		{"broken off", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, STSUnavailable},
		{"huge", answer(http.StatusOK, good+strings.Repeat(" ", 1<<20)), STSUnavailable},
		{"huge headers", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 1<<20))
			fmt.Fprint(w, good)
		}, STSUnavailable},
		{"throttled", answer(http.StatusTooManyRequests, good), STSUnavailable},
		{"throttled as AWS does", answer(http.StatusBadRequest, `<ErrorResponse><Error><Type>Sender</Type>`+
			`<Code>Throttling</Code><Message>Rate exceeded</Message></Error></ErrorResponse>`), STSUnavailable},
		{"a bad request", answer(http.StatusBadRequest, `<ErrorResponse><Error><Code>MissingAction</Code></Error>`+
			`</ErrorResponse>`), InvalidToken},
		{"an error", answer(http.StatusInternalServerError, good), STSUnavailable},
		{"denied", answer(http.StatusForbidden, good), InvalidToken},
		{"created", answer(http.StatusCreated, good), InvalidToken},
		{"empty", answer(http.StatusOK, ""), STSUnavailable},
		{"JSON", answer(http.StatusOK, `{"GetCallerIdentityResponse":{}}`), STSUnavailable},
		{"another document", replace("GetCallerIdentityResponse", "ErrorResponse"), STSUnavailable},
		{"another namespace", replace("https://sts.amazonaws.com/", "https://evil.example.com/"), STSUnavailable},
		{"two answers", answer(http.StatusOK, good+good), STSUnavailable},
		{"no account", replace("<Account>"+account+"</Account>", ""), STSUnavailable},
		{"two accounts", replace("<Account>", "<Account>999999999999</Account><Account>"), STSUnavailable},
		{"another account", answer(http.StatusOK, stsXML("999999999999", gatewayCaller)), STSUnavailable},
		{"an ARN that is none", answer(http.StatusOK, stsXML(account, "root")), STSUnavailable},
	} {
		f.misbehave.Store(&tc.answer)
		token := tokenOf(presignSTS(t, host, testRegion, stsCreds, now.Add(-time.Duration(i)*time.Second)))
		if got := askWith(t, front, token); Code(got.Code) != tc.code {
			t.Errorf("%s: %+v, want %s", tc.name, got, tc.code)
		}
	}
	f.misbehave.Store(nil)
	if got := askWith(t, front, tokenOf(presignSTS(t, host, testRegion, stsCreds, now))); got.Code != "" {
		t.Errorf("STS behaves again: %+v", got)
	}
}

// The region gives up an answer that never ends.
func TestAnEndlessAnswerOfSTSIdentifiesNobody(t *testing.T) {
	f, host, front := startSTS(t)
	if f.region.http.Timeout != stsTimeout {
		t.Errorf("a call may last %s, want %s", f.region.http.Timeout, stsTimeout)
	}
	f.region.http.Timeout = 100 * time.Millisecond
	endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, stsXML(account, gatewayCaller)[:20])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done() // until the region gives up
	})
	f.misbehave.Store(&endless)
	token := tokenOf(presignSTS(t, host, testRegion, stsCreds, time.Now()))
	if got := askWith(t, front, token); Code(got.Code) != STSUnavailable {
		t.Errorf("%+v, want %s", got, STSUnavailable)
	}
}

// A source has some of the calls of STS, requests with one token share a call, and the region remembers
// the callers of its own accounts only.
func TestCallsOfSTSAreBounded(t *testing.T) {
	f, host, _ := startSTS(t)
	arrived, release := make(chan struct{}, 2*stsCalls), make(chan struct{})
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
		f.verify(w, r)
	})
	f.misbehave.Store(&slow)
	now := time.Now()
	token := func(i int) string { // one for each second
		return tokenOf(presignSTS(t, host, testRegion, stsCreds, now.Add(-time.Duration(i)*time.Second)))
	}
	prove := func(source, token string) error {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "/", nil)
		if err != nil {
			return err
		}
		r.RemoteAddr = source + ":1"
		_, err = f.region.Prove(r, token)
		return err
	}
	var running sync.WaitGroup
	begin := func(source, token string) {
		running.Go(func() {
			if err := prove(source, token); err != nil {
				t.Errorf("from %s: %v", source, err)
			}
		})
	}
	first := token(0)
	for i := range stsCalls {
		of := first
		if i > 0 {
			of = token(i)
		}
		begin(fmt.Sprintf("192.0.2.%d", i/stsPerSource), of)
		<-arrived
		if i == stsPerSource-1 {
			if err := prove("192.0.2.0", token(100)); codeOf(err) != Overloaded {
				t.Errorf("one more call from a source: %v", err)
			}
		}
	}
	if err := prove("192.0.2.200", token(101)); codeOf(err) != Overloaded {
		t.Errorf("one more call: %v", err)
	}
	begin("192.0.2.201", first) // which waits for the call that runs
	close(release)
	running.Wait()
	if n := f.calls.Load(); n != stsCalls {
		t.Errorf("STS was asked %d times about %d tokens", n, stsCalls)
	}
	if f.region.calls != 0 || len(f.region.sources) != 0 || len(f.region.proved) != stsCalls {
		t.Errorf("%d calls of %d sources are left, and %d answers", f.region.calls, len(f.region.sources),
			len(f.region.proved))
	}
	const elsewhere = "210987654321"
	foreign := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, stsXML(elsewhere, strings.Replace(gatewayCaller, account, elsewhere, 1)))
	})
	f.misbehave.Store(&foreign)
	if err := prove("192.0.2.0", token(102)); err != nil || len(f.region.proved) != stsCalls {
		t.Errorf("the caller of an account that the region does not have: %v, and %d answers are kept", err,
			len(f.region.proved))
	}
}

// The region calls only an STS whose certificate it trusts.
func TestTheCertificateOfSTSIsVerified(t *testing.T) {
	impostor := httptest.NewUnstartedServer(&fakeSTS{t: t})
	impostor.TLS = &tls.Config{}
	impostor.StartTLS()
	defer impostor.Close()
	host := strings.TrimPrefix(impostor.URL, "https://")
	s, err := NewSTS(STSOptions{Hosts: []string{host}, Audience: testRegion, Roots: x509.NewCertPool(),
		Accounts: fixedAccounts{}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, err := http.NewRequestWithContext(t.Context(), "GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prove(r, tokenOf(presignSTS(t, host, testRegion, stsCreds, time.Now()))); codeOf(err) !=
		STSUnavailable {
		t.Errorf("an impostor: %v", err)
	}
}
