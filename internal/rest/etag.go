package rest

import (
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// ETag returns the strong entity tag of a document's version, for documents whose
// representation changes only with the version.
func ETag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// BodyETag returns the strong entity tag of a representation that may change without a
// new version of the document: "7-" and a hash. For a write with If-Match only its
// version counts, see ParseIfMatch.
func BodyETag(version int64, body []byte) string {
	var hash [8]byte
	binary.BigEndian.PutUint64(hash[:], xxhash.Sum64(body))
	tag := strconv.AppendInt(append(make([]byte, 0, 40), '"'), version, 10)
	return string(append(hex.AppendEncode(append(tag, '-'), hash[:]), '"'))
}

// versionOf returns the version in a tag that ETag or BodyETag has made; ok is false for
// other tags.
func versionOf(tag string) (version int64, ok bool) {
	if len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"' {
		return 0, false
	}
	text, hash, hashed := strings.Cut(tag[1:len(tag)-1], "-")
	version, err := strconv.ParseInt(text, 10, 64)
	if err != nil || version < 0 || strconv.FormatInt(version, 10) != text {
		return 0, false
	}
	if _, err := strconv.ParseUint(hash, 16, 64); hashed && (err != nil || len(hash) != 16) {
		return 0, false
	}
	return version, true
}

// VersionETag returns the ETag of the version in a tag of ETag or BodyETag; it returns
// other tags unchanged.
func VersionETag(tag string) string {
	if version, ok := versionOf(tag); ok {
		return ETag(version)
	}
	return tag
}

// SameVersion reports whether two entity tags are of the same version of a
// document.
func SameVersion(a, b string) bool {
	v, ok := versionOf(a)
	w, ok2 := versionOf(b)
	return ok && ok2 && v == w
}

// ParseIfMatch returns the version that a write requires by If-Match. present is false
// if the request has no If-Match; any is true for If-Match: *, which any existing
// document matches. A tag that neither ETag nor BodyETag makes is an *Error with status
// 412, because it cannot match. Of a BodyETag only the version counts: a change without
// a new version, such as the time of a report, must not refuse a write.
func ParseIfMatch(r *http.Request) (version int64, any, present bool, err error) {
	values := r.Header.Values("If-Match")
	if len(values) == 0 {
		return 0, false, false, nil
	}
	tag := strings.TrimSpace(strings.Join(values, ","))
	switch {
	case tag == "*":
		return 0, true, true, nil
	case strings.Contains(tag, ","):
		return 0, false, true, Errorf(http.StatusBadRequest, CodeInvalid,
			"If-Match names several entity tags; name one")
	case strings.HasPrefix(tag, "W/"):
		return 0, false, true, Errorf(http.StatusPreconditionFailed, "precondition-failed",
			"If-Match has a weak entity tag, which matches nothing; use the ETag of a GET as it is")
	case len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"':
		return 0, false, true, Errorf(http.StatusBadRequest, CodeInvalid,
			`If-Match is not an entity tag; it looks like "7", with the quotes`)
	}
	version, ok := versionOf(tag)
	if !ok {
		return 0, false, true, Errorf(http.StatusPreconditionFailed, "precondition-failed",
			"If-Match has an entity tag that is not of this resource; use the ETag of a GET")
	}
	return version, false, true, nil
}

// WriteVersioned answers with a document and its ETag, or with 304 if the If-None-Match
// of a GET or HEAD has that ETag.
func WriteVersioned(w http.ResponseWriter, r *http.Request, status int, version int64, v any) error {
	return writeTagged(w, r, status, ETag(version), v)
}

// WriteBody is WriteVersioned for a representation that may change without a new
// version.
func WriteBody(w http.ResponseWriter, r *http.Request, status int, version int64, body []byte) error {
	return writeTagged(w, r, status, BodyETag(version, body), body)
}

func writeTagged(w http.ResponseWriter, r *http.Request, status int, tag string, v any) error {
	w.Header().Set("Etag", tag)
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && matchesAny(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return WriteJSON(w, status, v)
}

// matchesAny reports whether values of If-None-Match contain the tag or "*". It compares
// weakly, as the standard has it.
func matchesAny(values []string, tag string) bool {
	for _, v := range values {
		for t := range strings.SplitSeq(v, ",") {
			t = strings.TrimSpace(t)
			if t == "*" || strings.TrimPrefix(t, "W/") == tag {
				return true
			}
		}
	}
	return false
}
