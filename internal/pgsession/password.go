package pgsession

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// otherParameters are the names of the parameters that the database driver knows, without those that have passwords.
var otherParameters = []string{"host", "port", "dbname", "user", "passfile", "connect_timeout", "ssl",
	"sslmode", "sslkey",
	"sslcert", "sslcertmode", "sslrootcert", "sslnegotiation", "sslsni", "krbspn", "krbsrvname", "target_session_attrs",
	"service", "servicefile", "min_protocol_version", "max_protocol_version", "channel_binding", "require_auth"}

// HasPassword reports whether the database driver reads a password from an address: whether it accepts the
// address only when passwords are allowed in it. A password of the environment or of a file does not count.
func HasPassword(address string) bool {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return false
	}
	allowed := slices.AppendSeq(slices.Clone(otherParameters), maps.Keys(config.RuntimeParams))
	_, err = pgconn.ParseConfigWithOptions(address, pgconn.ParseConfigOptions{ConnStringAllowedKeys: allowed})
	return err != nil
}

// SplitPassword takes the password out of a connection string, for a program that takes the address as an
// argument: every user of a machine reads the arguments of all programs.
func SplitPassword(server string) (address, password string, err error) {
	config, err := pgconn.ParseConfig(server)
	if err != nil {
		return "", "", fmt.Errorf("the server's address: %w", err)
	}
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		if strings.Contains(server, "password") {
			return "", "", errors.New("the server's address has a password: write it as a URL, postgres://USER:PASSWORD@HOST/")
		}
		return server, config.Password, nil
	}
	u.User = url.User(config.User)
	query := u.Query()
	if query.Has("sslpassword") {
		return "", "", errors.New("the server's address has sslpassword: use a key file without a password")
	}
	query.Del("password")
	u.RawQuery = query.Encode()
	return u.String(), config.Password, nil
}
