package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"atoll.dev/test/testissuer"
	"atoll.dev/test/testsite"
)

const (
	oidcClient  = "atoll-eu-1"
	oidcSubject = "f4b1-person"
	oidcUser    = "arn:aws:iam::123456789012:user/ann"
)

// fixedLinks implements Links: the subjects have links, and there are codes.
type fixedLinks struct {
	subjects map[string]Link
	codes    map[string]LinkCode
}

func (f fixedLinks) Link(issuer, subject string) (Link, bool, error) {
	l, known := f.subjects[subject]
	return l, known && issuer == l.Issuer, nil
}

func (f fixedLinks) LinkCode(code string) (LinkCode, bool, error) {
	c, known := f.codes[code]
	return c, known, nil
}

// startIssuer starts an issuer, and a front that takes its tokens.
func startIssuer(t *testing.T, clients, audiences []string) (*testissuer.Issuer, *OIDC, *httptest.Server) {
	t.Helper()
	issuer := testissuer.New("", oidcClient)
	server := httptest.NewUnstartedServer(issuer)
	server.StartTLS()
	t.Cleanup(server.Close)
	issuer.URL = server.URL
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	o, err := NewOIDC(OIDCOptions{Issuer: issuer.URL, Clients: clients, Audiences: audiences, Roots: roots, Log: quiet,
		Links: fixedLinks{
			subjects: map[string]Link{oidcSubject: {ID: "link-1", Account: account, Principal: oidcUser, Issuer: issuer.URL,
				Subject: oidcSubject, Privileged: true}},
			codes: map[string]LinkCode{
				strings.Repeat("A", 26): {Account: account, Principal: oidcUser, Expires: time.Now().Add(time.Hour)},
				strings.Repeat("B", 26): {Account: account, Principal: oidcUser, Expires: time.Now().Add(-time.Second)},
			}}})
	if err != nil {
		t.Fatal(err)
	}
	testsite.Run(t, "the keys of the issuer", o.Run)
	return issuer, o, startFront(t, &CombinedIdentifier{Signatures: testVerifier(), Bearers: []BearerVerifier{o}})
}

// with returns claims with changes; a nil value removes a claim.
func with(claims map[string]any, changes map[string]any) map[string]any {
	changed := maps.Clone(claims)
	for name, value := range changes {
		if changed[name] = value; value == nil {
			delete(changed, name)
		}
	}
	return changed
}

// Only a token that the issuer has signed for this region, now, names a person; and the link of that
// person names the principal.
func TestATokenOfTheIssuerProvesALinkedIdentity(t *testing.T) {
	issuer, _, front := startIssuer(t, []string{oidcClient}, []string{"https://eu-1.example"})
	good := issuer.Claims(oidcSubject)
	got := askWith(t, front, issuer.Token(good))
	want := Evidence{Method: ByOIDC, Credential: "link-1", Issuer: issuer.URL, Subject: oidcSubject,
		Until: time.Unix(good["exp"].(int64), 0).Add(oidcLeeway).UTC()}
	got.Evidence.Until = got.Evidence.Until.UTC()
	if got.Principal != oidcUser || got.Evidence != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	now := time.Now()
	at := func(d time.Duration) int64 { return now.Add(d).Unix() }
	for name, changes := range map[string]map[string]any{
		"two audiences and a party": {"aud": []string{"x", oidcClient}, "azp": oidcClient},
		"of access tokens":          {"aud": "https://eu-1.example", "azp": oidcClient},
		"of RFC 9068":               {"aud": "https://eu-1.example", "client_id": oidcClient},
		"of Okta":                   {"aud": "https://eu-1.example", "cid": oidcClient},
		"within the leeway":         {"exp": at(-time.Second), "nbf": at(10 * time.Second), "iat": at(10 * time.Second)},
		"without iat":               {"iat": nil},
		"a day":                     {"exp": at(24 * time.Hour)},
	} {
		if got := askWith(t, front, issuer.Token(with(good, changes))); got.Code != "" || got.Principal != oidcUser {
			t.Errorf("%s: %+v", name, got)
		}
	}

	hisEmail := oidcSubject + "@example.com"
	refusedClaims := map[string]struct {
		changes map[string]any
		code    Code
	}{
		"another person":                    {map[string]any{"sub": "person-2"}, NotLinked},
		"the e-mail of another":             {map[string]any{"sub": "person-2", "email": hisEmail}, NotLinked},
		"no person":                         {map[string]any{"sub": nil}, InvalidToken},
		"an empty person":                   {map[string]any{"sub": ""}, InvalidToken},
		"a person that is a number":         {map[string]any{"sub": 7}, InvalidToken},
		"a person of two lines":             {map[string]any{"sub": "a\nb"}, InvalidToken},
		"a long person":                     {map[string]any{"sub": strings.Repeat("a", 256)}, InvalidToken},
		"a person by another spelling":      {map[string]any{"sub": nil, "SUB": oidcSubject}, InvalidToken},
		"another issuer":                    {map[string]any{"iss": "https://evil.example"}, InvalidToken},
		"an issuer with a slash":            {map[string]any{"iss": issuer.URL + "/"}, InvalidToken},
		"no issuer":                         {map[string]any{"iss": nil}, InvalidToken},
		"another audience":                  {map[string]any{"aud": "atoll-us-1"}, InvalidToken},
		"no audience":                       {map[string]any{"aud": nil}, InvalidToken},
		"an empty list of audiences":        {map[string]any{"aud": []string{}}, InvalidToken},
		"an audience that contains ours":    {map[string]any{"aud": oidcClient + "x"}, InvalidToken},
		"several audiences alone":           {map[string]any{"aud": []string{oidcClient, "x"}}, InvalidToken},
		"an authorized party of somebody":   {map[string]any{"azp": "evil"}, InvalidToken},
		"an authorized party that is empty": {map[string]any{"aud": []string{oidcClient, "x"}, "azp": ""}, InvalidToken},
		"an audience as authorized party":   {map[string]any{"azp": "https://eu-1.example"}, InvalidToken},
		"an access token of nobody":         {map[string]any{"aud": "https://eu-1.example"}, InvalidToken},
		"an access token of a stranger": {map[string]any{"aud": "https://eu-1.example", "client_id": "evil"},
			InvalidToken},
		"Okta's access token of a stranger": {map[string]any{"aud": "https://eu-1.example", "cid": "evil"}, InvalidToken},
		"a token of two clients": {map[string]any{"aud": "https://eu-1.example", "azp": oidcClient, "client_id": "evil"},
			InvalidToken},
		"a token of a stranger for us": {map[string]any{"client_id": "evil"}, InvalidToken},
		"a party that is a list":       {map[string]any{"azp": []string{oidcClient}}, InvalidToken},
		"expired":                      {map[string]any{"exp": at(-oidcLeeway - 2*time.Second)}, ExpiredCredentials},
		"without an end":               {map[string]any{"exp": nil}, InvalidToken},
		"an end that is a text":        {map[string]any{"exp": "tomorrow"}, InvalidToken},
		"valid for a year":             {map[string]any{"exp": at(365 * 24 * time.Hour)}, InvalidToken},
		"not yet valid":                {map[string]any{"nbf": at(5 * time.Minute)}, SignatureInFuture},
		"issued in the future":         {map[string]any{"iat": at(5 * time.Minute)}, SignatureInFuture},
		"a logout":                     {map[string]any{"events": map[string]any{"x": 1}}, InvalidToken},
		"bound to a key":               {map[string]any{"cnf": map[string]any{"jkt": "x"}}, InvalidToken},
	}
	for name, tc := range refusedClaims {
		if got := askWith(t, front, issuer.Token(with(good, tc.changes))); Code(got.Code) != tc.code {
			t.Errorf("%s: %+v, want %s", name, got, tc.code)
		}
	}

	key, token := issuer.Key(), issuer.Token(good)
	parts := strings.Split(token, ".")
	encode := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	public, err := x509.MarshalPKIXPublicKey(key.Key.(*ecdsa.PrivateKey).Public())
	if err != nil {
		t.Fatal(err)
	}
	publicPEM := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	publicJWK, err := (&jose.JSONWebKey{Key: key.Key.(*ecdsa.PrivateKey).Public(), KeyID: key.KeyID}).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signed := func(id string, headers map[jose.HeaderKey]any) string {
		return testissuer.Sign(jose.ES256, jose.JSONWebKey{Key: stranger, KeyID: id}, good, headers)
	}
	changed := strings.Replace(string(mustDecode(t, parts[1])), oidcSubject, "person-2", 1)
	hs256 := func(secret []byte) string {
		return testissuer.Sign(jose.HS256, jose.JSONWebKey{Key: secret, KeyID: "key-1"}, good, nil)
	}
	own := func(claims any, headers map[jose.HeaderKey]any) string {
		return testissuer.Sign(jose.ES256, key, claims, headers)
	}
	claims := string(mustDecode(t, parts[1]))
	for name, token := range map[string]string{
		"without a signature":              encode(`{"alg":"none","kid":"key-1"}`) + "." + parts[1] + ".",
		"none in capitals":                 encode(`{"alg":"NONE","kid":"key-1"}`) + "." + parts[1] + "." + parts[2],
		"the signature cut off":            parts[0] + "." + parts[1] + ".",
		"HS256 with the public key as PEM": hs256(publicPEM),
		"HS256 with the public key as JWK": hs256(publicJWK),
		"a key of a stranger":              signed("key-1", nil),
		"an unknown key":                   signed("key-9", nil),
		"no key":                           testissuer.Sign(jose.ES256, stranger, good, nil),
		"a key that it brings": testissuer.Sign(jose.ES256, stranger, good,
			map[jose.HeaderKey]any{"jwk": &jose.JSONWebKey{Key: stranger.Public(), KeyID: "key-1"}}),
		"the address of a key":      signed("key-1", map[jose.HeaderKey]any{"jku": "https://evil.example/keys"}),
		"a critical header":         own(good, map[jose.HeaderKey]any{"crit": []string{"x"}, "x": 1}),
		"a logout by its type":      own(good, map[jose.HeaderKey]any{"typ": "logout+jwt"}),
		"changed claims":            parts[0] + "." + encode(changed) + "." + parts[2],
		"a changed signature":       parts[0] + "." + parts[1] + "." + strings.Repeat("A", len(parts[2])),
		"a claim twice":             own(claims[:len(claims)-1]+`,"sub":"`+oidcSubject+`"}`, nil),
		"claims that are no object": testissuer.Sign(jose.ES256, key, "[]", nil),
		"oversized":                 issuer.Token(with(good, map[string]any{"x": strings.Repeat("x", maxOIDCToken)})),
	} {
		if got := askWith(t, front, token); Code(got.Code) != InvalidToken {
			t.Errorf("%s: %+v", name, got)
		}
	}
	for name, token := range map[string]string{"two parts": parts[0] + "." + parts[1], "four parts": token + ".x",
		"JSON": `{"payload":"x","signatures":[]}`, "two tokens": token + ", " + token} {
		if got := askWith(t, front, token); Code(got.Code) != UnsupportedAlgorithm && Code(got.Code) != InvalidToken {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if n := issuer.KeyReads(); n > 2 {
		t.Errorf("the keys were read %d times", n)
	}
}

func mustDecode(t *testing.T, text string) []byte {
	t.Helper()
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// A request with a token and anything else that proves or claims an identity is refused.
func TestATokenAloneProvesAnIdentity(t *testing.T) {
	issuer, _, front := startIssuer(t, []string{oidcClient}, nil)
	token := issuer.Token(issuer.Claims(oidcSubject))
	stranger := issuer.Token(issuer.Claims("person-2"))
	request := func(method, target string, headers http.Header) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), method, front.URL+target, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header = headers
		return r
	}
	bearer, codeA := "Bearer "+token, strings.Repeat("A", 26)
	for _, tc := range []struct {
		name, method, target string
		headers              http.Header
		code                 Code
	}{
		{"the token alone", "GET", "/api/v0/x", http.Header{"Authorization": {bearer}}, ""},
		{"twice", "GET", "/api/v0/x", http.Header{"Authorization": {bearer, bearer}}, AmbiguousIdentity},
		{"with a signature", "GET", "/api/v0/x", http.Header{"Authorization": {bearer,
			"AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20260101/x/execute-api/aws4_request, SignedHeaders=host, Signature=0"}},
			AmbiguousIdentity},
		{"with a presigned query", "GET", "/api/v0/x?X-Amz-Signature=0", http.Header{"Authorization": {bearer}},
			AmbiguousIdentity},
		{"with the gateway's secret", "GET", "/api/v0/x", http.Header{"Authorization": {bearer},
			"X-Atoll-Gateway-Secret": {"x"}}, AmbiguousIdentity},
		{"a code of another route", "GET", "/api/v0/x", http.Header{"Authorization": {bearer}, LinkCodeHeader: {codeA}},
			AmbiguousIdentity},
		{"a stranger's code for another route", "POST", "/api/v0/x", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {codeA}}, AmbiguousIdentity},
		{"a stranger's code by GET", "GET", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {codeA}}, AmbiguousIdentity},
		{"two codes", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {codeA, codeA}}, AmbiguousIdentity},
		{"a code in another spelling", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {codeA}, "X_atoll_link_code": {codeA}}, AmbiguousIdentity},
		{"an unknown code", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {strings.Repeat("C", 26)}}, InvalidLinkCode},
		{"an expired code", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {strings.Repeat("B", 26)}}, InvalidLinkCode},
		{"a code that is none", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {"x"}}, InvalidLinkCode},
		{"no code", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger}}, NotLinked},
		{"a code without a token", "POST", "/api/v0/links", http.Header{LinkCodeHeader: {codeA}}, MissingAuthentication},
		// The front's routes have other actions, and a code is for one action only.
		{"a code for another action", "POST", "/api/v0/links", http.Header{"Authorization": {"Bearer " + stranger},
			LinkCodeHeader: {codeA}}, AccessDenied},
	} {
		if got := ask(t, front, request(tc.method, tc.target, tc.headers)); Code(got.Code) != tc.code {
			t.Errorf("%s: %+v, want %s", tc.name, got, tc.code)
		}
	}
}

// People change the value of some claims, and share that of others: these name nobody.
func TestAClaimThatPeopleChangeNamesNobody(t *testing.T) {
	for claim, isGood := range map[string]bool{"": true, "sub": true, "oid": true, "employee_id": true,
		"email": false, "Email": false, "https://example.com/mail": false, "preferred_username": false, "upn": false,
		"name": false, "nickname": false, "phone_number": false, "aud": false, "tid": false, "sid": false, "nonce": false,
		"groups": false, "cognito:username": false} {
		_, err := NewOIDC(OIDCOptions{Issuer: "https://issuer.example", Clients: []string{oidcClient}, Links: fixedLinks{},
			SubjectClaim: claim})
		if (err == nil) != isGood {
			t.Errorf("%q: %v", claim, err)
		}
	}
}

// A token of one region proves nobody in a region with another client of the same issuer.
func TestATokenIsForItsRegion(t *testing.T) {
	issuer, o, _ := startIssuer(t, []string{oidcClient}, nil)
	elsewhere := *o
	elsewhere.options.Clients = []string{"atoll-us-1"}
	front := startFront(t, &CombinedIdentifier{Signatures: testVerifier(), Bearers: []BearerVerifier{&elsewhere}})
	if got := askWith(t, front, issuer.Token(issuer.Claims(oidcSubject))); Code(got.Code) != InvalidToken {
		t.Errorf("another region took it: %+v", got)
	}
}

// handlerTransport sends requests to a handler, without a network.
type handlerTransport struct{ http.Handler }

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result(), nil
}
