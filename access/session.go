package access

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"

	"atoll.dev/access/policy"
	"atoll.dev/cluster"
)

// maxSession is the longest validity of temporary credentials, as in AWS.
const maxSession = 12 * time.Hour

const (
	sessionKeyPrefix = "ASIA" // of the access key ids of temporary credentials, as in AWS
	keyPrefix        = "AKIA"
)

var sessionNamePattern = regexp.MustCompile(`^[A-Za-z0-9+=,.@_-]{2,64}$`)

// sealedSession is the sealed text of temporary credentials. The end is sealed, too, so that a writer of
// the database cannot extend it.
type sealedSession struct {
	Secret  string    `json:"secret"`
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
}

// setSecret takes the opened text of a key pair: a secret, or a sealedSession.
func (k *Key) setSecret(opened string) error {
	if !strings.HasPrefix(k.AccessKeyID, sessionKeyPrefix) {
		k.Secret = opened
		return nil
	}
	var s sealedSession
	if err := json.Unmarshal([]byte(opened), &s); err != nil || s.Secret == "" || s.Token == "" || s.Expires.IsZero() {
		return fmt.Errorf("opening the session of %s: %w", k.AccessKeyID, ErrSealBroken)
	}
	k.Secret, k.SessionToken, k.Expires = s.Secret, s.Token, s.Expires
	return nil
}

// Session is new temporary credentials. They sign requests together with the token, until the key pair
// expires.
type Session struct {
	KeyPair
	Secret, Token string
}

// String hides the secrets.
func (s Session) String() string { return "session of " + s.AccessKeyID }

// GoString hides the secrets from %#v.
func (s Session) GoString() string { return s.String() }

// sessionPrincipal returns the principal of a session: of a role, arn:aws:iam::ID:role/ROLE, the assumed
// role's session with a name; any other principal itself. The error is ErrInvalid.
func sessionPrincipal(principal policy.Principal, name string) (policy.Principal, error) {
	parts := strings.SplitN(string(principal), ":", 6)
	role, isRole := "", false
	if len(parts) == 6 {
		role, isRole = strings.CutPrefix(parts[5], "role/")
	}
	switch {
	case !isRole && name != "":
		return "", fmt.Errorf("only the session of a role has a name, and %s is no role: %w", quoted(principal), ErrInvalid)
	case !isRole:
		return principal, nil
	case strings.Contains(role, "/"):
		return "", fmt.Errorf("the role %s has a path, which its sessions could not name; use a role without: %w",
			quoted(principal), ErrInvalid)
	case !sessionNamePattern.MatchString(name):
		return "", fmt.Errorf("the session name %s is not 2 to 64 letters, digits and +=,.@_-: %w", quoted(name), ErrInvalid)
	}
	session := policy.Principal("arn:" + parts[1] + ":sts::" + parts[4] + ":assumed-role/" + role + "/" + name)
	if policy.RoleOf(session) != principal {
		return "", fmt.Errorf("principal %s is not like arn:aws:iam::ID:role/ROLE: %w", quoted(principal), ErrInvalid)
	}
	return session, nil
}

// CreateSession creates temporary credentials of a principal, for a time of at most maxSession. name is
// the name of a role's session, and empty for other principals. The secret and the token are not shown
// again.
func (k *KeyStore) CreateSession(ctx context.Context, account cluster.Account, principal policy.Principal, name string,
	of time.Duration) (Session, error) {
	if err := checkPrincipal(account, principal); err != nil {
		return Session{}, err
	}
	principal, err := sessionPrincipal(principal, name)
	if err != nil {
		return Session{}, err
	}
	if of < time.Minute || of > maxSession {
		return Session{}, fmt.Errorf("a session is valid for 1m to %s, not %s: %w", maxSession, of, ErrInvalid)
	}
	id, secret, err := NewKeyPair()
	if err != nil {
		return Session{}, err
	}
	id = sessionKeyPrefix + strings.TrimPrefix(id, keyPrefix)
	var random [48]byte
	if _, err := rand.Read(random[:]); err != nil {
		return Session{}, fmt.Errorf("drawing a session token: %w", err)
	}
	expires := time.Now().Add(of).UTC().Truncate(time.Second)
	s := sealedSession{secret, base64.StdEncoding.EncodeToString(random[:]), expires}
	text, err := json.Marshal(s)
	if err != nil {
		return Session{}, fmt.Errorf("creating a session: %w", err)
	}
	pair, err := k.put(ctx, id, string(text), keyPairSpec{Account: account, Principal: principal,
		Expires: &expires})
	return Session{pair, s.Secret, s.Token}, err
}
