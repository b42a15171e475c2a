package access

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"atoll.dev/client"
)

// countedBody is a body that counts what is read of it.
type countedBody struct {
	io.Reader
	read int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read += int64(n)
	return n, err
}

func (b *countedBody) Close() error { return nil }

// Before the identity is proven, nothing of the body is read: not for a malformed claim, a bad
// date, an unknown key, nor for a wrong signature that declares the hash of the body.
func TestNoBodyIsReadForARefusedClaim(t *testing.T) {
	h := front(notFound, quiet, testKeys(), nil)
	body := strings.Repeat("x", MaxBody)
	for name, tc := range map[string]struct {
		creds client.Credentials
		edit  func(*http.Request)
		code  Code
	}{
		"unknown key": {creds: client.Credentials{AccessKeyID: otherID, SecretAccessKey: testSecret,
			Region: testRegion}, code: UnknownKey},
		"unknown key, undeclared hash": {creds: client.Credentials{AccessKeyID: otherID,
			SecretAccessKey: testSecret, Region: testRegion},
			edit: func(r *http.Request) { r.Header.Del("X-Amz-Content-Sha256") }, code: UnknownKey},
		"wrong secret": {creds: client.Credentials{AccessKeyID: testID, SecretAccessKey: "wrong",
			Region: testRegion}, code: WrongSignature},
		"wrong region": {creds: client.Credentials{AccessKeyID: testID, SecretAccessKey: testSecret,
			Region: "mars-1"}, code: WrongRegion},
		"bad date": {creds: creds, edit: func(r *http.Request) { r.Header.Set("X-Amz-Date", "today") }, code: InvalidDate},
		"old date": {creds: creds, edit: func(r *http.Request) { r.Header.Set("X-Amz-Date", "20200101T000000Z") },
			code: WrongDate},
		"malformed claim": {creds: creds, edit: func(r *http.Request) {
			r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=")
		}, code: IncompleteSignature},
		"no signature": {creds: creds, edit: func(r *http.Request) { r.Header.Del("Authorization") },
			code: MissingAuthentication},
		"unsigned payload": {creds: creds, edit: func(r *http.Request) {
			r.Header.Set("X-Amz-Content-Sha256", unsignedPayload)
		}, code: UnsignedPayload},
	} {
		for _, length := range []int64{MaxBody, -1} {
			r := request(t, "POST", "/x", "")
			r.ContentLength = 0
			if err := client.Sign(r, []byte(body), tc.creds, testTime); err != nil {
				t.Fatal(err)
			}
			counted := &countedBody{Reader: strings.NewReader(body)}
			r.Body, r.ContentLength = counted, length
			if tc.edit != nil {
				tc.edit(r)
			}
			w := serve(h, r)
			if !strings.Contains(w.Body.String(), `"`+string(tc.code)+`"`) || counted.read != 0 {
				t.Errorf("%s, length %d: read %d bytes, answered %s", name, length, counted.read, w.Body)
			}
		}
	}
}

// heldBody is a body that waits, after its first bytes, until the test lets it end.
type heldBody struct {
	first   io.Reader
	waiting chan<- struct{}
	end     <-chan struct{}
}

func (b *heldBody) Read(p []byte) (int, error) {
	if n, err := b.first.Read(p); err == nil {
		return n, nil
	}
	b.waiting <- struct{}{}
	<-b.end
	return 0, io.EOF
}

func (b *heldBody) Close() error { return nil }

// The memory of bodies in flight is bounded, for each source and in total, however many requests
// there are and whatever length they declare; and all of it is freed.
func TestBodyMemoryIsBounded(t *testing.T) {
	limits := BodyLimits{Total: 4 << 20, PerSource: 2 << 20, Unproven: 50}
	rt := NewRouter(Options{Identifier: testVerifier(), Log: quiet, Bodies: limits})
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { return nil })
	sent := bytes.Repeat([]byte("x"), 200<<10) // a buffer of 256 KiB
	waiting, end := make(chan struct{}), make(chan struct{})
	codes := make(chan string, 1000)
	send := func(source string) {
		r := request(t, "POST", "/x", "")
		r.ContentLength = 0
		sdkSign(t, r, string(sent), testTime) // without a declared hash: read before it is proven
		r.Body, r.ContentLength = &heldBody{bytes.NewReader(sent), waiting, end}, -1
		r.RemoteAddr = source + ":1"
		w := serve(rt, r)
		codes <- fmt.Sprint(w.Code, " ", strings.Contains(w.Body.String(), string(TooManyBodies)),
			strings.Contains(w.Body.String(), string(Overloaded)))
	}
	begin := func(source string, n int) {
		for range n {
			go send(source)
		}
	}
	// One source has room for four of these unproven bodies, all sources for eight.
	begin("10.0.0.1", 4)
	for range 4 {
		<-waiting
	}
	begin("10.0.0.1", 16)
	for range 16 {
		if code := <-codes; code != "429 true false" {
			t.Errorf("over the limit of a source: %s", code)
		}
	}
	for i := range 4 {
		begin(fmt.Sprintf("10.0.1.%d", i), 1)
		<-waiting
	}
	for i := range 16 {
		begin(fmt.Sprintf("10.0.2.%d", i), 1)
	}
	for range 16 {
		if code := <-codes; code != "503 false true" {
			t.Errorf("over the limit of all: %s", code)
		}
	}
	if now, peak := rt.bodies.held(); now != 8*(256<<10) || peak > limits.Total/2 {
		t.Errorf("held %d bytes, at most %d", now, peak)
	}
	// A proven sender is served meanwhile.
	if w := serve(rt, signedRequest(t, "{}", testTime, creds)); w.Code != http.StatusOK {
		t.Errorf("a proven sender: %d %s", w.Code, w.Body)
	}
	close(end)
	for range 8 {
		if code := <-codes; code != "200 false false" {
			t.Errorf("within the limits: %s", code)
		}
	}
	if now, _ := rt.bodies.held(); now != 0 || len(rt.bodies.sources) != 0 {
		t.Errorf("%d bytes of %d sources are held after all answers", now, len(rt.bodies.sources))
	}
}

// A body holds memory for what was sent, not for what was declared.
func TestASlowBodyHoldsWhatItSent(t *testing.T) {
	rt := NewRouter(Options{Identifier: testVerifier(), Log: quiet})
	handleEverything(rt, func(http.ResponseWriter, *http.Request) error { return nil })
	waiting, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	r := request(t, "POST", "/x", "")
	r.ContentLength = 0
	sdkSign(t, r, "x", testTime)
	r.Body, r.ContentLength = &heldBody{strings.NewReader("x"), waiting, end}, MaxBody
	go func() {
		defer close(done)
		serve(rt, r)
	}()
	<-waiting
	if now, _ := rt.bodies.held(); now != firstChunk {
		t.Errorf("one byte of 4 MiB holds %d bytes", now)
	}
	close(end)
	<-done
}
