package rest

import (
	"net/http"
	"strconv"
	"strings"
)

// ETag is the strong entity tag of a document's version.
func ETag(version int64) string { return `"` + strconv.FormatInt(version, 10) + `"` }

// ParseIfMatch returns the version that a write insists on. present says
// whether the request has If-Match at all; any is If-Match: *, which any
// existing document meets. A tag that no version of ours can have is an *Error
// with status 412: it cannot match.
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
		return 0, false, true, Errorf(http.StatusBadRequest, CodeInvalid, "If-Match names several entity tags; name one")
	case strings.HasPrefix(tag, "W/"):
		return 0, false, true, Errorf(http.StatusPreconditionFailed, "precondition-failed",
			"If-Match has a weak entity tag, which matches nothing; use the ETag of a GET as it is")
	case len(tag) < 2 || tag[0] != '"' || tag[len(tag)-1] != '"':
		return 0, false, true, Errorf(http.StatusBadRequest, CodeInvalid, `If-Match is not an entity tag; it looks like "7", with the quotes`)
	}
	version, perr := strconv.ParseInt(tag[1:len(tag)-1], 10, 64)
	if perr != nil || ETag(version) != tag || version < 0 {
		return 0, false, true, Errorf(http.StatusPreconditionFailed, "precondition-failed",
			"If-Match has an entity tag that is not of this resource; use the ETag of a GET")
	}
	return version, false, true, nil
}

// WriteVersioned answers with a document and its ETag, or 304 when a GET has
// it already.
func WriteVersioned(w http.ResponseWriter, r *http.Request, status int, version int64, v any) error {
	tag := ETag(version)
	w.Header().Set("Etag", tag)
	if (r.Method == http.MethodGet || r.Method == http.MethodHead) && noneMatch(r.Header.Values("If-None-Match"), tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return WriteJSON(w, status, v)
}

// noneMatch compares weakly, as If-None-Match does.
func noneMatch(values []string, tag string) bool {
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
