package services

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"atoll.dev/maestro"
)

// originalFlags are flags of the original's server that have another form here: ports without
// addresses, a database in files.
type originalFlags struct {
	host                                       string
	httpPort, grpcPort, agentsPort             string
	dbHost, dbPort, dbName, dbUser, dbPassword string // files
	sslMode, rootCert                          string
}

func (f *originalFlags) add(fl *pflag.FlagSet) {
	fl.StringVar(&f.host, "server-hostname", "localhost", "address of the ports of the --*-bindport flags")
	fl.StringVar(&f.httpPort, "http-server-bindport", "", "port of the REST API, in place of --http")
	fl.StringVar(&f.grpcPort, "grpc-server-bindport", "", "port of the gRPC API for sources, in place of --grpc")
	fl.StringVar(&f.agentsPort, "grpc-broker-bindport", "",
		"port of the gRPC API for agents, in place of --grpc-broker")
	fl.StringVar(&f.dbHost, "db-host-file", "", "file with the database's host, in place of --dsn")
	fl.StringVar(&f.dbPort, "db-port-file", "", "file with the database's port")
	fl.StringVar(&f.dbName, "db-name-file", "", "file with its name")
	fl.StringVar(&f.dbUser, "db-user-file", "", "file with the user")
	fl.StringVar(&f.dbPassword, "db-password-file", "", "file with the password")
	fl.StringVar(&f.sslMode, "db-sslmode", "disable", "disable, require, verify-ca or verify-full")
	fl.StringVar(&f.rootCert, "db-rootcert", "", "CA of the database")
}

// apply converts the original's flags to the flags and options of this server.
func (f *originalFlags) apply(target *maestroFlags, o *maestro.Options) error {
	for _, p := range []struct {
		port string
		addr *string
	}{{f.httpPort, &target.http}, {f.grpcPort, &target.grpc}, {f.agentsPort, &target.agents}} {
		if p.port != "" {
			*p.addr = net.JoinHostPort(f.host, strings.TrimPrefix(p.port, ":"))
		}
	}
	switch {
	case f.dbHost == "" && !target.database.IsGiven():
		return errors.New("--dsn or --dsn-file is needed, or --db-host-file and the other files of the database")
	case f.dbHost == "":
		dsn, err := target.database.Read()
		o.DSN = dsn
		return err
	case target.database.IsGiven():
		return errors.New("--dsn and --db-host-file exclude each other; give one")
	}
	var text [5]string
	for i, path := range []string{f.dbHost, f.dbPort, f.dbName, f.dbUser, f.dbPassword} {
		if path == "" {
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("the database: %w", err)
		}
		text[i] = strings.TrimSpace(string(data))
	}
	if text[1] == "" {
		text[1] = "5432"
	}
	query := url.Values{"sslmode": {f.sslMode}}
	if f.rootCert != "" {
		query.Set("sslrootcert", f.rootCert)
	}
	dsn := url.URL{Scheme: "postgres", Host: net.JoinHostPort(text[0], text[1]), Path: "/" + text[2],
		RawQuery: query.Encode()}
	if text[3] != "" {
		dsn.User = url.UserPassword(text[3], text[4])
	}
	o.DSN = dsn.String()
	return nil
}
