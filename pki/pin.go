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

// PinCA makes sure that file holds at least one root certificate whose [Fingerprint] is in want, and no certificate
// whose fingerprint is not. want is one fingerprint, or several separated by commas, as [CA.Pin] returns them. The
// caller must have want from a trusted source.
//
//   - When file has a certificate in want, PinCA keeps all such certificates, removes the others, which the process
//     would trust as well, and fetches nothing.
//   - When file does not exist or has none, as after a rotation of the root, PinCA fetches the certificates from the
//     signing service at url over an unverified connection, and writes those in want. Until ctx is done it retries
//     while the service does not answer, or answers 429 or 5xx.
//   - PinCA returns an error, and changes nothing, when the service has no certificate in want either, and when file
//     exists and holds no certificate.
//
// Processes with different pins must have different files: each would remove what the other has written.
func PinCA(ctx context.Context, url, want, file string) error {
	wanted := strings.Split(want, ",")
	for _, one := range wanted {
		if !fingerprint.MatchString(one) {
			return fmt.Errorf(`CA fingerprint %q is not "sha256:" and 64 hex digits`, one)
		}
	}
	var have, pinned []*x509.Certificate
	data, err := os.ReadFile(file)
	switch {
	case err == nil:
		if have, err = parseCertificates(data); err != nil {
			return fmt.Errorf("the CA's certificate, from %s, %w; remove the file, and it is fetched again", file, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("reading the CA's certificate: %w", err)
	}
	if pinned = withFingerprint(have, wanted); len(pinned) == 0 {
		if pinned, err = fetchPinned(ctx, url, wanted); err != nil && have != nil {
			err = fmt.Errorf("file %s has %s, not %s, and could not be replaced: %w", file, fingerprintsOf(have), want, err)
		}
		if err != nil {
			return err
		}
	}
	if slices.EqualFunc(pinned, have, (*x509.Certificate).Equal) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := atomicfile.Write(file, encodeChain(pinned), 0o644); err != nil {
		return fmt.Errorf("writing the CA's certificates, %s: %w", want, err)
	}
	return nil
}

// withFingerprint returns the certificates whose fingerprint is in wanted.
func withFingerprint(certs []*x509.Certificate, wanted []string) []*x509.Certificate {
	return slices.DeleteFunc(slices.Clone(certs), func(c *x509.Certificate) bool {
		return !slices.Contains(wanted, Fingerprint(c))
	})
}

// fingerprintsOf returns the fingerprints of certificates, separated by commas.
func fingerprintsOf(certs []*x509.Certificate) string {
	return strings.Join(newTrust(certs, nil).fingerprints(), ",")
}

// fetchPinned fetches the CA's certificates and returns those whose fingerprint is in wanted, at least one. The
// signing service may have more roots than were named.
func fetchPinned(ctx context.Context, url string, wanted []string) ([]*x509.Certificate, error) {
	data, err := awaitCA(ctx, url)
	if err != nil {
		return nil, fmt.Errorf("fetching the CA's certificate from %s: %w", url, err)
	}
	certs, err := parseCertificates(data)
	if err != nil {
		return nil, fmt.Errorf("the CA's certificate, from %s, %w", url, err)
	}
	pinned := withFingerprint(certs, wanted)
	if len(pinned) == 0 {
		return nil, fmt.Errorf("the CA's certificate, from %s, is not the one that was named: it has %s, not %s", url,
			fingerprintsOf(certs), strings.Join(wanted, ","))
	}
	return pinned, nil
}

// awaitCA fetches the CA's certificates. It retries until the service answers 200 or refuses for good, or ctx is done.
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
