package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"atoll.dev/internal/atomicfile"
	"atoll.dev/internal/pause"
)

var fingerprint = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// PinCA makes sure that file holds certificates of roots with a [Fingerprint] in want,
// and no other. want has one, or several separated by commas, as [CA.Pin] returns them; the
// caller must have it from a trusted source. When file does not exist, PinCA fetches the
// certificates from the signing service at url over an unverified connection, and takes
// those whose fingerprint is in want. It retries until ctx is done while the service does
// not answer.
func PinCA(ctx context.Context, url, want, file string) error {
	wanted := strings.Split(want, ",")
	for _, one := range wanted {
		if !fingerprint.MatchString(one) {
			return fmt.Errorf(`CA fingerprint %q is not "sha256:" and 64 hex digits`, one)
		}
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
	certs, err := parseCertificates(data)
	if err != nil {
		return fmt.Errorf("the CA's certificate, from %s, %w", from, err)
	}
	pinned := slices.DeleteFunc(slices.Clone(certs), func(c *x509.Certificate) bool {
		return !slices.Contains(wanted, Fingerprint(c))
	})
	// The signing service may have more roots than were named. A file with more would be trusted whole.
	if len(pinned) == 0 || !missing && len(pinned) < len(certs) {
		return fmt.Errorf("the CA's certificate, from %s, is not the one that was named: it has %s, not %s", from,
			strings.Join(newTrust(certs, nil).fingerprints(), ","), want)
	}
	if !missing {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return atomicfile.Write(file, encodeChain(pinned), 0o644)
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
