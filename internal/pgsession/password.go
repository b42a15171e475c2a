package pgsession

import (
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// parameters are the parameters of a connection that the database driver knows, without the passwords.
var parameters = []string{"host", "port", "dbname", "user", "passfile", "connect_timeout", "ssl", "sslmode", "sslkey",
	"sslcert", "sslcertmode", "sslrootcert", "sslnegotiation", "sslsni", "krbspn", "krbsrvname", "target_session_attrs",
	"service", "servicefile", "min_protocol_version", "max_protocol_version", "channel_binding", "require_auth"}

// HasPassword reports whether the database driver reads a password from an address: whether it accepts the
// address only when passwords are allowed in it. A password of the environment or of a file does not count.
func HasPassword(address string) bool {
	config, err := pgconn.ParseConfig(address)
	if err != nil {
		return false
	}
	allowed := slices.AppendSeq(slices.Clone(parameters), maps.Keys(config.RuntimeParams))
	_, err = pgconn.ParseConfigWithOptions(address, pgconn.ParseConfigOptions{ConnStringAllowedKeys: allowed})
	return err != nil
}
