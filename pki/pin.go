package pki

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

var fingerprint = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// PinCA makes sure that file holds the CA certificate with the [Fingerprint] want,
// which the caller must have from a trusted source. When file does not exist, PinCA
// fetches the certificate from the signing service at url over an unverified
// connection, and accepts it only if its fingerprint is want. It retries until ctx is
// done while the service does not answer.
func PinCA(ctx context.Context, url, want, file string) error {
	if !fingerprint.MatchString(want) {
		return fmt.Errorf(`CA fingerprint %q is not "sha256:" and 64 hex digits`, want)
	}
	data, err := os.ReadFile(file)
	missing := errors.Is(err, fs.ErrNotExist)
	if missing {
		if data, err = awaitCA(ctx, url); err != nil {
			return fmt.Errorf("fetching the CA's certificate from %s: %w", url, err)
		}
	}
	if err != nil {
		return fmt.Errorf("reading the CA's certificate: %w", err)
	}
	from := file
	if missing {
		from = url
	}
	ca, err := parseCertificate(data)
	if err != nil {
		return fmt.Errorf("the CA's certificate, from %s, %w", from, err)
	}
	if got := Fingerprint(ca); got != want {
		return fmt.Errorf("the CA's certificate, from %s, is not the one that was named: it has %s, not %s", from, got,
			want)
	}
	if !missing {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, encodeCert(ca.Raw), 0o644)
}

// awaitCA fetches the CA's certificate, and retries until the service answers.
func awaitCA(ctx context.Context, url string) ([]byte, error) {
	for attempt := 0; ; attempt++ {
		data, err := fetchCA(ctx, url)
		if err == nil {
			return data, nil
		}
		if r, ok := errors.AsType[*refusal](err); ok && r.isFinal() || !pause.For(ctx, backoff(attempt)) {
			return nil, err
		}
	}
}

// fetchCA fetches the CA's certificate once, without verifying the server.
func fetchCA(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, signTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/v1/ca", nil)
	if err != nil {
		return nil, err
	}
	if req.URL.Scheme != "https" {
		return nil, &refusal{http.StatusBadRequest, "bad-url", fmt.Sprintf("the signing service's URL %q is not https",
			url)}
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true},
		DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxSignBody))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = decodeRefusal(resp.StatusCode, data)
	}
	return data, err
}
