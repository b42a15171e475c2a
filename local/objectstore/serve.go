package objectstore

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// failure is an answer that is no success, as S3 has it.
type failure struct {
	XMLName xml.Name `xml:"Error"`
	Code    string
	Message string
	status  int
}

func fail(status int, code, message string) *failure {
	return &failure{Code: code, Message: message, status: status}
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if refused := s.serve(w, r); refused != nil {
		w.Header().Set("Connection", "close") // the rest of a body is not read
		writeXML(w, refused.status, refused)
	}
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) *failure {
	bodyHash, refused := s.verify(r)
	if refused != nil {
		return refused
	}
	name, key, hasKey := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	query, err := url.ParseQuery(r.URL.RawQuery)
	switch {
	case err != nil:
		return fail(http.StatusBadRequest, "InvalidArgument", "the query cannot be decoded")
	case name != bucket:
		return fail(http.StatusNotFound, "NoSuchBucket", "the only bucket is "+bucket)
	case (!hasKey || key == "") && r.Method == http.MethodGet:
		return s.serveList(w, query)
	case !checkKey(key):
		return fail(http.StatusBadRequest, "InvalidArgument", "an object cannot have this key")
	case !hasOnly(query, "x-id"):
		return notImplemented
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return s.serveGet(w, r, key)
	case http.MethodPut:
		return s.servePut(w, r, key, bodyHash)
	case http.MethodDelete:
		if err := s.remove(s.path(key)); err != nil {
			return s.internalError("deleting", key, err)
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return notImplemented
}

var notImplemented = fail(http.StatusNotImplemented, "NotImplemented",
	"this store has PUT, GET, HEAD and DELETE of objects, and ListObjectsV2")

// hasOnly reports whether a query has no other parameters than these.
func hasOnly(query url.Values, names ...string) bool {
	for name := range query {
		if !slices.Contains(names, name) {
			return false
		}
	}
	return true
}

func (s *Server) internalError(doing, key string, err error) *failure {
	s.log.Error("an object failed", "doing", doing, "key", key, "error", err)
	return fail(http.StatusInternalServerError, "InternalError", doing+" failed; the log of the store has the reason")
}

func (s *Server) serveGet(w http.ResponseWriter, r *http.Request, key string) *failure {
	f, err := os.Open(s.path(key))
	if isMissing(err) {
		return fail(http.StatusNotFound, "NoSuchKey", "there is no such object")
	}
	if err != nil {
		return s.internalError("reading", key, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return s.internalError("reading", key, err)
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
	return nil
}

// servePut stores the body. The object exists when all of it came, with the hash that was signed, and is on disk.
func (s *Server) servePut(w http.ResponseWriter, r *http.Request, key, bodyHash string) *failure {
	switch {
	case r.Header.Get("X-Amz-Copy-Source") != "" || r.Header.Get("If-Match") != "" || r.Header.Get("If-None-Match") != "":
		return notImplemented
	case r.Header.Get("X-Amz-Object-Lock-Mode") != "": // an acknowledgement would be a promise
		return fail(http.StatusBadRequest, "InvalidRequest", "Bucket is missing Object Lock Configuration")
	case r.ContentLength < 0:
		return fail(http.StatusLengthRequired, "MissingContentLength", "the header Content-Length is missing")
	case r.ContentLength > maxObject:
		return fail(http.StatusBadRequest, "EntityTooLarge", "an object has at most 64 MiB")
	}
	f, err := s.create(s.path(key))
	if err != nil {
		return s.internalError("storing", key, err)
	}
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(f, hash), r.Body)
	sum := hex.EncodeToString(hash.Sum(nil))
	var refused *failure
	switch {
	case err == nil && n == r.ContentLength && sum == strings.ToLower(bodyHash):
		err = f.Replace() // it removes the temporary file when it fails
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			return s.internalError("storing", key, err)
		}
		w.Header().Set("ETag", strconv.Quote(sum))
		w.WriteHeader(http.StatusOK)
		return nil
	case err != nil && !errors.Is(err, io.ErrUnexpectedEOF):
		refused = s.internalError("storing", key, err)
	case err != nil || n != r.ContentLength:
		refused = fail(http.StatusBadRequest, "IncompleteBody", "the body is shorter than Content-Length")
	default:
		refused = fail(http.StatusBadRequest, "XAmzContentSHA256Mismatch", "the body does not have the hash that was signed")
	}
	path := f.Name()
	if err := f.Close(); err != nil {
		s.log.Warn("a temporary file was not closed", "error", err)
	}
	if err := s.remove(path); err != nil {
		s.log.Warn("a temporary file was not removed", "error", err)
	}
	return refused
}

// page is the answer to ListObjectsV2.
type page struct {
	XMLName               xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name                  string
	Prefix                string
	Delimiter             string `xml:",omitempty"`
	EncodingType          string `xml:",omitempty"`
	KeyCount              int
	MaxKeys               int
	IsTruncated           bool
	ContinuationToken     string `xml:",omitempty"`
	NextContinuationToken string `xml:",omitempty"`
	Contents              []content
	CommonPrefixes        []commonPrefix
}

type commonPrefix struct{ Prefix string }

type content struct {
	Key          string
	LastModified string
	Size         int64
	StorageClass string
}

func (s *Server) serveList(w http.ResponseWriter, query url.Values) *failure {
	if query.Get("list-type") != "2" ||
		!hasOnly(query, "list-type", "prefix", "max-keys", "continuation-token", "start-after", "delimiter",
			"encoding-type", "x-id") {
		return notImplemented
	}
	encode := func(key string) string { return key }
	switch query.Get("encoding-type") {
	case "":
	case "url": // AWS's command line asks for it, because XML cannot have each character of a key of S3
		encode = func(key string) string { // that command line decodes a plus sign to a space
			return strings.ReplaceAll((&url.URL{Path: key}).EscapedPath(), "+", "%2B")
		}
	default:
		return fail(http.StatusBadRequest, "InvalidArgument", "the only encoding-type is url")
	}
	list := s.list
	switch query.Get("delimiter") {
	case "":
	case "/":
		list = s.listGroups
		if query.Has("start-after") { // would need a look into the group that it is in
			return notImplemented
		}
	default:
		return notImplemented
	}
	prefix := query.Get("prefix")
	p := page{Name: bucket, Prefix: encode(prefix), Delimiter: query.Get("delimiter"), MaxKeys: maxPage,
		EncodingType: query.Get("encoding-type"), ContinuationToken: query.Get("continuation-token")}
	if text := query.Get("max-keys"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return fail(http.StatusBadRequest, "InvalidArgument", "max-keys is no number")
		}
		p.MaxKeys = min(n, maxPage)
	}
	after := query.Get("start-after")
	if p.ContinuationToken != "" { // the last key of the page before
		last, err := base64.RawURLEncoding.DecodeString(p.ContinuationToken)
		if err != nil {
			return fail(http.StatusBadRequest, "InvalidArgument", "the continuation token is not one of this store's")
		}
		after = string(last)
	}
	objects, err := list(prefix, after, p.MaxKeys+1) // one more shows that there are more
	if err != nil {
		return s.internalError("listing", prefix, err)
	}
	if len(objects) > p.MaxKeys {
		objects = objects[:p.MaxKeys]
		if p.MaxKeys > 0 {
			p.IsTruncated = true
			p.NextContinuationToken = base64.RawURLEncoding.EncodeToString([]byte(objects[p.MaxKeys-1].key))
		}
	}
	p.KeyCount = len(objects)
	for _, o := range objects {
		if o.file == nil {
			p.CommonPrefixes = append(p.CommonPrefixes, commonPrefix{encode(o.key)})
			continue
		}
		p.Contents = append(p.Contents, content{Key: encode(o.key), Size: o.file.Size(), StorageClass: "STANDARD",
			LastModified: o.file.ModTime().UTC().Format(time.RFC3339)})
	}
	writeXML(w, http.StatusOK, p)
	return nil
}

func writeXML(w http.ResponseWriter, status int, body any) {
	text, err := xml.Marshal(body)
	if err != nil {
		http.Error(w, "the answer cannot be written", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = w.Write(append([]byte(xml.Header), text...))
}
