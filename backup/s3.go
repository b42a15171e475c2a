package backup

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"golang.org/x/time/rate"
)

// requestLimit bounds one request to the store: a part of a snapshot (1 MiB) takes so long at 35 KiB/s.
const requestLimit = 30 * time.Second

// S3Options describe a bucket of an S3-compatible store.
type S3Options struct {
	Bucket   string
	Prefix   string // of all objects, without a slash at the end; "" for none
	Region   string // default us-east-1
	Endpoint string // https://HOST; "" for AWS's own of the region
	// Credentials sign each request; they may change.
	Credentials aws.CredentialsProvider

	Lock           Lock              // of objects that are never replaced, see isReplaced; zero: none
	BytesPerSecond int               // of all uploads; 0: no limit
	Transport      http.RoundTripper // default: http.DefaultTransport
}

// S3 is a Store in a bucket. Use NewS3.
type S3 struct {
	o       S3Options
	client  *s3.Client
	uploads *rate.Limiter // nil: no limit
}

// NewS3 checks the options. It sends nothing.
func NewS3(o S3Options) (*S3, error) {
	if o.Bucket == "" || o.Credentials == nil {
		return nil, errors.New("a store needs a bucket and credentials")
	}
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	options := s3.Options{
		Region: o.Region, Credentials: o.Credentials,
		HTTPClient: &http.Client{Transport: o.Transport, Timeout: requestLimit},
		// No retries here: followers retry, and report the first failure. Stores of other vendors than AWS do not
		// accept trailing checksums.
		Retryer:                    aws.NopRetryer{},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
	}
	if o.Endpoint != "" {
		options.BaseEndpoint, options.UsePathStyle = &o.Endpoint, true
	}
	s := &S3{o: o, client: s3.New(options)}
	if o.BytesPerSecond > 0 {
		s.uploads = rate.NewLimiter(rate.Limit(o.BytesPerSecond), o.BytesPerSecond)
	}
	return s, nil
}

func (s *S3) key(name string) string { return path.Join(s.o.Prefix, name) }

// Put implements Store. It waits for its share of the bandwidth, and reads the object back: when a store acknowledges
// an object and keeps another one, or none, Put fails, and not a later restore.
func (s *S3) Put(ctx context.Context, name string, content []byte) error {
	for left := len(content); s.uploads != nil && left > 0; {
		n := min(left, s.uploads.Burst())
		if err := s.uploads.WaitN(ctx, n); err != nil {
			return err
		}
		left -= n
	}
	key := s.key(name)
	in := &s3.PutObjectInput{
		Bucket: &s.o.Bucket, Key: &key, Body: bytes.NewReader(content), ContentLength: aws.Int64(int64(len(content))),
	}
	if s.o.Lock.For > 0 && !isReplaced(name) {
		in.ObjectLockMode, in.ObjectLockRetainUntilDate = s.o.Lock.Mode, aws.Time(time.Now().Add(s.o.Lock.For))
		sum := md5.Sum(content) // stores demand it with a lock
		in.ContentMD5 = aws.String(base64.StdEncoding.EncodeToString(sum[:]))
	}
	_, err := s.client.PutObject(ctx, in)
	if err != nil {
		return s.requestError("storing", name, err)
	}
	isSame, err := s.has(ctx, name, content)
	if errors.Is(err, ErrNotFound) || err == nil && !isSame {
		return fmt.Errorf("storing %s in bucket %s: the store acknowledged it and keeps something else", name, s.o.Bucket)
	}
	return err
}

// has reports whether the store has an object with this content. It compares while it reads: an object of several MiB
// is never in memory a second time.
func (s *S3) has(ctx context.Context, name string, content []byte) (bool, error) {
	key := s.key(name)
	r, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.o.Bucket, Key: &key})
	if err != nil {
		return false, s.requestError("reading", name, err)
	}
	defer r.Body.Close()
	if r.ContentLength != nil && *r.ContentLength != int64(len(content)) {
		return false, nil
	}
	part := make([]byte, min(compareSize, len(content)+1)) // one more byte shows a longer object
	for rest := content; ; {
		n, err := r.Body.Read(part)
		after, isSame := bytes.CutPrefix(rest, part[:n])
		switch rest = after; {
		case !isSame:
			return false, nil
		case errors.Is(err, io.EOF):
			return len(rest) == 0, nil
		case err != nil:
			return false, s.requestError("reading", name, err)
		}
	}
}

// compareSize is how much of a stored object is compared at once, in bytes.
const compareSize = 32 << 10

// objectLimit bounds an object that is read, in bytes.
const objectLimit = 64 << 20

// listLimit bounds the names in a list: a plane's chains of a day have some 22,000 objects.
const listLimit = 1 << 20

// Get implements Store.
func (s *S3) Get(ctx context.Context, name string) ([]byte, error) {
	key := s.key(name)
	r, err := s.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &s.o.Bucket, Key: &key})
	if err != nil {
		return nil, s.requestError("reading", name, err)
	}
	defer r.Body.Close()
	content, err := io.ReadAll(io.LimitReader(r.Body, objectLimit))
	if err != nil {
		return nil, s.requestError("reading", name, err)
	}
	if r.ContentLength != nil && int64(len(content)) != *r.ContentLength {
		return nil, fmt.Errorf("reading %s: %d of %d bytes came", name, len(content), *r.ContentLength)
	}
	return content, nil
}

// String names the bucket and the prefix.
func (s *S3) String() string { return path.Join(s.o.Bucket, s.o.Prefix) }

// root returns the prefix of all keys, with its slash. path.Join would remove the slash at the end of a name.
func (s *S3) root() string {
	if s.o.Prefix == "" {
		return ""
	}
	return s.o.Prefix + "/"
}

// List implements Store.
func (s *S3) List(ctx context.Context, prefix string) ([]string, error) {
	return s.listPages(ctx, prefix, s3.ListObjectsV2Input{}, func(page *s3.ListObjectsV2Output) []string {
		return s.names(page.Contents)
	})
}

// ListDirectories returns the text between prefix, which ends with a slash, and the next slash of each name, once for
// all names with the same text, in the order of their bytes. It leaves out names without another slash. The store
// groups the names, so one answer has up to 1,000 directories, however many objects they have.
func (s *S3) ListDirectories(ctx context.Context, prefix string) ([]string, error) {
	in := s3.ListObjectsV2Input{Delimiter: aws.String("/")}
	names, err := s.listPages(ctx, prefix, in, func(page *s3.ListObjectsV2Output) []string {
		names := make([]string, len(page.CommonPrefixes))
		for i, p := range page.CommonPrefixes {
			names[i] = strings.TrimSuffix(strings.TrimPrefix(aws.ToString(p.Prefix), s.root()+prefix), "/")
		}
		return names
	})
	slices.Sort(names)
	return names, err
}

// listPages reads all pages of a list and returns the names that read finds in them.
func (s *S3) listPages(ctx context.Context, prefix string, in s3.ListObjectsV2Input,
	read func(*s3.ListObjectsV2Output) []string) (names []string, err error) {
	in.Bucket, in.Prefix = &s.o.Bucket, aws.String(s.root()+prefix)
	pages := s3.NewListObjectsV2Paginator(s.client, &in,
		func(o *s3.ListObjectsV2PaginatorOptions) { o.StopOnDuplicateToken = true })
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, s.requestError("listing", prefix, err)
		}
		names = append(names, read(page)...)
		if len(names) > listLimit {
			return nil, fmt.Errorf("listing %s in bucket %s: more than %d names", prefix, s.o.Bucket, listLimit)
		}
	}
	return names, nil
}

// ListAfter returns names that begin with prefix and come after the name after, in the order of their bytes: at most
// limit, and at most 1,000. An empty list means that there are no more.
func (s *S3) ListAfter(ctx context.Context, prefix, after string, limit int) ([]string, error) {
	in := s3.ListObjectsV2Input{Bucket: &s.o.Bucket, Prefix: aws.String(s.root() + prefix),
		MaxKeys: aws.Int32(int32(min(limit, 1000)))}
	if after != "" {
		in.StartAfter = aws.String(s.root() + after)
	}
	page, err := s.client.ListObjectsV2(ctx, &in)
	if err != nil {
		return nil, s.requestError("listing", prefix, err)
	}
	return s.names(page.Contents), nil
}

// names returns the names of objects: their keys without S3Options.Prefix.
func (s *S3) names(objects []types.Object) []string {
	names := make([]string, len(objects))
	for i, o := range objects {
		names[i] = strings.TrimPrefix(aws.ToString(o.Key), s.root())
	}
	return names
}

// Delete implements Store.
func (s *S3) Delete(ctx context.Context, name string) error {
	key := s.key(name)
	if _, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.o.Bucket, Key: &key}); err != nil {
		return s.requestError("deleting", name, err)
	}
	return nil
}

// Age implements Store: it is the time of the answer to HEAD minus that of the last change in it. Both are of the
// store's clock.
func (s *S3) Age(ctx context.Context, name string) (time.Duration, error) {
	key := s.key(name)
	head, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.o.Bucket, Key: &key})
	if err != nil {
		return 0, s.requestError("reading the age of", name, err)
	}
	now, ok := awsmiddleware.GetServerTime(head.ResultMetadata)
	if !ok || head.LastModified == nil {
		return 0, fmt.Errorf("reading the age of %s in bucket %s: the store does not say when it was stored: it answers "+
			"without Date or Last-Modified", name, s.o.Bucket)
	}
	return now.Sub(*head.LastModified), nil
}

// requestError returns the error of a request without the request's ids, which differ each time: a status that shows
// the error should not change with every retry.
func (s *S3) requestError(doing, name string, err error) error {
	_, isMissing := errors.AsType[*types.NoSuchKey](err)
	if _, hasNoHead := errors.AsType[*types.NotFound](err); isMissing || hasNoHead {
		return fmt.Errorf("%s: %w", name, ErrNotFound)
	}
	if refused, ok := errors.AsType[smithy.APIError](err); ok {
		return fmt.Errorf("%s %s in bucket %s: %s: %s", doing, name, s.o.Bucket, refused.ErrorCode(), refused.ErrorMessage())
	}
	return fmt.Errorf("%s %s in bucket %s: %w", doing, name, s.o.Bucket, err)
}
