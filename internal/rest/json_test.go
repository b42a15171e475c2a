package rest

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestReadJSONNamesThePositionOfAFault(t *testing.T) {
	type doc struct {
		Name string `json:"name"`
		Spec struct {
			Replicas int `json:"replicas"`
		} `json:"spec"`
	}
	for _, tc := range []struct {
		name, body string
		status     int
		cause      error
		reason     string // part of it
	}{
		{"empty", "", 400, ErrEmpty, "empty"},
		{"only space", " \n\t", 400, ErrEmpty, "empty"},
		{"syntax", "{\n  \"name\": }", 400, ErrMalformed, "line 2 column 11"},
		{"cut", `{"name": "x"`, 400, ErrMalformed, "unexpected end"},
		{"type", `{"name": 7}`, 400, ErrMalformed, "name is a JSON number"},
		{"nested type", `{"spec": {"replicas": "many"}}`, 400, ErrMalformed, "spec.replicas"},
		{"trailing", `{"name":"x"} {"name":"y"}`, 400, ErrMalformed, "after top-level value"},
		{"array", `[]`, 400, ErrMalformed, "the document is a JSON array"},
		{"bad UTF-8", "{\"name\": \"a\xffb\"}", 400, ErrMalformed, "line 1 column 12: invalid UTF-8"},
		{"NUL", `{"name": "a\u0000"}`, 400, ErrMalformed, `\u0000`},
		{"high surrogate", `{"name": "\ud800"}`, 400, ErrMalformed, "high surrogate"},
		{"low surrogate", `{"name": "\udc00"}`, 400, ErrMalformed, "low surrogate"},
		{"number", `{"x": 1e999}`, 400, ErrMalformed, "too large"},
		{"deep", strings.Repeat("[", 300) + strings.Repeat("]", 300), 400, ErrMalformed, "deeper"},
		{"large", `{"name": "` + strings.Repeat("x", 2000) + `"}`, 413, ErrTooLarge, "larger than 1024 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "/", strings.NewReader(tc.body))
			var v doc
			err := ReadJSON(r, 1024, &v)
			e, ok := errors.AsType[*Error](err)
			if !ok {
				t.Fatalf("got %v, want an *Error", err)
			}
			if e.Status != tc.status || !errors.Is(err, tc.cause) || !strings.Contains(e.Reason, tc.reason) {
				t.Errorf("got %d %q, want %d with %q", e.Status, e.Reason, tc.status, tc.reason)
			}
		})
	}
}

func TestReadJSONAcceptsWhatCurlSends(t *testing.T) {
	r := httptest.NewRequest("POST", "/", strings.NewReader(
		`{"name":"\\u0000 \ud83d\ude00 é", "n": -1.5e-9, "other": [1,{}]}`))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	var v map[string]any
	if err := ReadJSON(r, 1024, &v); err != nil {
		t.Fatal(err)
	}
	if got := v["name"]; got != "\\u0000 \U0001F600 é" {
		t.Errorf("name = %q", got)
	}
}

func TestReadJSONRefusesAnUnknownLengthTooLarge(t *testing.T) {
	r := httptest.NewRequest("POST", "/", strings.NewReader(strings.Repeat(" ", 20)))
	r.ContentLength = -1
	if err := ReadJSON(r, 10, new(any)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
}

func FuzzDecodeJSON(f *testing.F) {
	for _, s := range []string{`{"a":"\u0000"}`, `"\ud83d\ude00"`, `[1e999,"\\"]`, "{\"a\"\xff", `"\u12`, `"\`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var raw json.RawMessage
		err := DecodeJSON(data, &raw)
		if err == nil && !json.Valid(data) {
			t.Errorf("accepted %q", data)
		}
		if _, ok := errors.AsType[*Error](err); err != nil && !ok {
			t.Errorf("%q gives %v, which is no *Error", data, err)
		}
	})
}

func TestIfMatch(t *testing.T) {
	for _, tc := range []struct {
		header  string
		version int64
		any     bool
		present bool
		status  int
	}{
		{header: `"7"`, version: 7, present: true},
		{header: ` "7" `, version: 7, present: true},
		{header: `*`, any: true, present: true},
		{header: `W/"7"`, present: true, status: 412},
		{header: `"abc"`, present: true, status: 412},
		{header: `"07"`, present: true, status: 412},
		{header: `"-1"`, present: true, status: 412},
		{header: `"99999999999999999999"`, present: true, status: 412},
		{header: `7`, present: true, status: 400},
		{header: `"1", "2"`, present: true, status: 400},
		{header: `"`, present: true, status: 400},
	} {
		r := httptest.NewRequest("PUT", "/", nil)
		r.Header.Set("If-Match", tc.header)
		version, any, present, err := ParseIfMatch(r)
		status := 0
		if e, ok := errors.AsType[*Error](err); ok {
			status = e.Status
		}
		if version != tc.version || any != tc.any || present != tc.present || status != tc.status {
			t.Errorf("If-Match %s gives %d %v %v %v", tc.header, version, any, present, err)
		}
	}
	if _, _, present, err := ParseIfMatch(httptest.NewRequest("PUT", "/", nil)); present || err != nil {
		t.Errorf("absent If-Match gives %v, %v", present, err)
	}
}

// The hash in a tag distinguishes representations; for a write it does not count.
func TestBodyETags(t *testing.T) {
	one, two := BodyETag(7, []byte("a")), BodyETag(7, []byte("b"))
	if one == two || !SameVersion(one, two) || !SameVersion(one, ETag(7)) ||
		SameVersion(one, BodyETag(8, []byte("a"))) || VersionETag(one) != ETag(7) {
		t.Errorf("%s %s", one, two)
	}
	for tag, want := range map[string]int64{one: 7, `"7"`: 7, `"7-"`: 0, `"7-x"`: 0, `"7-123"`: 0, `"07"`: 0, `"+7"`: 0,
		`W/` + one: 0} {
		r := httptest.NewRequest("PUT", "/", nil)
		r.Header.Set("If-Match", tag)
		if version, _, _, err := ParseIfMatch(r); version != want || (err == nil) != (want != 0) {
			t.Errorf("If-Match %s: %d, %v", tag, version, err)
		}
	}
	for tag, want := range map[string]int{one: 304, two: 200, `"7"`: 200} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		if err := WriteBody(w, r, http.StatusOK, 7, []byte("a")); err != nil || w.Code != want {
			t.Errorf("If-None-Match %s: %d, %v", tag, w.Code, err)
		}
	}
}

func TestAGetOfTheKnownVersionIsNotModified(t *testing.T) {
	for _, tc := range []struct {
		method, header string
		want           int
	}{
		{"GET", `"3"`, 304}, {"GET", `W/"3"`, 304}, {"GET", `"1", "3"`, 304}, {"GET", `*`, 304}, {"HEAD", `"3"`, 304},
		{"GET", `"4"`, 200}, {"GET", ``, 200}, {"PUT", `"3"`, 200},
	} {
		r := httptest.NewRequest(tc.method, "/", nil)
		if tc.header != "" {
			r.Header.Set("If-None-Match", tc.header)
		}
		w := httptest.NewRecorder()
		if err := WriteVersioned(w, r, http.StatusOK, 3, map[string]string{"a": "<b>"}); err != nil {
			t.Fatal(err)
		}
		if w.Code != tc.want || w.Header().Get("Etag") != `"3"` {
			t.Errorf("%s with If-None-Match %s: %d, ETag %s", tc.method, tc.header, w.Code, w.Header().Get("Etag"))
		}
		if tc.want == 304 && w.Body.Len() > 0 {
			t.Errorf("304 with a body: %s", w.Body)
		}
		if tc.want == 200 && w.Body.String() != "{\"a\":\"<b>\"}\n" {
			t.Errorf("body %q", w.Body)
		}
	}
}
