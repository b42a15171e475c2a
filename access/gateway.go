package access

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
)

// GatewaySecretHeader has the secret that only the gateway adds to a request.
const GatewaySecretHeader = "X-Atoll-Gateway-Secret"

// The headers in which Amazon API Gateway sends the caller that its IAM authorizer has proved.
const (
	headerCallerARN = "X-Amz-Caller-Arn"
	headerAccount   = "X-Amz-Account-Id"
	headerUserID    = "X-Amz-User-Id"
	headerSourceIP  = "X-Amz-Source-Ip"
)

var gatewayHeaders = []string{GatewaySecretHeader, headerCallerARN, headerAccount, headerUserID, headerSourceIP}

const (
	minGatewaySecret = 32
	maxGatewaySecret = 1024
	maxUserID        = 256

	// gatewayWatch is how long a watch through the gateway lasts. Nobody announces to the region that a secret
	// of the gateway, or its caller, is not valid any more.
	gatewayWatch = 15 * time.Minute

	// secretPeriod is how long a process uses the content of a secret file before it reads it again.
	secretPeriod = time.Second
)

// Gateway proves identities by the headers of Amazon API Gateway, which it accepts with the gateway's
// secret only. Several goroutines may call its methods.
type Gateway struct {
	secrets  gatewaySecrets
	accounts Accounts
}

// NewGateway returns a Gateway with the secrets in files, at most two: with the second one the secret
// changes without a gap. The files are read again each second. A file that is missing or has no secret
// counts for none; the error is of files that have none together.
func NewGateway(files []string, accounts Accounts, log *slog.Logger) (*Gateway, error) {
	if len(files) > 2 {
		return nil, fmt.Errorf("%d files of gateway secrets: at most two are valid at the same time", len(files))
	}
	g := &Gateway{secrets: gatewaySecrets{files: files, log: log, often: rate.Sometimes{Interval: time.Minute}},
		accounts: accounts}
	if sums, err := g.secrets.read(); len(sums) == 0 {
		return nil, fmt.Errorf("no gateway secret: %w", err)
	}
	return g, nil
}

// claimsGateway reports whether a request claims to come from the gateway. Some servers take _ for -.
func claimsGateway(h http.Header) bool {
	for name := range h {
		if canonicalSpelling(name) == GatewaySecretHeader {
			return true
		}
	}
	return false
}

func canonicalSpelling(name string) string {
	return http.CanonicalHeaderKey(strings.ReplaceAll(name, "_", "-"))
}

// prove returns the identity that the gateway has proved. It checks the secret first.
func (g *Gateway) prove(r *http.Request) (Identity, error) {
	if secrets := r.Header.Values(GatewaySecretHeader); g == nil || len(secrets) != 1 || !g.secrets.match(secrets[0]) {
		return Identity{}, refuse(WrongGatewaySecret,
			"the request claims to come from the region's gateway, and has not its secret; sign it, and send no %s",
			GatewaySecretHeader)
	}
	for name, values := range r.Header {
		spelling := canonicalSpelling(name)
		if slices.Contains(gatewayHeaders, spelling) && (spelling != name || len(values) != 1) {
			return Identity{}, refuse(InvalidGatewayIdentity, "the gateway sent the header %s more than once, or spelled %s",
				spelling, quoted(name))
		}
	}
	principal, account := policy.Principal(r.Header.Get(headerCallerARN)), cluster.Account(r.Header.Get(headerAccount))
	if err := checkPrincipal(account, principal); err != nil {
		return Identity{}, refuse(InvalidGatewayIdentity, "%s and %s of the gateway: %s", headerCallerARN, headerAccount, err)
	}
	source, err := netip.ParseAddr(r.Header.Get(headerSourceIP))
	if err != nil || source.Zone() != "" {
		return Identity{}, refuse(InvalidGatewayIdentity, "the gateway sent no address in %s", headerSourceIP)
	}
	user := r.Header.Get(headerUserID)
	if len(user) > maxUserID {
		return Identity{}, refuse(InvalidGatewayIdentity, "the gateway sent a %s of %d bytes", headerUserID, len(user))
	}
	isPrivileged, err := privileged(g.accounts, account)
	if err != nil {
		return Identity{}, err
	}
	return Identity{Principal: principal, Account: account, Privileged: isPrivileged, SourceIP: source.Unmap(),
		Evidence: Evidence{Method: ByGateway, Subject: user, Session: sessionOf(principal),
			Until: time.Now().Add(gatewayWatch)}}, nil
}

// gatewaySecrets are the secrets in files. Several goroutines may use them.
type gatewaySecrets struct {
	files []string
	log   *slog.Logger
	often rate.Sometimes

	mu     sync.Mutex
	readAt time.Time
	sums   [][sha256.Size]byte
}

// match reports whether a secret is one of those in the files. Its time does not depend on how much of
// a secret is right.
func (s *gatewaySecrets) match(secret string) bool {
	sum, right := sha256.Sum256([]byte(secret)), 0
	for _, known := range s.current() {
		right |= subtle.ConstantTimeCompare(sum[:], known[:])
	}
	return right == 1
}

// current returns the hashes of the secrets, at most secretPeriod old.
func (s *gatewaySecrets) current() [][sha256.Size]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.readAt) >= secretPeriod {
		sums, err := s.read()
		if len(sums) == 0 {
			s.often.Do(func() { s.log.Error("no gateway secret, so the gateway is refused", "error", err) })
		}
		s.sums, s.readAt = sums, time.Now()
	}
	return s.sums
}

// read reads the files. A secret whose file is gone or unreadable is not valid any more. The error says
// which files have none.
func (s *gatewaySecrets) read() (sums [][sha256.Size]byte, err error) {
	for _, file := range s.files {
		secret, problem := readGatewaySecret(file)
		if problem != nil {
			err = errors.Join(err, problem)
			continue
		}
		sums = append(sums, sha256.Sum256([]byte(secret)))
	}
	return sums, err
}

func readGatewaySecret(file string) (string, error) {
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if info.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("%s has mode %s: everybody may read it; chmod o= it", file, info.Mode())
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(data))
	if len(secret) < minGatewaySecret || len(secret) > maxGatewaySecret || strings.ContainsAny(secret, "\r\n") {
		return "", fmt.Errorf("%s has not one line of %d to %d characters; make one with: openssl rand -hex 32", file,
			minGatewaySecret, maxGatewaySecret)
	}
	return secret, nil
}
