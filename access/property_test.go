package access

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"atoll.dev/internal/rest"
	"pgregory.net/rapid"
)

// tokenVerifier is a testVerifier whose key pair has a session token, "" for none.
func tokenVerifier(token string) *Verifier {
	v, keys := testVerifier(), testKeys()
	key := keys[testID]
	key.SessionToken = token
	keys[testID] = key
	v.Keys = keys
	return v
}

// drawRequest draws a request that the AWS SDK signs in its header or its query, with or without a session token.
func drawRequest(t *rapid.T) (signed *http.Request, token string) {
	segment := rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ019-._~ %/+:@!$&'()*,;=?#é世\"<>|")), 1, 8, -1)
	var path strings.Builder
	for _, s := range rapid.SliceOfN(segment, 0, 5).Draw(t, "path") {
		path.WriteString("/" + url.PathEscape(s))
	}
	if path.Len() == 0 {
		path.WriteString("/")
	}
	var query []string
	for range rapid.IntRange(0, 4).Draw(t, "parameters") {
		p := url.QueryEscape(segment.Draw(t, "name"))
		if rapid.Bool().Draw(t, "has value") {
			p += "=" + url.QueryEscape(segment.Draw(t, "value"))
		}
		query = append(query, p)
	}
	target := path.String()
	if len(query) > 0 {
		target += "?" + strings.Join(query, "&")
	}
	method := rapid.SampledFrom([]string{"GET", "POST", "PUT", "PATCH", "DELETE"}).Draw(t, "method")
	body := string(rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body"))
	r := request(t, method, target, body)
	value := rapid.StringOfN(rapid.RuneFrom([]rune("abc ,;=\"\t")), 0, 10, -1)
	for _, n := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"X-Amz-Meta", "X-Custom", "Content-Type",
		"If-Match", "X-Amz-Account-Id"}), rapid.ID[string]).Draw(t, "headers") {
		for range rapid.IntRange(1, 2).Draw(t, "values") {
			r.Header.Add(n, value.Draw(t, "value"))
		}
	}
	if rapid.Bool().Draw(t, "has token") {
		token = rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ019/+=-_.%~")), 1, 60, -1).Draw(t, "token")
	}
	if rapid.Bool().Draw(t, "presigned") {
		return sdkPresignWith(t, r, body, token, testTime), token
	}
	sdkSignWith(t, r, body, token, testTime)
	return r, token
}

func TestWhateverTheSDKSignsVerifies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, token := drawRequest(t)
		target, sent := r.URL.RequestURI(), wire(t, r)
		verify := func(v *Verifier) error {
			got, err := received(sent)
			if err != nil {
				t.Fatal(err)
			}
			_, _, err = v.Verify(got)
			return err
		}
		if err := verify(tokenVerifier(token)); err != nil {
			t.Fatalf("%s %s: %v", r.Method, target, err)
		}
		if err := verify(tokenVerifier(token + "x")); codeOf(err) != UnexpectedToken {
			t.Fatalf("%s %s, and the key has another token: %v", r.Method, target, err)
		}
	})
}

// meaning returns what a handler sees of the signed parts of a request.
func meaning(r *http.Request, signedHeaders []string) string {
	m, _ := messageOf(r)
	q, err := url.ParseQuery(r.URL.RawQuery)
	q.Del(paramSignature)
	for _, v := range q {
		slices.Sort(v) // AWS's form sorts values, so their order was never signed
	}
	body, berr := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	var headers []string
	for _, n := range signedHeaders {
		v, ok := m.headerValue(n)
		headers = append(headers, fmt.Sprint(n, ok && v != "", v))
	}
	return fmt.Sprintf("%q %q %v %v %q %v %q", r.Method, r.URL.Path, q, err, headers, berr, body)
}

// Any byte of a signed request may be changed on its way: it does not verify,
// or means the same, as when only the case of a header's name changes.
func TestAChangedRequestDoesNotVerify(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, token := drawRequest(t)
		sent := wire(t, r)
		original, err := received(sent)
		if err != nil {
			t.Fatal(err)
		}
		m, _ := messageOf(original)
		c, err := parseClaim(m.header, m.query)
		if err != nil {
			t.Fatal(err)
		}
		want := meaning(original, c.signedHeaders)

		at := rapid.IntRange(0, len(sent)-1).Draw(t, "at")
		changed := slices.Clone(sent)
		switch rapid.IntRange(0, 2).Draw(t, "change") {
		case 0:
			changed[at] = rapid.Byte().Draw(t, "byte")
		case 1:
			changed = slices.Delete(changed, at, at+1)
		case 2:
			changed = slices.Insert(changed, at, rapid.SampledFrom([]byte("a/%2& =;,\n.")).Draw(t, "byte"))
		}
		got, err := received(changed)
		if err != nil {
			return // not even HTTP
		}
		meant := meaning(got, c.signedHeaders)
		if _, _, err := tokenVerifier(token).Verify(got); err == nil && meant != want {
			t.Fatalf("verified:\n%s\nbut signed was:\n%s\nmeaning %s\nnot     %s", changed, sent, meant, want)
		} else if err != nil && len(codeOf(err)) > 40 {
			t.Fatal(err)
		}
	})
}

// No form of one request is a form of another that means something else. The
// second request is what the first becomes by encoding or decoding it once.
func TestFormsOfDifferentRequestsDiffer(t *testing.T) {
	tokens := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "/", ":", "%", "2F", "%2F", "25", "%25", "%3A", "+",
		"%20", "&", "="}), 0, 5)
	again := []func(string) string{
		func(s string) string { return s },
		encodePath,
		func(s string) string { return strings.ReplaceAll(s, "%25", "%") },
		func(s string) string { return strings.ReplaceAll(s, "%2F", "/") },
		func(s string) string { return strings.ReplaceAll(s, "%20", "+") },
	}
	parse := func(path, query string) (forms []string, means string, ok bool) {
		r, err := received([]byte("GET /" + path + "?" + query + " HTTP/1.1\r\nHost: a\r\n\r\n"))
		if err != nil {
			return nil, "", false
		}
		if _, err := url.ParseQuery(r.URL.RawQuery); err != nil {
			return nil, "", false // fronts refuse it
		}
		m, _ := messageOf(r)
		c := &signatureClaim{signedHeaders: []string{"host"}}
		return canonicalRequests(m, c, "x"), meaning(r, c.signedHeaders), true
	}
	rapid.Check(t, func(t *rapid.T) {
		path, query := strings.Join(tokens.Draw(t, "path"), ""), strings.Join(tokens.Draw(t, "query"), "")
		turnPath, turnQuery := rapid.SampledFrom(again).Draw(t, "path again"), rapid.SampledFrom(again).Draw(
			t, "query again")
		forms, means, ok := parse(path, query)
		otherForms, otherMeans, otherOK := parse(turnPath(path), turnQuery(query))
		if !ok || !otherOK || means == otherMeans {
			return
		}
		for _, f := range forms {
			if slices.Contains(otherForms, f) {
				t.Fatalf("%s\nand\n%s\nshare the form\n%s", means, otherMeans, f)
			}
		}
	})
}

func FuzzAuthorizationHeader(f *testing.F) {
	for _, s := range []string{
		"AWS4-HMAC-SHA256 Credential=AKIAABCDEFGHIJKLMNOP/20260301/atoll-1/execute-api/aws4_request, " +
			"SignedHeaders=host;x-amz-date, Signature=" + strings.Repeat("0", 64),
		"AWS4-HMAC-SHA256 Credential=a/b/c/d/e,SignedHeaders=host;;host,Signature=AB",
		"AWS4-HMAC-SHA256 =,=,=", "AWS4-HMAC-SHA256", "Basic Zm9vOmJhcg==", "",
		"AWS4-HMAC-SHA256 Signature=x, Signature=y",
	} {
		f.Add(s, "20260301T120000Z")
	}
	f.Fuzz(func(t *testing.T, authorization, date string) {
		r := request(t, "GET", "/", "")
		r.Header = http.Header{"Authorization": {authorization}, "X-Amz-Date": {date}}
		_, _, err := testVerifier().Verify(r)
		checkRefusal(t, err)
	})
}

func FuzzPresignedQuery(f *testing.F) {
	f.Add(
		"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAABCDEFGHIJKLMNOP%2F20260301%2Fatoll-1%2Fexecute-api%2Faws4_request&X-Amz-Date=20260301T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=" + strings.Repeat("0", 64))
	f.Add("X-Amz-Signature=%zz&X-Amz-Signature&X-Amz-Expires=99999999999999999999")
	f.Add("X-%41mz-Signature=x")
	f.Add("X-Amz-Algorithm=x&X-Amz-Algorithm=y;&&=&X-Amz-Content-Sha256=UNSIGNED-PAYLOAD")
	f.Fuzz(func(t *testing.T, query string) {
		r := request(t, "GET", "/", "")
		r.URL.RawQuery = query
		_, _, err := testVerifier().Verify(r)
		checkRefusal(t, err)
		for name := range queryPairs(withoutParams(query)) {
			if n, _ := unescapeQuery(name); strings.HasPrefix(n, "X-Amz-") {
				t.Errorf("%q keeps %s", query, n)
			}
		}
	})
}

// checkRefusal checks that err is a complete refusal. No drawn signature is right, so
// that there always is one.
func checkRefusal(t *testing.T, err error) {
	t.Helper()
	e, ok := err.(*rest.Error)
	if !ok || e.Status < 400 || e.Type == "" || e.Reason == "" {
		t.Fatalf("not a refusal: %#v", err)
	}
	for i := range len(e.Reason) {
		if e.Reason[i] < 0x20 || e.Reason[i] > 0x7e {
			t.Fatalf("not printable: %q", e.Reason)
		}
	}
	if strings.Contains(e.Reason, testSecret) {
		t.Fatalf("shows the secret: %q", e.Reason)
	}
}
